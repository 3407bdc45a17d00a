//go:build linux

package initd

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
)

// Fault is something that is missing from a sandbox.
type Fault struct {
	Want string // what the error says
	Root bool   // there only when the worker is root
	// Bwrap says that it can be missing where bubblewrap makes the namespaces, too; OnlyBwrap that
	// it is there only then.
	Bwrap, OnlyBwrap bool

	without uintptr // namespaces
	attr    func(*cloned)
	skip    string // a step that is left out
	also    string // another one
	step    string // a step that is done in another way
	instead func(l *confine.List, really func())
}

// faultProcesses is the first number of processes that stands for a fault.
const faultProcesses = 7001

// FaultProcesses is how many processes a sandbox with that fault is limited to: that is known
// before its directories are, and is different for each of them.
func FaultProcesses(name string) int64 {
	return faultProcesses + int64(slices.Index(slices.Sorted(maps.Keys(Faults)), name))
}

// then makes a call after a step.
func then(number uintptr, args ...any) func(*confine.List, func()) {
	return func(l *confine.List, really func()) {
		really()
		l.Do(number, args...)
	}
}

// tmpfs mounts something after a step.
func tmpfs(at string, flags uintptr) func(*confine.List, func()) {
	return then(unix.SYS_MOUNT, "tmpfs", at, "tmpfs", flags, 0)
}

// ambient gives a capability to the program that is executed.
func ambient(capability int) func(*confine.List, func()) {
	return func(l *confine.List, really func()) {
		really()
		header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		sets := &[2]unix.CapUserData{{Effective: ^uint32(0), Permitted: ^uint32(0), Inheritable: 1 << capability}, {Effective: 1, Permitted: 1}}
		l.Do(unix.SYS_CAPSET, unsafe.Pointer(header), unsafe.Pointer(sets))
		l.Do(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, capability, 0, 0)
	}
}

// unpinned protects a place, but not the directory that it is in.
func unpinned(l *confine.List, _ func()) {
	v := &view{List: l}
	v.mountAt("d/p", "d/p", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_RDONLY)
}

// Faults are all of them by name.
var Faults = map[string]Fault{
	// Namespaces. Without a user namespace nobody but root can make the others, and it has no
	// rights in them as the sandbox's user.
	"no user namespace":    {Root: true, without: unix.CLONE_NEWUSER, Want: "host name: operation not permitted"},
	"no mount namespace":   {without: unix.CLONE_NEWNS, Want: "private mounts"},
	"no process namespace": {without: unix.CLONE_NEWPID, Want: "/proc"},
	"no network namespace": {without: unix.CLONE_NEWNET, skip: "loopback", Want: "the net namespace is the worker's"},
	"no IPC namespace":     {without: unix.CLONE_NEWIPC, Want: "the ipc namespace is the worker's"},
	"no name namespace":    {without: unix.CLONE_NEWUTS, skip: "host name", Want: "the uts namespace is the worker's"},
	"no cgroup namespace":  {skip: "control group namespace", Want: "the cgroup namespace is the worker's"},
	// Users.
	"a group of the worker": {Root: true, step: "user", Want: "groups are [1000], must be none", instead: then(unix.SYS_SETGROUPS, 1, unsafe.Pointer(&[]uint32{User}[0]))},
	"two users":             {Root: true, Want: "uid_map is", attr: func(c *cloned) { c.uids = append(c.uids, ids{0, 1}) }},
	"two groups":            {Root: true, Want: "gid_map is", attr: func(c *cloned) { c.gids = append(c.gids, ids{0, 1}) }},
	// Mounts.
	"shared mounts":                  {Want: "is not private: shared:", step: "pivot_root", instead: then(unix.SYS_MOUNT, 0, "/", 0, unix.MS_REC|unix.MS_SHARED, 0)},
	"root that can be written to":    {skip: "read-only root", Want: "can be written to"},
	"pressure that can be asked for": {skip: "pressure of the host", Want: "self-test: pressure of the host"},
	"keys that can be read":          {skip: "keys of the host", Want: "self-test: keys of the host"},
	"the host's root kept": {step: "pivot_root", Want: "the host's root is still there", instead: func(l *confine.List, _ func()) {
		l.Do(unix.SYS_PIVOT_ROOT, ".", ".")
		l.Do(unix.SYS_CHDIR, "/")
	}},
	"one more mount":       {step: "directories", Want: "mount /run was not asked for", instead: tmpfs("run", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY)},
	"set-user-ID programs": {step: "directories", Want: "mount /tmp has set-user-ID programs or devices", instead: tmpfs("tmp", unix.MS_NODEV)},
	"devices": {
		step: "directories", skip: "protected places",
		Want:    "mount /workspace has set-user-ID programs or devices",
		instead: tmpfs("workspace", unix.MS_NOSUID),
	},
	"nothing protected":    {skip: "protected places", Want: "/workspace/d is not protected"},
	"directory not pinned": {step: "protected places", Want: "/workspace/d is not protected", instead: unpinned},
	"protected place that can be written to": {step: "protected places", Want: "mount /workspace/d/p can be written to", instead: func(l *confine.List, really func()) {
		really()
		attr := &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
		l.Do(unix.SYS_MOUNT_SETATTR, unix.AT_FDCWD, "d/p", 0, unsafe.Pointer(attr), unsafe.Sizeof(*attr))
	}},
	"another directory in a protected place": {step: "protected places", Want: "/workspace/d/p is not what the workspace has there", instead: func(l *confine.List, really func()) {
		l.Do(unix.SYS_RENAMEAT2, unix.AT_FDCWD, "d/other", unix.AT_FDCWD, "d/p", unix.RENAME_EXCHANGE)
		really()
	}},
	"no link": {skip: StepLink, Want: "self-test: link: network is unreachable"},
	// Rights.
	"bounding set kept":       {skip: "bounding set", Want: "CapBnd is"},
	"capabilities kept":       {step: "user", skip: "capabilities", Want: "CapEff is", instead: ambient(unix.CAP_SYS_ADMIN)},
	"one capability":          {step: "user", skip: "capabilities", Want: "CapPrm is", instead: ambient(unix.CAP_NET_ADMIN)},
	"new privileges possible": {skip: "no_new_privs", also: "capabilities", Want: "NoNewPrivs is"},
	"no Landlock":             {Bwrap: true, skip: "Landlock", Want: "self-test: device file"},
	"no seccomp":              {Bwrap: true, skip: "seccomp", Want: "Seccomp is"},
	"core files":              {Bwrap: true, skip: "resource limits", Want: "core files"},
	"a descriptor more": {Bwrap: true, step: "exec", Want: "is /usr", instead: func(l *confine.List, really func()) {
		l.Do(unix.SYS_OPENAT, unix.AT_FDCWD, "/usr", unix.O_RDONLY, 0)
		really()
	}},
	"file of bubblewrap's errors": {Bwrap: true, OnlyBwrap: true, skip: "standard errors", Want: "descriptor 2 is"},
	"the program kept open":       {step: "close descriptors", Want: "self-test: descriptors", instead: then(unix.SYS_DUP, fdImage)},
}

