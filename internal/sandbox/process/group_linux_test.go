package process_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
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
		_, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"bash", "-c", "echo; while [ ! -e end ]; do sleep 0.05; done"}, Live: func(sandbox.Stream, []byte) { close(started) }})
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
