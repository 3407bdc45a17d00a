//go:build linux

package ns_test

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

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