// A sandbox's first process is this test's program too.
func init() { //nolint:gochecknoinits // as above
	seam.clone = func(config Config, c *cloned) {
		f := faultOf(config)
		c.flags &^= f.without
		if f.attr != nil {
			f.attr(c)
		}
	}
	seam.step = func(l *confine.List, config Config, name string, really func()) {
		switch f := faultOf(config); name {
		case f.skip, f.also:
		case f.step:
			f.instead(l, really)
		default:
			really()
		}
	}
}

// faultOf returns the fault of a sandbox; the zero value has no effect.
func faultOf(config Config) Fault {
	for name, f := range Faults {
		if int64(config.Processes) == FaultProcesses(name) {
			return f
		}
	}
	return Fault{}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	const tail = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 77 20 21\n"
	want := proc{pid: 9, ppid: 1, pgrp: 2}
	for _, comm := range []string{"(sh)", "(a b)", "())", "(a) S 5 5 5 (b)", "(\n)", "()"} {
		got, ok := parseStat(9, []byte("9 "+comm+tail))
		require.True(t, ok, comm)
		require.Equal(t, want, got, comm)
	}
	for _, bad := range []string{"", "9 (sh)", "9 (sh) S 1", "9 (sh) S x" + tail[4:]} {
		_, ok := parseStat(9, []byte(bad))
		require.False(t, ok, bad)
	}
	require.Contains(t, readProcs(), proc{pid: os.Getpid(), ppid: os.Getppid(), pgrp: syscall.Getpgrp()})
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("9 (sh) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 77 20 21\n"))
	f.Add([]byte(")"))
	f.Fuzz(func(_ *testing.T, stat []byte) { parseStat(1, stat) })
}

// TestIdle_EndsWithAParentThatIsKilledAtOnce: a process that stands for a user namespace ends also
// when its parent is killed before it has made its first call.
func TestIdle_EndsWithAParentThatIsKilledAtOnce(t *testing.T) {
	t.Parallel()
	const variable = "TOOLFLEET_TEST_IDLE"
	if os.Getenv(variable) != "" {
		beKilled(t)
		return
	}
	parent := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	parent.Env = append(os.Environ(), variable+"=1")
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	var pid int
	_, err = fmt.Fscanln(out, &pid) // what is left has the other end, too
	require.NoError(t, err)
	require.ErrorContains(t, parent.Wait(), "signal: killed")
	stopped := func() bool { return bytes.Contains(stat(pid), []byte(") T ")) }
	require.Eventually(t, stopped, time.Minute, time.Millisecond, "%s", stat(pid))
	defer func() { _ = unix.Kill(pid, unix.SIGKILL) }()
	require.NoError(t, unix.Kill(pid, unix.SIGCONT))
	gone := func() bool { return len(stat(pid)) == 0 || bytes.Contains(stat(pid), []byte(") Z ")) }
	require.Eventually(t, gone, time.Minute, time.Millisecond, "%s", stat(pid))
}

