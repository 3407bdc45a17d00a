//go:build linux

package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t *testing.T, g *Group, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.Path(), file))
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
	require.NoDirExists(t, g.Path())
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
	require.NoDirExists(t, g.Path())
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
	require.DirExists(t, g.Path(), "its process lives")
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
