package worker_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// step is one call of a session, and what must come of it.
type step struct {
	name    string
	payload protocol.Payload
	status  protocol.Status // "" is ok
	code    protocol.Code
	check   func(t *testing.T, r *protocol.Result)
}

// steps run one after another in one workspace.
func (r *rig) steps(t *testing.T, steps []step) {
	t.Helper()
	session := protocol.NewSessionID()
	for _, s := range steps {
		got := r.do(session, s.payload)
		t.Log(s.name)
		if s.code == "" {
			requireOK(t, got)
		} else {
			requireFault(t, got, s.status, s.code)
		}
		if s.check != nil {
			s.check(t, got)
		}
	}
}

func stdout(want string) func(*testing.T, *protocol.Result) {
	return func(t *testing.T, r *protocol.Result) {
		t.Helper()
		require.Equal(t, want, string(value[protocol.CommandRunResult](t, r).Stdout))
	}
}

func TestPayloads_Files(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	r.steps(t, []step{
		{name: "write", payload: protocol.FilesWrite{Path: "a/b.txt", Content: []byte("one\ntwo\n")}, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			v := value[protocol.FilesWriteResult](t, r)
			require.True(t, v.Created)
			require.EqualValues(t, 8, v.Bytes)
			require.Equal(t, "a/b.txt", v.Path)
			require.Contains(t, v.Diff, "+two")
			require.Equal(t, "none", r.Level)
			require.Equal(t, 1, r.Attempt)
		}},
		{name: "read", payload: protocol.FilesRead{Path: "a/b.txt", Offset: 2, Limit: 1}, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			v := value[protocol.FilesReadResult](t, r)
			require.Equal(t, "two\n", string(v.Content))
			require.Equal(t, []int{2, 1, 2}, []int{v.FirstLine, v.Lines, v.TotalLines})
			require.Len(t, v.SHA256, 64)
		}},
		{name: "edit", payload: protocol.FilesEdit{Path: "a/b.txt", Old: "two", New: "three"}, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			v := value[protocol.FilesEditResult](t, r)
			require.Equal(t, 1, v.Replacements)
			require.Contains(t, v.Diff, "+three")
		}},
		{name: "list", payload: protocol.FilesList{Path: "a"}, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			v := value[protocol.FilesListResult](t, r)
			require.Equal(t, []protocol.DirEntry{{Name: "b.txt", Type: protocol.TypeFile, Size: 10}}, v.Entries)
			require.Equal(t, 1, v.Total)
		}},
		{name: "exists", payload: protocol.FilesExists{Path: "a"}, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			require.Equal(t, protocol.FilesExistsResult{Path: "a", Exists: true, Type: protocol.TypeDir}, r.Value)
		}},
		{name: "does not exist", payload: protocol.FilesExists{Path: "c"}, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			require.Equal(t, protocol.FilesExistsResult{Path: "c"}, r.Value)
		}},
		{name: "search", payload: protocol.FilesSearch{Pattern: "^th.+e", Glob: "*.txt"}, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			v := value[protocol.FilesSearchResult](t, r)
			require.Equal(t, []protocol.Match{{Path: "a/b.txt", Line: 2, Text: "three"}}, v.Matches)
			require.Equal(t, 1, v.Files)
		}},
		{name: "read outside", payload: protocol.FilesRead{Path: "../../x"}, status: protocol.StatusRejected, code: codes.PathEscape},
		{name: "write outside", payload: protocol.FilesWrite{Path: "/etc/x"}, status: protocol.StatusRejected, code: codes.PathEscape},
		{name: "read nothing", payload: protocol.FilesRead{Path: "c"}, status: protocol.StatusFailed, code: protocol.CodeNotFound},
		{name: "read a directory", payload: protocol.FilesRead{Path: "a"}, status: protocol.StatusFailed, code: codes.IsDirectory},
		{name: "list a file", payload: protocol.FilesList{Path: "a/b.txt"}, status: protocol.StatusFailed, code: codes.NotDirectory},
		{name: "edit what is not there", payload: protocol.FilesEdit{Path: "a/b.txt", Old: "four", New: "x"}, status: protocol.StatusFailed, code: codes.EditNotFound},
		{name: "edit what is there twice", payload: protocol.FilesEdit{Path: "a/b.txt", Old: "\n", New: "x"}, status: protocol.StatusFailed, code: codes.EditNotUnique},
		{name: "search for no pattern", payload: protocol.FilesSearch{Pattern: "("}, status: protocol.StatusFailed, code: codes.InvalidPattern},
		{name: "the file is as before", payload: protocol.FilesRead{Path: "a/b.txt"}, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			require.Equal(t, "one\nthree\n", string(value[protocol.FilesReadResult](t, r).Content))
		}},
	})
}