// stat is what the kernel says of a process; it is empty without one.
func stat(pid int) []byte {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return data
}

// beKilled forks an idle process that stops before its first call, and is killed.
func beKilled(t *testing.T) {
	t.Helper()
	var life [2]int
	require.NoError(t, unix.Pipe2(life[:], unix.O_CLOEXEC))
	l := &confine.List{}
	self := l.Do(unix.SYS_GETPID)
	l.Do(unix.SYS_KILL, self, int(unix.SIGSTOP))
	pid, err := idle(l, life).Fork(0, 2, nil)
	require.NoError(t, err)
	_, _ = fmt.Fprintln(os.Stdout, pid)
	require.NoError(t, unix.Kill(os.Getpid(), unix.SIGKILL))
}

// TestReap_FreesNoIDBesideAStart: while a command is started, the ids of those that have ended are
// not given out again.
func TestReap_FreesNoIDBesideAStart(t *testing.T) {
	t.Parallel()
	const variable = "TOOLFLEET_TEST_REAP"
	if os.Getenv(variable) == "" { // what is tested waits for every child of its process
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), variable+"=1")
		output, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", output)
		return
	}
	commands := newCommands(nil)
	commands.mu.Lock()
	start := func() int {
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
		require.NoError(t, err)
		return pid
	}
	ended := func(pid int) error { return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) }
	first := start()
	go commands.reap()
	require.NoError(t, ended(first))
	require.NoError(t, ended(start())) // the end of the first one is noticed by now
	require.NoError(t, ended(first), "its id is free")
	os.Exit(0) // reap never returns
}

// deep makes a tree of that many levels below a directory, with a file of 8 KiB in the last one.
func deep(t *testing.T, dir string, levels int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	name := strings.Repeat("d", 20) // longer than a path may be, all of them
	for range levels {
		require.NoError(t, unix.Mkdirat(fd, name, 0o700))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		fd = next
	}
	file, err := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	require.NoError(t, err)
	_, err = unix.Write(file, make([]byte, 8<<10))
	require.NoError(t, err)
	require.NoError(t, unix.Close(file))
	require.NoError(t, unix.Close(fd))
}

func TestTreeUsage_IsThatOfEveryFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := treeUsage(dir, maxLevels)
	for i := range 300 {
		sub := filepath.Join(dir, fmt.Sprint(i%7), fmt.Sprint(i%3))
		require.NoError(t, os.MkdirAll(sub, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), make([]byte, 4<<10), 0o600))
	}
	got := treeUsage(dir, maxLevels)
	require.GreaterOrEqual(t, got, empty+300*4<<10)
	require.Less(t, got, empty+300*4<<10+29*(8<<10), "and that of 28 directories")
	require.NoError(t, os.Link(filepath.Join(dir, "0", "0", "0"), filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink("/usr", filepath.Join(dir, "symlink")))
	require.InDelta(t, got, treeUsage(dir, maxLevels), 4<<10, "a file with two names is one file, and a link is not followed")
	require.Zero(t, treeUsage(filepath.Join(dir, "none"), maxLevels))
	require.Zero(t, treeUsage(filepath.Join(dir, "symlink"), maxLevels))
}

// TestTreeUsage_FilesWithNothingInThemCount: a file system can run out of them.
func TestTreeUsage_FilesWithNothingInThemCount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 200 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	require.GreaterOrEqual(t, treeUsage(dir, maxLevels), uint64(200*4<<10))
}

func TestTreeUsage_OfATreeWithoutEndIsEndless(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := treeUsage(dir, maxLevels)
	deep(t, dir, maxLevels-1)
	used := treeUsage(dir, maxLevels)
	require.GreaterOrEqual(t, used, before+8<<10, "the file in the last one is seen")
	require.Less(t, used, uint64(10<<20))
	require.Equal(t, uint64(math.MaxUint64), treeUsage(dir, maxLevels-1))
}

// TestHeld_TablesOfPagesCount: memory that is only read has no pages, but their tables.
func TestHeld_TablesOfPagesCount(t *testing.T) { //nolint:paralleltest // it looks at the whole process
	const pages, of = 4 << 10, 2 << 20 // one table for each so many bytes
	memory, err := unix.Mmap(-1, 0, pages*of, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(memory)) }()
	before, sum := held([]int{os.Getpid()}), byte(0)
	for i := range pages {
		sum += memory[i*of]
	}
	require.Zero(t, sum)
	require.GreaterOrEqual(t, held([]int{os.Getpid()}), before+pages*4<<10)
}
