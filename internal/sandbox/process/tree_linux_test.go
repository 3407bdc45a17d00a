package process_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

func openSandbox(tb testing.TB) sandbox.Sandbox {
	tb.Helper()
	s, err := process.New(nil).Open(tb.Context(), isolation.Spec{
		ID: "test", Workspace: tb.TempDir(), Scratch: tb.TempDir(),
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, s.Close()) })
	return s
}

func sh(tb testing.TB, s sandbox.Sandbox, script string) sandbox.Result {
	tb.Helper()
	result, err := s.Exec(tb.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", script}})
	require.NoError(tb, err)
	require.Zero(tb, result.ExitCode, "%s", result.Stderr.Data)
	return result
}

// children are the ids of the processes whose parent is this one.
func children(t *testing.T) []string {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	var pids []string
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); fields[1] == strconv.Itoa(os.Getpid()) {
			pids = append(pids, string(stat))
		}
	}
	return pids
}

//nolint:paralleltest // counts the children of the whole process
func TestExec_LeavesNoZombies(t *testing.T) {
	s := openSandbox(t)
	before := children(t)
	sh(t, s, `for i in $(seq 50); do (setsid true &); (env -i /usr/bin/setsid /bin/true &); (true &); done; sleep 0.2`)
	sh(t, s, `for i in $(seq 50); do (setsid sleep 100 &); (env -i /usr/bin/setsid /bin/sleep 100 &); done`)
	require.Equal(t, before, children(t))
}

//nolint:paralleltest // looks at children and descriptors of the whole process
func TestExec_LeavesForeignChildrenAlone(t *testing.T) {
	for name, attr := range map[string]*syscall.SysProcAttr{
		"in our session":          nil,
		"in a session of its own": {Setsid: true},
	} {
		foreign := exec.CommandContext(t.Context(), "sleep", "1000")
		foreign.SysProcAttr = attr
		require.NoError(t, foreign.Start())
		s := openSandbox(t)
		sh(t, s, `(setsid sleep 100 &) ; sleep 100 & (setsid true &)`)
		require.NoError(t, s.Close())
		require.NoError(t, foreign.Process.Signal(syscall.Signal(0)), name)
		require.NoError(t, foreign.Process.Kill())
		var exit *exec.ExitError
		require.ErrorAs(t, foreign.Wait(), &exit, "it is still ours to wait for")
	}
}

//nolint:paralleltest // counts the descriptors of the whole process
func TestExec_LeavesNoDescriptors(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(entries)
	}
	s := openSandbox(t)
	sh(t, s, "true")
	before := count()
	for range 20 {
		sh(t, s, "sleep 100 & echo x; echo y >&2")
		_, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"cat"}, Stdin: make([]byte, 1<<20), Limits: sandbox.Limits{Output: 1}})
		require.NoError(t, err)
		_, err = s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"missing"}})
		require.Error(t, err)
		_, err = s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true", strings.Repeat("x", 4<<20)}, Stdin: []byte("x")})
		require.Error(t, err)
	}
	require.Equal(t, before, count())
}

func TestExec_DescriptorsOfTheWorkerAreNotInherited(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	result := sh(t, openSandbox(t), "ls /proc/self/fd")
	require.Equal(t, "0\n1\n2\n3\n", string(result.Stdout.Data), "3 is the directory that ls reads")
	result = sh(t, openSandbox(t), "ps -o sid= -p $$; echo $$")
	lines := strings.Fields(string(result.Stdout.Data))
	require.Equal(t, lines[0], lines[1], "it leads a session of its own")
}

func BenchmarkExec_True(b *testing.B) {
	s := openSandbox(b)
	b.Run("plain", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, exec.CommandContext(b.Context(), "/bin/true").Run())
		}
	})
	b.Run("sandbox", func(b *testing.B) {
		for b.Loop() {
			_, err := s.Exec(b.Context(), sandbox.Cmd{Argv: []string{"true"}})
			require.NoError(b, err)
		}
	})
	b.Run("beside another command", func(b *testing.B) {
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan struct{})
		started := make(chan struct{}, 1)
		go func() {
			defer close(done)
			_, _ = s.Exec(ctx, sandbox.Cmd{
				Argv: []string{"sh", "-c", "echo; sleep 1000"}, Limits: sandbox.Limits{Grace: time.Millisecond},
				Live: func(sandbox.Stream, []byte) { started <- struct{}{} },
			})
		}()
		<-started
		for b.Loop() {
			_, err := s.Exec(b.Context(), sandbox.Cmd{Argv: []string{"true"}})
			require.NoError(b, err)
		}
		cancel()
		<-done
	})
}