func TestPayloads_Commands(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	r.steps(t, []step{
		{name: "shell", payload: protocol.CommandRun{Command: "mkdir d && printf hi | tee d/f"}, check: stdout("hi")},
		{name: "exit code", payload: protocol.CommandRun{Command: "echo out; echo err >&2; exit 3"}, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			v := value[protocol.CommandRunResult](t, r)
			require.Equal(t, 3, v.ExitCode)
			require.Equal(t, []string{"out\n", "err\n", "exited"}, []string{string(v.Stdout), string(v.Stderr), v.Reason})
			require.EqualValues(t, 4, v.StdoutBytes)
			require.Positive(t, r.RunMS)
		}},
		{name: "a signal of its own", payload: protocol.CommandRun{Command: "kill -9 $$"}, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			require.Equal(t, "SIGKILL", value[protocol.CommandRunResult](t, r).Signal)
		}},
		{
			name: "argv, directory, environment and stdin", check: stdout("a b|hi|there"),
			payload: protocol.CommandRun{
				Argv: []string{"sh", "-c", `printf '%s|%s|' "$X" "$(cat f)"; cat`}, Cwd: "d",
				Env: map[string]string{"X": "a b"}, Stdin: []byte("there"),
			},
		},
		{name: "directory that is not there", payload: protocol.CommandRun{Command: "true", Cwd: "e"}, status: protocol.StatusFailed, code: protocol.CodeNotFound},
		{name: "directory outside", payload: protocol.CommandRun{Command: "true", Cwd: ".."}, status: protocol.StatusRejected, code: codes.PathEscape},
		{name: "program that is not there", payload: protocol.CommandRun{Argv: []string{"no-such-program"}}, status: protocol.StatusFailed, code: protocol.CodeCommandNotFound},
		{name: "neither command nor argv", payload: protocol.CommandRun{}, status: protocol.StatusRejected, code: codes.InvalidPayload},
		{name: "both", payload: protocol.CommandRun{Command: "true", Argv: []string{"true"}}, status: protocol.StatusRejected, code: codes.InvalidPayload},
		{name: "bad argument", payload: protocol.CommandRun{Argv: []string{"true", "\x00"}}, status: protocol.StatusRejected, code: protocol.CodeInvalidArguments},
		{
			name: "bad environment", payload: protocol.CommandRun{Command: "true", Env: map[string]string{"A=B": ""}},
			status: protocol.StatusRejected, code: protocol.CodeInvalidArguments,
		},
		{name: "noop", payload: wire.Noop{WorkMS: 1}, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			require.Equal(t, wire.NoopResult{}, r.Value)
		}},
	})
}

func TestPayloads_RefusedByThisWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Alone = true
	r.work(o)
	session := protocol.NewSessionID()
	level := newCall(session, protocol.CommandRun{Command: "true"})
	level.MinLevel = "full"
	nonsense := newCall(session, protocol.CommandRun{Command: "true"})
	nonsense.MinLevel = "steel"
	account := newCall(session, protocol.FilesRead{Path: "a"})
	account.Resources = []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}}
	noop := newCall(session, wire.Noop{})
	noop.Resources = account.Resources
	for name, test := range map[string]struct {
		call protocol.Call
		code protocol.Code
		says string
	}{
		"unknown payload": {
			newCall(session, protocol.UnknownPayload{Name: "teleport", Raw: json.RawMessage(`{"type":"teleport"}`)}),
			codes.UnknownPayload, "teleport",
		},
		"a turn":              {newCall(session, wire.TurnRun{Prompt: "hi"}), codes.UnknownPayload, `pool "session"`},
		"level too high":      {level, codes.SandboxLevel, "needs sandbox level full, this worker has proven none"},
		"level that is none":  {nonsense, codes.InvalidPayload, "steel"},
		"no sandbox":          {account, codes.InvalidPayload, "sandbox/<id>"},
		"import without name": {newCall(session, wire.WorkspaceImport{}), codes.InvalidPayload, "upload"},
		"export without name": {newCall(session, wire.WorkspaceExport{Upload: "A.*"}), codes.InvalidPayload, "upload"},
		"a read-only command": {newCall(session, protocol.CommandRun{Command: "true", ReadOnly: true}), codes.SandboxUnsupported, "read_only: sandbox driver process cannot"},
		"a read-only program": {newCall(session, protocol.CodeRun{Code: "true", Language: "sh", ReadOnly: true}), codes.SandboxUnsupported, "without read_only"},
		"limits out of bounds": {
			newCall(session, protocol.CommandRun{Command: "true", Limits: protocol.Limits{Memory: 1, Output: -1}}),
			codes.InvalidPayload, "limits.memory_bytes 1: must be 0 (the worker's own) or 1048576",
		},
		"language without any": {newCall(session, protocol.CodeRun{Code: "1"}), codes.Language, `language ""`},
	} {
		got := r.dispatch(t.Context(), test.call)
		t.Log(name)
		requireFault(t, got, protocol.StatusRejected, test.code)
		require.Contains(t, got.Error.Message, test.says)
		require.Nil(t, got.Value)
	}
	requireOK(t, r.dispatch(t.Context(), noop))
}

