//go:build linux

package cgroup

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t *testing.T, g *Group, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.path, file))
	require.NoError(t, err)
	return string(text)
}

// start starts a program in a group.
func start(t *testing.T, g *Group, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.Dir().Fd())}
	require.NoError(t, cmd.Start())
	return cmd
}

func TestGroup_HasItsLimits(t *testing.T) {
	t.Parallel()
	g, err := sandboxtest.RequireGroups(t, Find).Open(Limits{Memory: 64 << 20, Processes: 10})
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(64<<20)+"\n", read(t, g, "memory.max"))
	require.Equal(t, "10\n", read(t, g, "pids.max"))
	require.NoError(t, g.Limit(Limits{Memory: 32 << 20}))
	require.Equal(t, strconv.Itoa(32<<20)+"\n", read(t, g, "memory.max"))
	require.Equal(t, "max\n", read(t, g, "pids.max"))
	require.NoError(t, g.Close())
	require.NoDirExists(t, g.path)
}

// TestGroup_CloseKills: whatever is in a group ends with it.
func TestGroup_CloseKills(t *testing.T) {
	t.Parallel()
	g, err := sandboxtest.RequireGroups(t, Find).Open(Limits{})
	require.NoError(t, err)
	cmd := start(t, g, "sleep", "1000")
	require.Equal(t, strconv.Itoa(cmd.Process.Pid)+"\n", read(t, g, "cgroup.procs"))
	closed := make(chan error, 1)
	go func() { closed <- g.Close() }()
	require.Error(t, cmd.Wait())
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.Equal(t, syscall.SIGKILL, status.Signal())
	require.NoError(t, <-closed)
	require.NoDirExists(t, g.path)
}

// TestGroup_CountsKillsForMemory: and its processes never hold more than they may.
func TestGroup_CountsKillsForMemory(t *testing.T) {
	t.Parallel()
	const limit = 32 << 20
	g, err := sandboxtest.RequireGroups(t, Find).Open(Limits{Memory: limit})
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	require.Zero(t, g.OOMKills())
	cmd := start(t, g, "sh", "-c", "tail /dev/zero")
	require.Error(t, cmd.Wait())
	require.EqualValues(t, 1, g.OOMKills())
	peak, err := strconv.Atoi(strings.TrimSpace(read(t, g, "memory.peak")))
	require.NoError(t, err)
	require.LessOrEqual(t, peak, limit)
}

// TestTree_OfAKilledProcessIsRemoved: with what still runs in it, and nobody else's.
func TestTree_OfAKilledProcessIsRemoved(t *testing.T) {
	t.Parallel()
	mine := sandboxtest.RequireGroups(t, Find)
	dir := filepath.Dir(mine.Dir())
	other, err := newTree(dir)
	require.NoError(t, err)
	g, err := other.Open(Limits{})
	require.NoError(t, err)
	cmd := start(t, g, "sleep", "1000")
	removeStale(dir)
	require.DirExists(t, g.path, "its process lives")
	require.NoError(t, other.lock.Close()) // as the end of a process does
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	removeStale(dir)
	require.Error(t, <-ended)
	require.NoDirExists(t, other.Dir())
	require.DirExists(t, mine.Dir())
	require.NoError(t, g.closeFiles())
}

// TestGroup_KillEachLeavesAGroupThatCanBeUsed: what is started in it afterwards lives.
func TestGroup_KillEachLeavesAGroupThatCanBeUsed(t *testing.T) {
	t.Parallel()
	g, err := sandboxtest.RequireGroups(t, Find).Open(Limits{})
	require.NoError(t, err)
	for range 3 {
		cmd := start(t, g, "sleep", "1000")
		require.NoError(t, g.KillEach())
		require.Error(t, cmd.Wait())
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.True(t, ok)
		require.Equal(t, syscall.SIGKILL, status.Signal())
		require.NoError(t, start(t, g, "sleep", "0.1").Wait())
	}
	require.NoError(t, g.Close())
}

// host makes a folder with what the kernel tells of a process and its groups; TOP stands
// for where the hierarchy is.
func host(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		top := strings.ReplaceAll(dir+"/top", " ", `\040`) // as the kernel writes it
		require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(content, "TOP", top)), 0o644))
	}
	return dir
}

const (
	mountRoot   = "24 1 0:20 / /proc rw - proc proc rw\n31 24 0:26 / TOP rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountBelow  = "31 24 0:26 /docker/abc TOP ro - cgroup2 cgroup ro\n"
	mountHybrid = "30 24 0:25 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" + mountRoot
	all         = "cpuset cpu io memory pids\n"
)

