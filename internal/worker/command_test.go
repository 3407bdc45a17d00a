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

// inShell runs commands of the sandbox's shell, one after another, and returns what they said.
func (r *rig) inShell(t *testing.T, session protocol.SessionID, commands ...protocol.CommandRun) []string {
	t.Helper()
	said := make([]string, len(commands))
	for i, command := range commands {
		command.KeepShell = true
		got := r.do(session, command)
		requireOK(t, got)
		v := value[protocol.CommandRunResult](t, got)
		require.Empty(t, string(v.Stderr), command.Command)
		said[i] = string(v.Stdout)
	}
	return said
}

func testShell(t *testing.T, options func(*rig) worker.Options) {
	t.Helper()
	r := newRig(t)
	o := options(r)
	o.Linger = -1 // every command has a sandbox of its own
	_, stop := r.work(o)
	session := protocol.NewSessionID()
	said := r.inShell(t, session,
		protocol.CommandRun{Command: "mkdir -p 'a b/c'; cd 'a b'; export X='1\n2' Y=y PATH=$PATH:/nowhere; Z=z"},
		protocol.CommandRun{Command: `basename "$PWD"; echo "$X$Y${Z:-none}"; case $PATH in *:/nowhere) echo kept;; esac; cd c`, Env: map[string]string{"Y": "given"}},
		protocol.CommandRun{Command: `basename "$PWD"; echo $Y`},
		protocol.CommandRun{Command: "ls", Cwd: "a b"},
		protocol.CommandRun{Command: `basename "$PWD"`},
		protocol.CommandRun{Command: "cd c && (exit 3) || exit 0"},
		protocol.CommandRun{Command: `basename "$PWD"; echo "$#$0" | grep -c toolfleet || true; unset X; cd ..; rmdir c`},
		protocol.CommandRun{Command: `basename "$PWD"; echo ${X:-unset}`},
	)
	require.Equal(t, []string{"", "a b\n1\n2givennone\nkept\n", "c\ny\n", "c\n", "a b\n", "", "c\n0\n", "a b\nunset\n"}, said)

	// Another worker with the directory goes on; a directory that is gone is none.
	stop()
	r.work(o)
	require.Equal(t, []string{"a b\n", ""}, r.inShell(t, session,
		protocol.CommandRun{Command: `basename "$PWD"`}, protocol.CommandRun{Command: `mkdir ../gone && cd ../gone`},
	))
	requireOK(t, r.do(session, protocol.CommandRun{Command: "rmdir gone"}))
	require.Equal(t, []string{"here\n"}, r.inShell(t, session, protocol.CommandRun{Command: `[ -d "a b" ] && echo here`}))
	require.Equal(t, []string{"new\n"}, r.inShell(t, protocol.NewSessionID(), protocol.CommandRun{Command: "echo ${Y:-new}"}), "others have their own")
}

// testLongCommand runs commands that are longer than an argument of a program may be.
func testLongCommand(t *testing.T, options func(*rig) worker.Options) {
	t.Helper()
	r := newRig(t)
	r.work(options(r))
	session := protocol.NewSessionID()
	long := "x='" + strings.Repeat("a", 3<<20) + "'; export y=${#x}; read -r line || line=none; echo $y $line $#; cat; ls -A \"${TMPDIR:-/tmp}\""
	for _, keep := range []bool{false, true} {
		for stdin, want := range map[string]string{"": "3145728 none 0\n", "one\ntwo\n": "3145728 one 0\ntwo\n"} {
			got := r.do(session, protocol.CommandRun{Command: long, Stdin: protocol.Bytes(stdin), KeepShell: keep})
			requireOK(t, got)
			v := value[protocol.CommandRunResult](t, got)
			require.Empty(t, string(v.Stderr))
			require.Equal(t, want, strings.ReplaceAll(string(v.Stdout), ".toolfleet-shell\n", ""))
		}
	}
	require.Equal(t, []string{"3145728\n"}, r.inShell(t, session, protocol.CommandRun{Command: "echo $y"}), "the shell's state is kept")
	got := r.do(session, protocol.CommandRun{Command: "#" + strings.Repeat("a", 128<<10-2)})
	requireOK(t, got)
	got = r.do(session, protocol.CommandRun{Command: long, Background: true, TTY: true})
	require.Equal(t, codes.InvalidPayload, got.Error.Code)
	require.Contains(t, got.Error.Message, "at most 131071")
}