func TestCodeRun_EachLanguage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Env = map[string]string{"GOCACHE": goCache(t), "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
	o.Slots = 2
	r.work(o)
	for language, code := range map[string]string{
		"python": "import sys\nsys.stdout.write(str(6*7) + sys.stdin.read() + open('here').read())",
		"sh":     "printf '%s%s%s' $((6*7)) \"$(cat)\" \"$(cat here)\"",
		"node":   "import fs from 'node:fs'; process.stdout.write(String(6*7) + fs.readFileSync(0) + fs.readFileSync('here'))",
		"go":     "package main\nimport (\"fmt\"; \"os\")\nfunc main() { b, _ := os.ReadFile(\"here\"); fmt.Print(6*7, string(b)) }",
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			r := rigOf(t, r.Fleet)
			session := protocol.NewSessionID()
			requireOK(t, r.do(session, protocol.FilesWrite{Path: "d/here", Content: []byte("!")}))
			got := r.do(session, protocol.CodeRun{Code: code, Language: language, Cwd: "d"})
			if got.Error != nil && got.Error.Code == codes.Language {
				t.Skipf("not on this machine: %s", got.Error.Message)
			}
			requireOK(t, got)
			v := value[protocol.CodeRunResult](t, got)
			require.Zero(t, v.ExitCode, "%s", v.Stderr)
			require.Equal(t, "42!", string(v.Stdout))
			requireOK(t, r.do(session, protocol.FilesList{}))

			fails := r.do(session, protocol.CodeRun{Code: "this is no program (", Language: language})
			requireOK(t, fails)
			require.NotZero(t, value[protocol.CodeRunResult](t, fails).ExitCode)
			require.NotEmpty(t, value[protocol.CodeRunResult](t, fails).Stderr)

			list := value[protocol.FilesListResult](t, r.do(session, protocol.FilesList{}))
			require.Equal(t, 1, list.Total, "the program's text is not left in the workspace: %v", list.Entries)
		})
	}
}

func goCache(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("GOCACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	require.NoError(t, err)
	return filepath.Join(dir, "go-build")
}

func TestCodeRun_LanguageUnavailableNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	bin := t.TempDir()
	for _, program := range []string{"sh", "cat", "mktemp", "rm"} {
		require.NoError(t, os.Symlink(filepath.Join("/bin", program), filepath.Join(bin, program)))
	}
	require.NoError(t, os.Mkdir(filepath.Join(bin, "node"), 0o700), "a directory is no interpreter")
	o.Env = map[string]string{"PATH": bin}
	r.work(o)
	session := protocol.NewSessionID()
	for _, language := range []string{"python", "node", "cobol"} {
		got := r.do(session, protocol.CodeRun{Code: "1", Language: language})
		requireFault(t, got, protocol.StatusRejected, codes.Language)
		require.Contains(t, got.Error.Message, language)
		require.True(t, strings.HasSuffix(got.Error.Message, "it has: sh"), got.Error.Message)
	}
	got := r.do(session, protocol.CodeRun{Code: "printf ok", Language: "sh"})
	requireOK(t, got)
	require.Equal(t, "ok", string(value[protocol.CodeRunResult](t, got).Stdout))
}

func TestCommand_EnvironmentIsClean(t *testing.T) {
	t.Parallel()
	require.Equal(t, secret, os.Getenv("OPENAI_API_KEY"), "it is there to be leaked")
	r := newRig(t)
	o := r.options()
	o.Env = map[string]string{"GREETING": "hello"}
	r.work(o)
	got := r.do(protocol.NewSessionID(), protocol.CommandRun{Argv: []string{"env"}})
	requireOK(t, got)
	names := map[string]string{}
	for line := range strings.Lines(string(value[protocol.CommandRunResult](t, got).Stdout)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		names[name] = value
	}
	require.Equal(t, "hello", names["GREETING"])
	require.Equal(t, "C.UTF-8", names["LANG"])
	require.True(t, strings.HasPrefix(names["HOME"], o.Data), names["HOME"])
	for _, expected := range []string{"PATH", "LANG", "TERM", "HOME", "TMPDIR", "GREETING", "PWD"} {
		delete(names, expected)
	}
	require.Empty(t, names)
}

