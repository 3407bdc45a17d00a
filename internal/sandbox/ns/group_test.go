//go:build linux

package ns_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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
	result := mustExec(t, s, cmd)
	require.Equal(t, sandbox.ReasonOOM, result.Reason)
	require.Equal(t, string(isolation.LimitCgroup), result.LimitKinds["memory"])
	cmd.Limits = sandbox.Limits{Processes: 10}
	cmd.Argv[2] = `rm /dev/shm/x; for i in $(seq 60); do sleep 1000 & done; echo done`
	result = mustExec(t, s, cmd)
	require.NotEqual(t, "done\n", string(result.Stdout.Data), "60 of 10 processes")
	cmd.Limits = sandbox.Limits{}
	cmd.Argv[2] = "head -c 60000000 /dev/zero >/dev/shm/x; rm /dev/shm/x; for i in $(seq 60); do sleep 1000 & done; echo done"
	result = mustExec(t, s, cmd)
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
			s, err := d.Open(t.Context(), isolation.Spec{
				ID: "x", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"}, Limits: sandbox.Limits{Memory: 64 << 20},
			})
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

// TestShare_LeavesSomeToOthers: of what the kernel counts for the user of a worker, too, a sandbox
// gets a part.
func TestShare_LeavesSomeToOthers(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		for _, resource := range []int{unix.RLIMIT_RTPRIO, unix.RLIMIT_NICE} { // as some users have it; only root can
			_ = unix.Setrlimit(resource, &unix.Rlimit{Cur: 30, Max: 30})
		}
		s := limited(t, sandbox.Limits{})
		require.Equal(t, "0\n0\n", string(run(t, s, "ulimit -Hr; ulimit -He").Stdout.Data))
		for own, host := range map[string]string{
			"/proc/sys/user/max_inotify_instances": "/proc/sys/fs/inotify/max_user_instances",
			"/proc/sys/user/max_inotify_watches":   "/proc/sys/fs/inotify/max_user_watches",
		} {
			text, err := os.ReadFile(host)
			require.NoError(t, err)
			most, err := strconv.Atoi(strings.TrimSpace(string(text)))
			require.NoError(t, err)
			require.Equal(t, strconv.Itoa(most/8)+"\n", string(run(t, s, "cat "+own).Stdout.Data))
			require.Positive(t, run(t, s, "echo 1000 >"+own).ExitCode)
		}
		var signals unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_SIGPENDING, &signals))
		require.Equal(t, strconv.FormatUint(signals.Max/8, 10)+"\n", string(run(t, s, "ulimit -Hi").Stdout.Data))
		var queues unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_MSGQUEUE, &queues))
		require.Equal(t, strconv.FormatUint(queues.Max/8, 10)+"\n", string(run(t, s, "ulimit -Hq").Stdout.Data))
		require.Equal(t, "16384\n", string(run(t, s, "stat -f -c %c /dev/shm").Stdout.Data), "files in memory")
		const terminals = `n=0; while exec {fd}<>/dev/ptmx; do n=$((n+1)); done 2>/dev/null; echo $n`
		require.Equal(t, "128\n", string(run(t, s, terminals).Stdout.Data))
	})
}