func TestLocate_SaysWhereOrWhyNot(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files      map[string]string
		own, fault string
		advice     string
	}{
		"the root":           {files: map[string]string{"self/mountinfo": mountRoot, "self/cgroup": "0::/\n", "top/cgroup.controllers": all}, own: "top"},
		"a unit":             {files: map[string]string{"self/mountinfo": mountRoot, "self/cgroup": "0::/a/b\n", "top/a/b/cgroup.controllers": all}, own: "top/a/b"},
		"part of it":         {files: map[string]string{"self/mountinfo": mountBelow, "self/cgroup": "0::/docker/abc\n", "top/cgroup.controllers": all}, own: "top"},
		"out of sight":       {files: map[string]string{"self/mountinfo": mountBelow, "self/cgroup": "0::/system.slice/x\n"}, fault: "is not below", advice: "namespace"},
		"out of a namespace": {files: map[string]string{"self/mountinfo": mountRoot, "self/cgroup": "0::/../x\n"}, fault: "cannot be read"},
		"no proc":            {fault: "no /proc"},
		"no groups":          {files: map[string]string{"self/mountinfo": mountRoot}, fault: "the kernel has none", advice: "CONFIG_CGROUPS"},
		"version 1 alone": {
			files: map[string]string{"self/mountinfo": "30 24 0:25 / /x rw - cgroup cgroup rw,memory\n", "self/cgroup": "4:memory:/x\n"},
			fault: "version 2 is not mounted", advice: "unified_cgroup_hierarchy",
		},
		"both versions": {
			files: map[string]string{"self/mountinfo": mountHybrid, "self/cgroup": "4:memory:/x\n0::/\n", "top/cgroup.controllers": "\n"},
			fault: "lacks cpu, memory, pids, which version 1 may have", advice: "version 2 alone",
		},
		"memory in version 1": {
			files: map[string]string{"self/mountinfo": mountHybrid, "self/cgroup": "0::/\n", "top/cgroup.controllers": "cpu pids\n"},
			fault: "lacks memory, which", advice: "version 2 alone",
		},
		"not handed down": {
			files: map[string]string{"self/mountinfo": mountRoot, "self/cgroup": "0::/a\n", "top/cgroup.controllers": all, "top/a/cgroup.controllers": "memory pids\n"},
			fault: "without cpu in TOP/a", advice: "Delegate=yes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := host(t, test.files)
			p, err := locate(filepath.Join(dir, "self"), true)
			if test.fault == "" {
				require.NoError(t, err)
				require.Equal(t, filepath.Join(dir, test.own), p.Own)
				return
			}
			var why *isolation.UnusableError
			require.ErrorAs(t, err, &why)
			require.ErrorContains(t, err, strings.ReplaceAll(test.fault, "TOP", dir+"/top"))
			require.Contains(t, why.Advice, test.advice)
		})
	}
}

// TestCandidates_AreDelegated: with systemd only what it has handed over is touched.
func TestCandidates_AreDelegated(t *testing.T) {
	t.Parallel()
	files := map[string]string{"top/cgroup.subtree_control": "", "top/a/cgroup.type": "domain\n", "top/a/b/cgroup.type": "domain\n"}
	container := maps.Clone(files)
	container["top/cgroup.type"] = "domain\n"
	for name, test := range map[string]struct {
		files      map[string]string
		own        string
		systemd    bool
		candidates []string
		allowed    bool // to divide its own
	}{
		"of systemd":              {files, "top/a/b", true, []string{"top/a/b"}, false},
		"without systemd":         {files, "top/a/b", false, []string{"top/a", "top/a/b"}, true},
		"the root":                {files, "top", true, []string{"top"}, false},
		"the root, no systemd":    {files, "top", false, []string{"top"}, true},
		"a container":             {container, "top", true, []string{"top"}, true},
		"below one, in a group":   {container, "top/a", true, []string{"top", "top/a"}, false},
		"two below a container's": {container, "top/a/b", true, []string{"top/a/b"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := host(t, test.files)
			p := &Location{Top: filepath.Join(dir, "top"), Own: filepath.Join(dir, test.own), systemd: test.systemd}
			var want []string
			for _, c := range test.candidates {
				want = append(want, filepath.Join(dir, c))
			}
			require.Equal(t, want, p.candidates())
			require.Equal(t, test.allowed, p.delegated(p.Own))
			if !test.allowed {
				require.ErrorContains(t, p.enable(p.Own), "was not delegated")
			}
		})
	}
}

func TestNumber_OfAnEvent(t *testing.T) {
	t.Parallel()
	const events = "low 0\nhigh 2\nmax 17\noom 4\noom_kill 3\noom_group_kill 1\n"
	require.EqualValues(t, 3, number([]byte(events), "oom_kill"))
	require.EqualValues(t, 4, number([]byte(events), "oom"))
	require.Zero(t, number([]byte(events), "oom_"))
	require.Zero(t, number(nil, "oom_kill"))
}
