package worker_test

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/process"
)

// trusting takes the driver process for one that enforces read-only commands: the
// tests that use it are about who may run beside whom.
type trusting struct{ sandbox.Driver }

type trustingSandbox struct{ sandbox.Sandbox }

func (d trusting) Open(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	s, err := d.Driver.Open(ctx, spec)
	return trustingSandbox{s}, err
}

func (s trustingSandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	cmd.ReadOnly = false
	return s.Sandbox.Exec(ctx, cmd)
}

func (r *rig) trustingOptions() worker.Options {
	o := r.options()
	o.Driver = trusting{process.New(nil)}
	o.Caps = sandbox.Caps{Driver: "process", ReadOnly: true}
	return o
}

// readOnly makes a call as the tools plan one.
func readOnly(session protocol.SessionID, command string) protocol.Call {
	call := newCall(session, protocol.CommandRun{Command: command, ReadOnly: true})
	call.Resources[0].Access = protocol.Shared
	return call
}

// TestReadOnly_CommandsOfOneSandboxRunSideBySide has three commands that wait for each other.
func TestReadOnly_CommandsOfOneSandboxRunSideBySide(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.trustingOptions())
	session := protocol.NewSessionID()
	requireOK(t, r.do(session, protocol.CommandRun{Command: "mkfifo a b"}))
	calls := []protocol.Call{
		readOnly(session, "echo one >a"),
		readOnly(session, "read x <a && echo $x two >b"),
		readOnly(session, "read x <b && echo $x three"),
	}
	results := r.all(calls)
	for _, call := range calls {
		requireOK(t, results[call.ID])
	}
	require.Equal(t, "one two three\n", string(value[protocol.CommandRunResult](t, results[calls[2].ID]).Stdout))
}

// TestReadOnly_CommandsKeepTheirPlaceBetweenOthers: each sees what came before it and
// nothing of what comes after, though all of them are dispatched at once.
func TestReadOnly_CommandsKeepTheirPlaceBetweenOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.trustingOptions()
	o.Slots = 8
	r.work(o)
	session := protocol.NewSessionID()
	var calls []protocol.Call
	var want []string
	for i := range 10 {
		text := strings.Repeat("x", i)
		calls = append(calls, newCall(session, protocol.CommandRun{Command: "printf '" + text + "' >f"}))
		want = append(want, "")
		for range 3 {
			calls = append(calls, readOnly(session, "cat f"))
			want = append(want, text)
		}
	}
	results := r.all(calls)
	for i, call := range calls {
		requireOK(t, results[call.ID])
		require.Equal(t, want[i], string(value[protocol.CommandRunResult](t, results[call.ID]).Stdout), "call %d", i)
	}
}

func TestReadOnly_IsRefusedWhereItIsNotEnforced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Caps.ReadOnly = true // a driver that says what it cannot keep
	o.Workspace = func(string) (string, bool) { return t.TempDir(), true }
	r.work(o)
	got := r.dispatch(t.Context(), readOnly(protocol.NewSessionID(), "touch f"))
	requireFault(t, got, protocol.StatusRejected, protocol.CodeSandboxUnsupported)
	require.Contains(t, got.Error.Message, "nothing was run")
}

func TestCommand_Limits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Caps.Limits = sandbox.LimitKinds{CPU: sandbox.LimitQuota} // what held for a command counts, not what the worker expects
	r.work(o)
	for name, test := range map[string]struct {
		command string
		limits  protocol.Limits
		status  protocol.Status
		code    protocol.Code
		reason  string
		says    string
	}{
		"wall": {
			"printf partial; exec sleep 300",
			protocol.Limits{Wall: 6000},
			protocol.StatusTimeout, protocol.CodeRunTimeout, "timeout", "it may run for 6s, whatever timeout is asked for",
		},
		"processor": {
			"printf partial; while :; do :; done",
			protocol.Limits{CPU: 1000},
			protocol.StatusTimeout, protocol.CodeRunTimeout, "timeout", "a process may have 1s on the processor",
		},
		"output": {
			"printf partial; exec yes",
			protocol.Limits{Output: 1024},
			protocol.StatusFailed, protocol.CodeOutputLimit, "output_limit", "wrote too much (4096 bytes at most)",
		},
		"file size": {
			"printf partial; while :; do printf '%1000s' x >>f; done",
			protocol.Limits{FileSize: 1000},
			protocol.StatusFailed, protocol.CodeDiskLimit, "disk_limit", "to one file (1000 bytes at most)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rigOf(t, r.Fleet)
			got := r.do(protocol.NewSessionID(), protocol.CommandRun{Command: test.command, Limits: test.limits})
			requireFault(t, got, test.status, test.code)
			require.Contains(t, got.Error.Message, test.says)
			v := value[protocol.CommandRunResult](t, got)
			require.Equal(t, test.reason, v.Reason)
			require.True(t, strings.HasPrefix(string(v.Stdout), "partial"), "%s", v.Stdout)
			require.NotEmpty(t, v.LimitKinds["cpu"])
			require.NotEqual(t, string(sandbox.LimitQuota), v.LimitKinds["cpu"])
			require.Equal(t, "none", got.Level)
		})
	}
}