func TestCommand_LongerThanAnArgument(t *testing.T) {
	t.Parallel()
	testLongCommand(t, func(r *rig) worker.Options { return r.options() })
}

func TestIsolated_LongCommand(t *testing.T) {
	t.Parallel()
	testLongCommand(t, func(r *rig) worker.Options { return r.isolatedOptions(t) })
}

func TestShell_KeepsBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.trustingOptions())
	require.Equal(t, []string{"", "b\xff 1\xff=\n2"}, r.inShell(t, protocol.NewSessionID(),
		protocol.CommandRun{Command: `d=$(printf 'b\377'); mkdir "$d" && cd "$d"; export X="$(printf '1\377=\n2')"`},
		protocol.CommandRun{Command: `printf '%s %s' "${PWD##*/}" "$X"`},
	))
}

func TestShell_IsKeptBetweenCommands(t *testing.T) {
	t.Parallel()
	testShell(t, (*rig).options)
}

func TestIsolated_ShellIsKeptBetweenCommands(t *testing.T) {
	t.Parallel()
	testShell(t, func(r *rig) worker.Options { return r.isolatedOptions(t) })
}

func TestShell_ExitCodesAndWhatKeepsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.trustingOptions()
	r.work(o)
	session := protocol.NewSessionID()
	r.inShell(t, session, protocol.CommandRun{Command: "mkdir d e; cd d; export X=1"})
	for command, code := range map[string]int{"exit 3": 3, "false": 1, "set -e; false; true": 1, "no-such-program": 127, "kill -9 $$": -1, "(": -2} {
		got := r.do(session, protocol.CommandRun{Command: command, KeepShell: true})
		requireOK(t, got)
		if code == -2 {
			require.NotZero(t, value[protocol.CommandRunResult](t, got).ExitCode)
			continue
		}
		require.Equal(t, code, value[protocol.CommandRunResult](t, got).ExitCode, command)
	}
	const pipe = `rm -f "${TMPDIR:-/tmp}/.toolfleet-shell"; mkfifo "${TMPDIR:-/tmp}/.toolfleet-shell"`
	require.Equal(t, []string{"d\n"},
		r.inShell(t, session, protocol.CommandRun{Command: pipe + "; trap - EXIT; cd ../e"}, protocol.CommandRun{Command: `basename "$PWD"`})[1:])
	requireOK(t, r.do(session, protocol.CommandRun{Command: pipe})) // which nobody looks at
	require.Equal(t, []string{"d\n"}, r.inShell(t, session, protocol.CommandRun{Command: `basename "$PWD"`}))
	call := readOnly(session, "cd ../e; export X=2; pwd >/dev/null; echo $X")
	payload := protocol.CommandRun{Command: "cd ../e; export X=2; echo $X", ReadOnly: true, KeepShell: true}
	call.Payload = payload
	requireOK(t, r.dispatch(t.Context(), call))
	requireOK(t, r.do(session, protocol.CommandRun{Command: `[ "$X" = 1 ]; cd ../e`, Background: true, KeepShell: true}))
	requireOK(t, r.do(session, protocol.CommandRun{Command: "cd ../e; export X=3"})) // without keep_shell
	require.Equal(t, []string{"d\n1\n"}, r.inShell(t, session, protocol.CommandRun{Command: `basename "$PWD"; echo $X`}))
	requireFault(t, r.do(session, protocol.CommandRun{Argv: []string{"true"}, KeepShell: true}), protocol.StatusRejected, codes.InvalidPayload)

	require.NoError(t, os.WriteFile(o.Data+"/sandboxes/"+string(session)+"/shell", []byte("{"), 0o600))
	require.Equal(t, []string{"new\n"}, r.inShell(t, session, protocol.CommandRun{Command: "echo ${X:-new}"}), "a state that cannot be read is none")
}
