package worker_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// isolatedOptions are those of a worker whose sandboxes isolate.
func (r *rig) isolatedOptions(t *testing.T) worker.Options {
	t.Helper()
	o := r.options()
	opened, caps, err := drivers.Open(t.Context(), drivers.Auto, nil)
	if err != nil && os.Getenv("TOOLFLEET_INTEGRATION") != "required" {
		t.Skipf("NOT TESTED: no driver isolates here: %v", err)
	}
	require.NoError(t, err)
	o.Driver, o.Caps = opened, caps
	return o
}

func TestIsolated_ReadOnlyCommandsChangeNothingAndRunSideBySide(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.isolatedOptions(t)
	if !o.Caps.ReadOnly {
		t.Skip("NOT TESTED: read-only commands are not enforced here")
	}
	r.work(o)
	session := protocol.NewSessionID()
	requireOK(t, r.do(session, protocol.CommandRun{Command: "mkdir d && echo old >d/f && ln -s d/f link && mkfifo /tmp/a"}))
	for _, change := range []string{
		"echo new >d/f", "echo new >>link", "rm d/f", "mv d e", "mkdir x", "touch x", "ln d/f x", "truncate -s 0 d/f", "chmod 777 d/f", "mkfifo x",
		"sh -c 'echo new >d/f'", "cd d && echo new >f",
	} {
		got := r.dispatch(t.Context(), readOnly(session, change))
		requireOK(t, got)
		require.NotZero(t, value[protocol.CommandRunResult](t, got).ExitCode, change)
	}
	calls := []protocol.Call{
		readOnly(session, "echo 1 >/tmp/a; cat d/f"),
		readOnly(session, "read x </tmp/a && echo got $x"),
	}
	results := r.all(calls)
	require.Equal(t, "old\n", string(value[protocol.CommandRunResult](t, results[calls[0].ID]).Stdout))
	require.Equal(t, "got 1\n", string(value[protocol.CommandRunResult](t, results[calls[1].ID]).Stdout))
	after := r.do(session, protocol.CommandRun{Command: "cat d/f; ls | tr '\\n' ' '; stat -c %a d/f"})
	require.Equal(t, "old\nd link 644\n", string(value[protocol.CommandRunResult](t, after).Stdout))
}

func TestIsolated_LanguagesAreThoseOfTheSandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.isolatedOptions(t)
	w, _ := r.work(o)
	require.Contains(t, w.Languages(), "sh")
	session := protocol.NewSessionID()
	for language, code := range map[string]string{
		"python": "print(6*7)", "sh": "echo $((6*7))", "node": "console.log(6*7)", "cobol": "DISPLAY 42",
	} {
		got := r.do(session, protocol.CodeRun{Code: code, Language: language})
		if !strings.Contains(strings.Join(w.Languages(), " "), language) {
			requireFault(t, got, protocol.StatusRejected, codes.Language)
			require.Contains(t, got.Error.Message, "it has: "+strings.Join(w.Languages(), ", "))
			continue
		}
		requireOK(t, got)
		v := value[protocol.CodeRunResult](t, got)
		require.Equal(t, "42\n", string(v.Stdout), "%s: %s", language, v.Stderr)
	}
	require.Zero(t, value[protocol.FilesListResult](t, r.do(session, protocol.FilesList{})).Total, "nothing is left in the workspace")
}

func TestIsolated_BackgroundProcessesServeOtherCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.isolatedOptions(t)
	o.Linger = -1
	w, _ := r.work(o)
	if !strings.Contains(strings.Join(w.Languages(), " "), "python") {
		t.Skip("NOT TESTED: there is no python for a server")
	}
	session := protocol.NewSessionID()
	got := r.do(session, protocol.CommandRun{Command: "echo hello >index.txt; exec python3 -u -m http.server --bind 127.0.0.1 8000", Background: true})
	requireOK(t, got)
	handle := value[protocol.CommandRunResult](t, got).Process
	requireOK(t, r.do(session, wire.ProcessRead{Process: handle, Wait: 60_000})) // it says that it serves
	client := "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/index.txt').read().decode())"
	fetched := r.do(session, protocol.CodeRun{Code: client, Language: "python"})
	requireOK(t, fetched)
	require.Equal(t, "hello\n\n", string(value[protocol.CodeRunResult](t, fetched).Stdout), "%s", value[protocol.CodeRunResult](t, fetched).Stderr)
	require.Equal(t, "cancelled", value[wire.ProcessKillResult](t, r.do(session, wire.ProcessKill{Process: handle})).Reason)
	refused := r.do(session, protocol.CodeRun{Code: client, Language: "python"})
	require.NotZero(t, value[protocol.CodeRunResult](t, refused).ExitCode)
}

// unresolved is a command that fails as curl does without a network, on hosts without curl, too.
const unresolved = "echo 'curl: (6) Could not resolve host: other.invalid' >&2; exit 6"

func TestIsolated_AFailureForWantOfANetworkIsExplained(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.isolatedOptions(t))
	session := protocol.NewSessionID()
	notes := func(p protocol.Payload) []string {
		got := r.do(session, p)
		requireOK(t, got)
		return plain.Execution(got.Value).Notes
	}
	want := []string{"This sandbox has no network: commands reach nothing outside of it. The operator of the worker can allow more with --allow-net."}
	for _, failed := range []protocol.Payload{
		protocol.CommandRun{Command: unresolved},
		protocol.CommandRun{Argv: []string{"sh", "-c", unresolved}},
		protocol.CommandRun{Command: "echo 'npm error code ENOTFOUND'; exit 1"},
		protocol.CommandRun{Command: "echo 'WARNING: Temporary failure in name resolution' >&2; echo more"},
		protocol.CodeRun{Code: unresolved, Language: "sh"},
	} {
		require.Equal(t, want, notes(failed))
	}
	for _, other := range []string{"echo no such file >&2; exit 1", "echo ENOTFOUND; true"} {
		require.Empty(t, notes(protocol.CommandRun{Command: other}), other)
	}
	if _, err := exec.LookPath("curl"); err == nil {
		require.Equal(t, want, notes(protocol.CommandRun{Command: "curl -sS https://example.com"}))
	}
}

func TestIsolated_AFailureToReachAnUnlistedHostNamesTheListedOnes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.isolatedOptions(t)
	if !o.Caps.Enforces(isolation.NetworkProxy) {
		t.Skip("NOT TESTED: no list of hosts is enforced here")
	}
	var err error
	o.Allow, err = egress.ParseAllow("allowed.invalid,*.example.invalid:8080")
	require.NoError(t, err)
	r.work(o)
	got := r.do(protocol.NewSessionID(), protocol.CommandRun{Command: unresolved})
	requireOK(t, got)
	require.Equal(t, []string{
		"This sandbox reaches only *.example.invalid:8080,allowed.invalid:443,allowed.invalid:80. The operator of the worker can allow more with --allow-net.",
	},
		plain.Execution(got.Value).Notes)
}