// TestShare_LeavesProcessesAndDescriptorsToTheUser: who may have few of them still has some beside
// a sandbox that takes all it gets.
func TestShare_LeavesProcessesAndDescriptorsToTheUser(t *testing.T) { //nolint:paralleltest // as above
	const limits = "SHARE_UNDER_LIMITS"
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		switch {
		case os.Getenv(limits) != "":
			s := limited(t, sandbox.Limits{})
			const hard = `until [ $(ulimit -Hn) -lt 4096 ]; do sleep 0.01; done; ulimit -Hn` // it comes a moment after the start
			require.Equal(t, "3584\n", string(run(t, s, hard).Stdout.Data))
			forked := forks(t, s)
			require.Greater(t, forked, 500)
			require.LessOrEqual(t, forked, 700)
		case os.Geteuid() != 0:
			t.Skip("UNSUPPORTED: it takes a user who has nothing else, whom only root can become")
		default:
			user := strconv.Itoa(62_000 + rand.IntN(3_000))      // nobody, also where this test runs twice
			dir, err := os.MkdirTemp("/tmp", "toolfleet-share-") //nolint:usetesting // where an ordinary user may go
			require.NoError(t, err)
			defer func() { require.NoError(t, os.RemoveAll(dir)) }()
			require.NoError(t, os.Chmod(dir, 0o777))
			cmd := exec.CommandContext(t.Context(), "setpriv", "--reuid", user, "--regid", user, "--clear-groups",
				"bash", "-c", `ulimit -u 800 -n 4096; exec "$0" -test.v -test.run "$1"`, os.Args[0], "^"+t.Name()+"$")
			cmd.Dir, cmd.Env = dir, append(os.Environ(), limits+"=1", "TMPDIR="+dir, "HOME="+dir)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
		}
	})
}

// forks has a shell start processes until it cannot, and returns how many those are.
func forks(t *testing.T, s sandbox.Sandbox) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result, err := s.Exec(ctx, sandbox.Cmd{
		Argv: []string{"bash", "-c", "n=0; while sleep 1000 & do echo $((n += 1)); done"}, Limits: sandbox.Limits{Grace: 10 * time.Millisecond},
		Live: func(stream sandbox.Stream, _ []byte) {
			if stream == sandbox.Stderr { // it cannot, and will try again
				cancel()
			}
		},
	})
	require.NoError(t, err)
	lines := strings.Fields(string(result.Stdout.Data))
	require.NotEmpty(t, lines, "%s: %s", result.Reason, result.Stderr.Data)
	n, err := strconv.Atoi(lines[len(lines)-1])
	require.NoError(t, err)
	return n
}

// TestPriority_LongCommandsMakeWay: a command that has run for a while, and what it has started
// in sessions of its own, has a lower priority than one that begins, beside it or later.
func TestPriority_LongCommandsMakeWay(t *testing.T) {
	t.Parallel()
	s := limited(t, sandbox.Limits{})
	short := requireShort(t, s)
	const script = `makes_way='until [ $(nice) -gt %d ]; do sleep 0.1; done; nice'; (setsid sh -c "$makes_way" >other) & eval "$makes_way"; wait; cat other`
	require.Equal(t, []int{short + 5, short + 5}, numbers(t, run(t, s, fmt.Sprintf(script, short))))
	requireShort(t, s)
}

// requireShort checks that a command that begins has the priority of its sandbox, which is this
// process's, and returns that. On a busy machine some take so long that they have less.
func requireShort(t *testing.T, s sandbox.Sandbox) (priority int) {
	t.Helper()
	const none = 20 // is how the kernel tells of no niceness
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return slices.Equal([]int{none - raw}, numbers(t, run(t, s, "nice"))) }, time.Minute, time.Millisecond)
	return none - raw
}

// TestPriority_ManyProcessesMakeWayCompletely: a command that is very many processes has the lowest
// priority, and none that comes after it.
func TestPriority_ManyProcessesMakeWayCompletely(t *testing.T) {
	t.Parallel()
	s := limited(t, sandbox.Limits{})
	requireShort(t, s)
	const script = `for i in $(seq 100); do sleep 60 & done; for i in $(seq 30); do [ $(nice) = 19 ] && break; sleep 0.1; done; nice`
	require.Eventually(t, func() bool { return slices.Equal([]int{19}, numbers(t, run(t, s, script))) }, time.Minute, time.Millisecond,
		"nobody looks any more at one that becomes many processes so late as on a very busy machine")
	requireShort(t, s)
}

func numbers(t *testing.T, r sandbox.Result) (all []int) {
	t.Helper()
	for field := range strings.FieldsSeq(string(r.Stdout.Data)) {
		n, err := strconv.Atoi(field)
		require.NoError(t, err)
		all = append(all, n)
	}
	return all
}