func TestCommand_TheWorkersLimitsCannotBeWidened(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Limits = sandbox.Limits{Wall: 6 * time.Second, Output: 2000}
	r.work(o)
	session := protocol.NewSessionID()
	got := r.do(session, protocol.CommandRun{Command: "seq 1000; sleep 300", Limits: protocol.Limits{Wall: 60_000, Output: 1 << 20}})
	requireFault(t, got, protocol.StatusTimeout, protocol.CodeRunTimeout)
	require.True(t, value[protocol.CommandRunResult](t, got).Truncated)
}

func TestCommand_StreamsAreKeptApartAndTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	got := r.do(session, protocol.CommandRun{Command: "echo 1; echo 2 >&2; echo 3; echo 4 >&2"})
	requireOK(t, got)
	v := value[protocol.CommandRunResult](t, got)
	require.Equal(t, []string{"1\n3\n", "2\n4\n", "1\n2\n3\n4\n"}, []string{string(v.Stdout), string(v.Stderr), string(v.Combined)})
	got = r.do(session, protocol.CommandRun{Command: "echo 1 >&2"})
	require.Empty(t, value[protocol.CommandRunResult](t, got).Combined, "it would say nothing new")
}

func TestCommand_OutputThatIsCutIsKeptWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	got := r.do(session, protocol.CommandRun{Command: "seq 1 2000; seq 3000 3999 >&2", Limits: protocol.Limits{Output: 4000}})
	requireOK(t, got)
	v := value[protocol.CommandRunResult](t, got)
	require.True(t, v.Truncated)
	require.Less(t, len(v.Stdout), 4100)
	require.NotNil(t, got.Kept)
	whole := value[protocol.CommandRunResult](t, &protocol.Result{Value: r.stored(t, got)})
	require.False(t, whole.Truncated)
	require.Len(t, whole.Stdout, int(whole.StdoutBytes))
	require.Len(t, whole.Stderr, int(whole.StderrBytes))
	require.Len(t, whole.Combined, len(whole.Stdout)+len(whole.Stderr))
	require.True(t, bytes.HasSuffix(whole.Stdout, []byte("\n2000\n")))
	require.True(t, bytes.HasPrefix(whole.Stderr, []byte("3000\n3001\n")))

	bomb := r.do(session, protocol.CommandRun{Command: "yes", Limits: protocol.Limits{Output: 4000}})
	requireFault(t, bomb, protocol.StatusFailed, protocol.CodeOutputLimit)
	whole = value[protocol.CommandRunResult](t, &protocol.Result{Value: r.stored(t, bomb)})
	require.True(t, whole.Truncated, "as much as it may write, and not what it would have written")
	require.Len(t, whole.Stdout, 16_000)
}

// stored is the value that is kept of a result.
func (r *rig) stored(t *testing.T, result *protocol.Result) protocol.Value {
	t.Helper()
	store, err := r.JS.ObjectStore(t.Context(), r.Name.KeptBucket())
	require.NoError(t, err)
	body, err := store.GetBytes(t.Context(), protocol.KeptValue(result.SessionID, result.CallID))
	require.NoError(t, err)
	v, err := protocol.DecodeValue(body)
	require.NoError(t, err)
	return v
}

// TestCommand_CloseOfTheSandboxIsNoFailureOfTheCommand covers a sandbox that goes away under a
// command.
func TestCommand_CloseOfTheSandboxIsNoFailureOfTheCommand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	opened := make(chan sandbox.Sandbox, 1)
	o.Driver = &announcing{o.Driver, opened}
	r.work(o)
	session := protocol.NewSessionID()
	done := make(chan map[protocol.CallID]*protocol.Result, 1)
	call := newCall(session, protocol.CommandRun{Command: slow})
	go func() { done <- r.all([]protocol.Call{call}) }()
	awaitFile(t, filepath.Join(workspaceOf(o.Data, session), "pid"))
	require.NoError(t, (<-opened).Close())
	got := (<-done)[call.ID]
	requireFault(t, got, protocol.StatusFailed, protocol.CodeSandboxLost)
	requirePartial(t, got, "cancelled")
}

// announcing is a driver that tells the sandboxes that it opens.
type announcing struct {
	sandbox.Driver

	opened chan sandbox.Sandbox
}

func (d *announcing) Open(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	s, err := d.Driver.Open(ctx, spec)
	if err == nil && spec.ID != "probe" {
		d.opened <- s
	}
	return s, err
}
