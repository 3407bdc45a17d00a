//go:build linux

package ns_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

// slow is how long commands may take here: the machine may be emulated, on one that is busy.
const slow = 5 * time.Minute

// TestGroup_IsWhatTheDriverProves: the kinds of the limits follow.
func TestGroup_IsWhatTheDriverProves(t *testing.T) { //nolint:paralleltest // the machine is slow
	sandboxtest.RequireGroups(t, cgroup.Find)
	caps, err := ns.New(nil).Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, isolation.LimitCgroup, caps.Limits.Memory, caps.Warnings)
	require.Equal(t, isolation.LimitCgroup, caps.Limits.Processes)
	require.Empty(t, caps.Warnings)
}

// TestGroup_MemoryIsHard: whoever holds it, and in whatever way, the kernel gives no more, the
// reason is exact, and the sandbox goes on.
func TestGroup_MemoryIsHard(t *testing.T) { //nolint:paralleltest // the machine is slow
	sandboxtest.RequireGroups(t, cgroup.Find)
	const limit = 48 << 20
	for name, script := range map[string]string{ //nolint:paralleltest // as above
		"one process":          `exec tail /dev/zero`,
		"many processes":       `for i in $(seq 10); do (printf -v x %8000000s; sleep 1000; :) & done; wait; sleep 1000`,
		"a child":              `tail /dev/zero; echo went on; sleep 1000`,
		"a child, not noticed": `tail /dev/zero; exit 0`,
		"a daemon":             `(setsid tail /dev/zero &); sleep 1000`,
		"beside shared memory": `head -c 20000000 /dev/zero >/dev/shm/x; tail /dev/zero; sleep 1000`,
	} {
		t.Run(name, func(t *testing.T) {
			s := limited(t, sandbox.Limits{Memory: limit, Wall: slow})
			start := time.Now()
			result := run(t, s, script)
			require.Equal(t, sandbox.ReasonOOM, result.Reason, "exit code %d, signal %s: %s%s", result.ExitCode, result.Signal, result.Stdout.Data, result.Stderr.Data)
			require.LessOrEqual(t, result.MaxRSS, int64(limit+16<<20))
			require.Equal(t, string(isolation.LimitCgroup), result.LimitKinds["memory"])
			t.Logf("ended after %s", time.Since(start).Round(time.Millisecond))
			result = run(t, s, "head -c 70000000 /dev/zero >/dev/shm/x 2>/dev/null; rm /dev/shm/x; echo fine")
			require.Equal(t, "fine\n", string(result.Stdout.Data), "%s %s", result.Reason, result.Stderr.Data)
		})
	}
}

// TestGroup_BesideOthers: the kernel's choice ends, others go on, and what was not the
// command's own end is not blamed on it.
func TestGroup_BesideOthers(t *testing.T) { //nolint:paralleltest // the machine is slow
	sandboxtest.RequireGroups(t, cgroup.Find)
	endsAlone(t, limited(t, sandbox.Limits{Memory: 150 << 20, Wall: slow}), 30_000_000, "tail /dev/zero")
}

// TestGroup_CommandMayHaveLess: a limit of a call is hard too when it runs alone.
func TestGroup_CommandMayHaveLess(t *testing.T) { //nolint:paralleltest // the machine is slow
	sandboxtest.RequireGroups(t, cgroup.Find)
	s := limited(t, sandbox.Limits{Memory: 400 << 20, Processes: 200, Wall: slow})
	cmd := sandbox.Cmd{Argv: []string{"bash", "-c", "head -c 60000000 /dev/zero >/dev/shm/x; sleep 1000"}, Limits: sandbox.Limits{Memory: 32 << 20}}
	result, err := s.Exec(t.Context(), cmd)
	require.NoError(t, err)
	require.Equal(t, sandbox.ReasonOOM, result.Reason)
	require.Equal(t, string(isolation.LimitCgroup), result.LimitKinds["memory"])
	cmd.Limits = sandbox.Limits{Processes: 10}
	cmd.Argv[2] = `rm /dev/shm/x; for i in $(seq 60); do sleep 1000 & done; echo done`
	result, err = s.Exec(t.Context(), cmd)
	require.NoError(t, err)
	require.NotEqual(t, "done\n", string(result.Stdout.Data), "60 of 10 processes")
	cmd.Limits = sandbox.Limits{}
	cmd.Argv[2] = "head -c 60000000 /dev/zero >/dev/shm/x; rm /dev/shm/x; for i in $(seq 60); do sleep 1000 & done; echo done"
	result, err = s.Exec(t.Context(), cmd)
	require.NoError(t, err)
	require.Equal(t, "done\n", string(result.Stdout.Data), "the next one has the sandbox's limits: %s", result.Stderr.Data)
}