// requireGroups skips a test where there are no control groups, and for root, as who nothing runs
// without isolation.
func requireGroups(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Skip("UNSUPPORTED: without isolation nothing runs as root")
	}
	sandboxtest.RequireGroups(t, cgroup.Find)
}

func limited(t *testing.T, limits sandbox.Limits) sandbox.Sandbox {
	t.Helper()
	s, err := process.New(nil).Open(t.Context(), isolation.Spec{
		ID: "limited", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"}, Limits: limits,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func run(t *testing.T, s sandbox.Sandbox, script string) sandbox.Result {
	t.Helper()
	result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"bash", "-c", script}})
	require.NoError(t, err)
	return result
}

// running reports whether a process with these words lives.
func running(t *testing.T, words ...string) bool {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	want := []byte(strings.Join(words, "\x00") + "\x00")
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && bytes.Equal(text, want) {
			return true
		}
	}
	return false
}

func TestGroup_IsWhatTheDriverProves(t *testing.T) { //nolint:paralleltest // the machine is slow
	requireGroups(t)
	caps, err := process.New(nil).Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, isolation.LimitCgroup, caps.Limits.Memory, caps.Warnings)
	require.Equal(t, isolation.LimitCgroup, caps.Limits.Processes)
}

// TestGroup_LimitsAreHard: of the processes together, with the right reason, and the sandbox goes
// on.
func TestGroup_LimitsAreHard(t *testing.T) { //nolint:paralleltest // as above
	requireGroups(t)
	s := limited(t, sandbox.Limits{Memory: 48 << 20, Processes: 30, Wall: time.Minute})
	for _, script := range []string{`exec tail /dev/zero`, `tail /dev/zero; sleep 1000`, `(setsid tail /dev/zero &); sleep 1000`} {
		result := run(t, s, script)
		require.Equal(t, sandbox.ReasonOOM, result.Reason, "%s: exit code %d, signal %s: %s", script, result.ExitCode, result.Signal, result.Stderr.Data)
		require.Equal(t, string(isolation.LimitCgroup), result.LimitKinds["memory"])
	}
	result := run(t, s, `for i in $(seq 60); do sleep 1000 & done; echo done`)
	require.NotEqual(t, "done\n", string(result.Stdout.Data), "60 of 30 processes")
	result = run(t, s, "echo fine")
	require.Equal(t, "fine\n", string(result.Stdout.Data), "%s", result.Stderr.Data)
}

// hides starts a process that shows nothing of whose it is: another session, limit and environment,
// and no parent. The command goes on when it is so.
const hides = `(setsid env -i /bin/bash -c 'ulimit -S -R 12345; : >hidden; exec sleep '$0 &) ; until [ -e hidden ]; do sleep 0.01; done; rm hidden`

// TestExec_NothingHides from the end of its command, alone or beside another one.
func TestExec_NothingHides(t *testing.T) {
	t.Parallel()
	s := limited(t, sandbox.Limits{})
	result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"bash", "-c", hides, "98761"}})
	require.NoError(t, err)
	require.Zero(t, result.ExitCode, "%s", result.Stderr.Data)
	require.False(t, running(t, "sleep", "98761"))
	beside, started := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := s.Exec(t.Context(), sandbox.Cmd{
			Argv: []string{"bash", "-c", "echo; while [ ! -e end ]; do sleep 0.05; done"}, Live: func(sandbox.Stream, []byte) { close(started) },
		})
		beside <- err
	}()
	<-started
	_, err = s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"bash", "-c", hides, "98762"}})
	require.NoError(t, err)
	require.False(t, running(t, "sleep", "98762"))
	_, err = s.FS().Write(t.Context(), protocol.FilesWrite{Path: "end"})
	require.NoError(t, err)
	require.NoError(t, <-beside)
}