// TestIsolated_ARepositoryInPlaceIsProtected also has one that commands make: that is theirs while
// the worker lives, and nobody's but the user's for the next one.
func TestIsolated_ARepositoryInPlaceIsProtected(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.isolatedOptions(t)
	if !o.Caps.Protect {
		t.Skip("NOT TESTED: no place can be protected here")
	}
	o.Linger = -1 // each call has a sandbox of its own
	dir, session := t.TempDir(), protocol.NewSessionID()
	o.Workspace = func(sandbox string) (string, bool) { return dir, sandbox == string(session) }
	_, stop := r.work(o)
	requireOK(t, r.do(session, protocol.CommandRun{Command: "mkdir -p .git/hooks .git/objects .git/refs && echo ref: refs/heads/main > .git/HEAD && echo a > .git/config"}))
	requireOK(t, r.do(session, protocol.FilesWrite{Path: ".git/config", Content: []byte("b")}))
	stop()
	_, stop = r.work(o)
	requireFault(t, r.do(session, protocol.FilesWrite{Path: ".git/config", Content: []byte("c")}), protocol.StatusFailed, codes.Protected)
	got := r.do(session, protocol.CommandRun{
		Command: "rm .git/config || mv .git x || echo c > .git/hooks/h || echo c > .git/index; cat .git/index; echo c > .git/config; cat .git/config",
	})
	requireOK(t, got)
	require.Equal(t, "c\nc\n", string(value[protocol.CommandRunResult](t, got).Stdout))
	content, err := os.ReadFile(filepath.Join(dir, ".git/config"))
	require.NoError(t, err)
	require.Equal(t, "b", string(content), "what commands write to is a copy")
	stop()
	o.Protect = []string{}
	r.work(o)
	requireOK(t, r.do(session, protocol.FilesWrite{Path: ".git/config", Content: []byte("c")}))
}

// TestIsolated_AnImportGoesIntoAWorkspaceWithProtectedPlaces: what keeps a place from being made
// does not make a workspace one that is used already.
func TestIsolated_AnImportGoesIntoAWorkspaceWithProtectedPlaces(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.isolatedOptions(t)
	if !o.Caps.Protect {
		t.Skip("NOT TESTED: no place can be protected here")
	}
	o.Protect = []string{"missing", "deep/missing", "f"}
	r.work(o)
	session := protocol.NewSessionID()
	in := r.upload(t, "archive", map[string]string{"f": "content"})
	for range 2 {
		requireOK(t, r.do(session, in))
		r.requireContent(session, "f", "content")
	}
	for _, name := range []string{"missing", "deep/missing", "f"} {
		requireFault(t, r.do(session, protocol.FilesWrite{Path: name, Content: []byte("c")}), protocol.StatusFailed, codes.Protected)
	}
}

// TestIsolated_ProgramsAreTalkedTo: a shell with a terminal of the sandbox's own does what people
// do there, and calls that follow see what it has done.
func TestIsolated_ProgramsAreTalkedTo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.isolatedOptions(t)
	r.work(o)
	session := protocol.NewSessionID()
	got := r.do(session, protocol.CommandRun{Command: "PS1='ready> ' exec sh -i", Background: true, TTY: true})
	requireOK(t, got)
	shell := value[protocol.CommandRunResult](t, got)
	require.Equal(t, []any{"running", true}, []any{shell.Reason, shell.TTY})
	types := func(line, want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			sent := r.do(session, wire.ProcessSend{Process: shell.Process, Input: protocol.Bytes(line + "\r"), Wait: 60_000})
			requireOK(t, sent)
			return strings.Contains(string(value[wire.ProcessSendResult](t, sent).Content), want)
		}, patience, time.Millisecond, want)
	}
	if o.Caps.Level >= isolation.LevelFull {
		types(`tty; echo again >$(tty) && stat -c %U:%F $(tty)`, "/dev/pts/0\r\nagain\r\nsandbox:character special file\r\n")
	}
	types("x=4; echo $TERM $((x + 3))", "xterm-256color 7\r\n")
	types("echo $x >made; cat made", "\n4\r\n")
	read := r.do(session, protocol.FilesRead{Path: "made"})
	requireOK(t, read)
	require.Equal(t, "4\n", string(value[protocol.FilesReadResult](t, read).Content))
	requireOK(t, r.do(session, wire.ProcessKill{Process: shell.Process}))
	requireFault(t, r.do(session, wire.ProcessSend{Process: shell.Process, Input: protocol.Bytes("x")}), protocol.StatusRejected, protocol.CodeInvalidArguments)
	requireFault(t, r.do(session, protocol.CommandRun{Command: "sh", TTY: true}), protocol.StatusRejected, codes.InvalidPayload)
}