// TestGroup_IsNotSeen: a sandbox sees its group as the root, and cannot change it.
func TestGroup_IsNotSeen(t *testing.T) { //nolint:paralleltest // the machine is slow
	groups := sandboxtest.RequireGroups(t, cgroup.Find)
	for name, d := range map[string]isolation.Driver{ns.LauncherNative: ns.New(nil), ns.LauncherBwrap: withBwrap()} { //nolint:paralleltest // as above
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat("/usr/bin/bwrap"); name == ns.LauncherBwrap && (err != nil || os.Geteuid() == 0) {
				t.Skip("UNSUPPORTED: bubblewrap is not installed, or this is root")
			}
			s, err := d.Open(t.Context(), isolation.Spec{ID: "x", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"}, Limits: sandbox.Limits{Memory: 64 << 20}})
			require.NoError(t, err)
			require.Equal(t, "0::/\n", string(run(t, s, "grep ^0: /proc/self/cgroup; ls /sys/fs/cgroup 2>/dev/null; grep cgroup /proc/mounts; true").Stdout.Data))
			require.Equal(t, sandbox.ReasonOOM, run(t, s, "tail /dev/zero").Reason)
			require.NoError(t, s.Close())
		})
	}
	left, err := os.ReadDir(groups.Dir())
	require.NoError(t, err)
	left = slices.DeleteFunc(left, func(e os.DirEntry) bool { return !e.IsDir() })
	require.LessOrEqual(t, len(left), 1, "groups are left, not only that of the next sandbox: %v", left)
}

// TestGroup_NeighboursAnswer: beside a sandbox whose memory is used up again and again another
// answers within 100 ms, or what it takes without that on a slow machine. It is measured several
// times if need be: what else the machine does comes and goes.
func TestGroup_NeighboursAnswer(t *testing.T) { //nolint:paralleltest // it measures
	sandboxtest.RequireGroups(t, cgroup.Find)
	const samples, rounds = 30, 10
	neighbour := limited(t, sandbox.Limits{Wall: slow})
	measure := func() []time.Duration {
		var took []time.Duration
		for range samples {
			start := time.Now()
			require.Zero(t, run(t, neighbour, "true").ExitCode)
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took
	}
	s := limited(t, sandbox.Limits{Memory: 64 << 20, Wall: slow})
	for range rounds {
		quiet := measure()
		stop := bombard(t, s)
		beside := measure()
		bombs, at := stop(), samples*9/10-1
		t.Logf("9 of 10 within %s quiet, %s beside %d memory bombs; half within %s and %s", quiet[at], beside[at], bombs, quiet[samples/2], beside[samples/2])
		if beside[at] < max(100*time.Millisecond, 4*quiet[at]) {
			return
		}
	}
	require.Fail(t, "neighbours wait")
}

// bombard uses up the memory of a sandbox again and again, until stop is called, which returns how
// often that was.
func bombard(t *testing.T, s sandbox.Sandbox) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	bombs := make(chan int, 1)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			result, err := s.Exec(ctx, sandbox.Cmd{Argv: []string{"bash", "-c", "tail /dev/zero"}})
			if err != nil || result.Reason != sandbox.ReasonOOM && ctx.Err() == nil {
				t.Errorf("the bomb: %s %v", result.Reason, err)
			}
		}
		bombs <- n
	}()
	return func() int {
		cancel()
		return <-bombs
	}
}
