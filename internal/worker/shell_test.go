package worker_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
	require.Equal(t, []string{"d\n"}, r.inShell(t, session, protocol.CommandRun{Command: pipe + "; trap - EXIT; cd ../e"}, protocol.CommandRun{Command: `basename "$PWD"`})[1:])
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
