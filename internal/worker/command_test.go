package worker_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// altered is a driver whose commands are changed before they run, and their results afterwards.
type altered struct {
	isolation.Driver

	before func(*sandbox.Cmd)
	after  func(*sandbox.Result)
}

type alteredSandbox struct {
	sandbox.Sandbox

	driver altered
}

func (d altered) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	s, err := d.Driver.Open(ctx, spec)
	return alteredSandbox{s, d}, err
}

func (s alteredSandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	if s.driver.before != nil {
		s.driver.before(&cmd)
	}
	result, err := s.Sandbox.Exec(ctx, cmd)
	if s.driver.after != nil {
		s.driver.after(&result)
	}
	return result, err
}

// trustingOptions take the driver process for one that enforces read-only commands: the tests that
// use them are about who may run beside whom.
func (r *rig) trustingOptions() worker.Options {
	o := r.options()
	o.Driver = altered{Driver: process.New(nil), before: func(cmd *sandbox.Cmd) { cmd.ReadOnly = false }}
	o.Caps = isolation.Caps{Driver: "process", ReadOnly: true}
	return o
}

func TestCommand_WhoWasSlowedDownIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Driver = altered{Driver: process.New(nil), after: func(r *sandbox.Result) { r.Combined.Throttled = 2340 * time.Millisecond }}
	r.work(o)
	want := []string{"This command was slowed down for 2.3s: after 256 MiB of output it is read at 64 MiB a second. Write less, or to a file."}
	ran := r.do(protocol.NewSessionID(), protocol.CommandRun{Command: "true"})
	requireOK(t, ran)
	require.Equal(t, want, value[protocol.CommandRunResult](t, ran).Notes)
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
	requireFault(t, got, protocol.StatusRejected, codes.SandboxUnsupported)
	require.Contains(t, got.Error.Message, "nothing was run")
}

func TestCommand_Limits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Caps.Limits = isolation.LimitKinds{CPU: isolation.LimitNone} // what held for a command counts, not what the worker expects
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
			protocol.Limits{Output: 1024, Wall: 2000},
			protocol.StatusTimeout, protocol.CodeRunTimeout, "timeout", "it may run for 2s",
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
			require.NotEqual(t, string(isolation.LimitNone), v.LimitKinds["cpu"])
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

// TestCommand_OutputNeverEndsIt: of a command that writes far more than a model is shown, the next
// one of the line runs, and all that it wrote can be read.
func TestCommand_OutputNeverEndsIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	got := r.do(session, protocol.CommandRun{Command: "seq 1 200000 && echo made >made && cat made; seq 7 9 >&2"})
	requireOK(t, got)
	v := value[protocol.CommandRunResult](t, got)
	require.True(t, v.Truncated)
	require.Equal(t, []int64{1_288_900, 200_001, 6, 3}, []int64{v.StdoutBytes, v.StdoutLines, v.StderrBytes, v.StderrLines})
	require.True(t, bytes.HasSuffix(v.Stdout, []byte("\n200000\nmade\n")))
	require.Equal(t, &protocol.Kept{}, got.Kept)
	requireOK(t, r.do(session, protocol.FilesRead{Path: "made"}))
	for part, want := range map[string]struct{ lines, bytes int }{
		"": {200_004, 1_288_906}, wire.PartOutput: {200_004, 1_288_906}, wire.PartStdout: {200_001, 1_288_900}, wire.PartStderr: {3, 6},
	} {
		page := value[wire.ResultReadResult](t, r.kept(session, wire.ResultRead{CallID: got.CallID, Part: part, Offset: 3, Limit: 1}))
		require.Equal(t, []int{want.lines, want.bytes}, []int{page.TotalLines, int(page.Bytes)}, part)
		require.Equal(t, map[bool]string{true: "9\n", false: "3\n"}[part == wire.PartStderr], string(page.Content))
	}
	middle := value[wire.ResultReadResult](t, r.kept(session, wire.ResultRead{CallID: got.CallID, Offset: 123_456, Limit: 1}))
	require.Equal(t, "123456\n", string(middle.Content))
}

// TestCommand_OfVeryMuchOutputHeadAndTailAreKept, and the result says so.
func TestCommand_OfVeryMuchOutputHeadAndTailAreKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	session := protocol.NewSessionID()
	got := r.do(session, protocol.CommandRun{Command: "seq 1 10000000; echo end"})
	requireOK(t, got)
	require.Equal(t, &protocol.Kept{Truncated: true}, got.Kept)
	v := value[protocol.CommandRunResult](t, got)
	require.Equal(t, []int64{78_888_901, 10_000_001}, []int64{v.StdoutBytes, v.StdoutLines})
	page := value[wire.ResultReadResult](t, r.kept(session, wire.ResultRead{CallID: got.CallID, Part: wire.PartStdout, Offset: 4_000_000, Limit: 1}))
	require.Equal(t, "4000000\n", string(page.Content))
	require.Less(t, page.Bytes, int64(64<<20))
	page = value[wire.ResultReadResult](t, r.kept(session, wire.ResultRead{CallID: got.CallID, Offset: page.TotalLines - 1}))
	require.Equal(t, "10000000\nend\n", string(page.Content))
	left, err := os.ReadDir(filepath.Join(o.Data, "spool"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestCommand_CloseOfTheSandboxIsNoFailureOfTheCommand covers a sandbox that goes away under a
// command.
func TestCommand_CloseOfTheSandboxIsNoFailureOfTheCommand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, dir := r.inPlace()
	opened := make(chan sandbox.Sandbox, 1)
	o.Driver = &announcing{o.Driver, opened}
	r.work(o)
	session := protocol.NewSessionID()
	done := make(chan map[protocol.CallID]*protocol.Result, 1)
	call := newCall(session, protocol.CommandRun{Command: slow})
	go func() { done <- r.all([]protocol.Call{call}) }()
	awaitFile(t, filepath.Join(dir, "pid"))
	require.NoError(t, (<-opened).Close())
	got := (<-done)[call.ID]
	requireFault(t, got, protocol.StatusFailed, protocol.CodeSandboxLost)
	requirePartial(t, got, "cancelled")
}

// announcing is a driver that tells the sandboxes that it opens.
type announcing struct {
	isolation.Driver

	opened chan sandbox.Sandbox
}

func (d *announcing) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	s, err := d.Driver.Open(ctx, spec)
	if err == nil && spec.ID != "probe" {
		d.opened <- s
	}
	return s, err
}