// lose has a call accepted, and leaves what a worker leaves that was lost after a commit, and
// before the result was stored: the mark of the start, and a checkpoint with a file and the result
// of covered. The call then has the result that is sent.
func (r *rig) lose(call *protocol.Call, covered protocol.CallID) <-chan *protocol.Result {
	r.t.Helper()
	_, stop := r.work(r.options()) // makes the pool
	stop()
	done := make(chan *protocol.Result, 1)
	go func() {
		result, err := r.dispatcher.Call(r.t.Context(), call)
		if err != nil {
			r.t.Errorf("call: %v", err)
		}
		done <- result
	}()
	hash, js := wire.HashLane(call.Lane()), r.JS
	stream, err := js.Stream(r.t.Context(), wire.CallsStream(r.Name))
	require.NoError(r.t, err)
	require.Eventually(r.t, func() bool { // the first call of a lane is in its ready message
		_, err := stream.GetLastMsgForSubject(r.t.Context(), wire.ReadySubject(r.Name, call.Pool, hash))
		return err == nil
	}, patience, 10*time.Millisecond, "the call is not accepted")
	_, err = js.Publish(r.t.Context(), wire.StartSubject(r.Name, call.Pool, hash, call.ID, 1), []byte("w-lost 1"))
	require.NoError(r.t, err)
	store, err := workspace.Open(r.t.Context(), r.NC, r.Name, "")
	require.NoError(r.t, err)
	taken, err := store.Take(r.t.Context(), call.Lane(), "w-lost", 1)
	require.NoError(r.t, err)
	dir := r.t.TempDir()
	require.NoError(r.t, os.MkdirAll(filepath.Join(dir, "workspace"), 0o700))
	require.NoError(r.t, os.WriteFile(filepath.Join(dir, "workspace", "f"), []byte("once\n"), 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(r.t, err)
	defer root.Close()
	delta, err := snapshot.Save(r.t.Context(), root, taken.Tree(), snapshot.Index{}, store, nil)
	require.NoError(r.t, err)
	require.NoError(r.t, taken.Commit(r.t.Context(), delta, &protocol.Result{
		CallID: covered, SessionID: call.SessionID, WorkerID: "w-lost", Attempt: 1, Status: protocol.StatusOK, Value: wire.NoopResult{},
	}))
	return done
}

// awaited is the result that comes.
func (r *rig) awaited(done <-chan *protocol.Result) *protocol.Result {
	r.t.Helper()
	select {
	case result := <-done:
		require.NotNil(r.t, result)
		return result
	case <-time.After(2 * patience):
		require.FailNow(r.t, "no result")
		return nil
	}
}

// A call whose changes are kept ends with the result that is kept with them, also when it must not
// start again, its time is over, or nothing but a handler runs it.
func TestCovered_EndsWithItsResult(t *testing.T) {
	t.Parallel()
	var ran atomic.Int32
	counts := func(ctx context.Context, h *kinds.Attempt, _ json.RawMessage) (json.RawMessage, error) {
		ran.Add(1)
		_, err := h.Sandbox(ctx)
		return json.RawMessage(`"ran"`), err
	}
	user, err := wire.NewUserPayload("counts", json.RawMessage(`{}`))
	require.NoError(t, err)
	for name, change := range map[string]func(*protocol.Call){
		"at most once":       func(c *protocol.Call) { c.Delivery = protocol.AtMostOnce },
		"no further attempt": func(c *protocol.Call) { c.Delivery, c.MaxAttempts = protocol.Rollback, 1 },
		"a handler":          func(c *protocol.Call) { c.Delivery, c.Payload = protocol.Rollback, user },
		"a command":          func(c *protocol.Call) { c.Delivery = protocol.Rollback },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			call := newCall("s-1", bash("echo twice >> f"))
			change(&call)
			done := r.lose(&call, call.ID)
			o := r.options()
			o.Handlers.Calls = map[protocol.Kind]kinds.Handler{"counts": counts}
			r.work(o)
			result := r.awaited(done)
			requireOK(t, result)
			require.Equal(t, wire.NoopResult{}, result.Value)
			require.Equal(t, protocol.WorkerID("w-lost"), result.WorkerID)
			require.Equal(t, 1, result.Attempt)
			require.Equal(t, "once\n", string(value[protocol.CommandRunResult](t, r.do("s-1", bash("cat f"))).Stdout))
			require.Zero(t, ran.Load())
		})
	}
}

// Without a checkpoint nobody can tell what became of it.
func TestCovered_UnknownWithoutACheckpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	call := newCall("s-1", bash("echo twice >> f"))
	call.Delivery = protocol.AtMostOnce
	done := r.lose(&call, wire.RandomCallID())
	r.work(r.options())
	requireFault(t, r.awaited(done), protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
}
