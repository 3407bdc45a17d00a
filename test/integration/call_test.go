package integration

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// callResult is what `coordinator call` prints: the contract, written down once more.
type callResult struct {
	Status    string      `json:"status"`
	Content   string      `json:"content"`
	Result    object      `json:"result"`
	Error     *eventError `json:"error"`
	SessionID string      `json:"session_id"`
	CallID    string      `json:"call_id"`
	Name      string      `json:"name"`
	WorkerID  string      `json:"worker_id"`
	Attempt   int         `json:"attempt"`
	QueueMS   *float64    `json:"queue_ms"`
	RunMS     *float64    `json:"run_ms"`
}

// parseCall reads the one JSON object that a call prints.
func parseCall(tb testing.TB, got finished) callResult {
	tb.Helper()
	require.Equal(tb, 1, strings.Count(got.stdout, "\n"), "one line: %s%s", got.stdout, got.stderr)
	var result callResult
	require.NoError(tb, json.Unmarshal([]byte(got.stdout), &result), got.stdout)
	require.NotEmpty(tb, result.SessionID)
	require.NotNil(tb, result.QueueMS)
	require.NotNil(tb, result.RunMS)
	require.NotEmpty(tb, result.Content)
	return result
}

// TestCall_EveryTool: one call of each tool, and one of each sort of error; internal/worker has all
// that a tool may answer.
func TestCall_EveryTool(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tool      string
		arguments string
		status    string
		code      string // of the error
		needs     string // a program
		content   string // a regular expression
		result    object // fields that the typed result has
	}{
		"bash": {
			tool: "bash", arguments: `{"command":"pwd -P; cat a.txt; echo oops >&2; exit 3"}`, status: "ok", content: `alpha\n(?s:.*)oops\n\[exit code 3\]`,
			result: object{"type": "command_run", "exit_code": 3.0, "reason": "exited", "stderr": "oops\n"},
		},
		"bash too slow": {
			tool: "bash", arguments: `{"command":"echo begun; sleep 100","timeout":6}`, status: "timeout", code: "run_timeout", content: `begun`,
			result: object{"type": "command_run", "reason": "timeout", "stdout": "begun\n"},
		},
		"run_code in python": {
			tool: "run_code", arguments: `{"code":"import sys\nprint(6*7)\nsys.exit(4)"}`, status: "ok", content: `^42\n\[exit code 4\]$`, needs: "python3",
			result: object{"type": "code_run", "exit_code": 4.0},
		},
		"read": {
			tool: "read", arguments: `{"path":"./sub/../a.txt"}`, status: "ok", content: `1\talpha\n`,
			result: object{"type": "files_read", "path": "a.txt", "content": "alpha\n", "bytes": 6.0, "total_lines": 1.0},
		},
		"read outside":           {tool: "read", arguments: `{"path":"../x"}`, status: "rejected", code: "path_escape", content: `\.\./x`},
		"read outside by a link": {tool: "read", arguments: `{"path":"link/hosts"}`, status: "rejected", code: "path_escape", content: `link`},
		"write": {
			tool: "write", arguments: `{"path":"new/c.txt","content":"gamma\n"}`, status: "ok", content: `new/c\.txt`,
			result: object{"type": "files_write", "path": "new/c.txt", "bytes": 6.0, "created": true},
		},
		"edit": {
			tool: "edit", arguments: `{"path":"a.txt","old":"alpha","new":"omega"}`, status: "ok", content: `-alpha\n\+omega`,
			result: object{"type": "files_edit", "replacements": 1.0},
		},
		"edit what is there twice": {
			tool: "edit", arguments: `{"path":"a.txt","old":"a","new":"b"}`, status: "failed", code: "edit_not_unique", content: `occurs 2 times`,
		},
		"list": {
			tool: "list", arguments: ``, status: "ok", content: `a\.txt \(6 bytes\)\n(?s:.*)sub/\n`,
			result: object{"type": "files_list", "total": 3.0},
		},
		"exists": {tool: "exists", arguments: `{"path":"sub"}`, status: "ok", content: `^yes`, result: object{"type": "files_exists", "exists": true}},
		"grep": {
			tool: "grep", arguments: `{"pattern":"^b.t"}`, status: "ok", content: `^sub/b\.txt:1:beta`,
			result: object{"type": "files_search", "matches": []any{object{"path": "sub/b.txt", "line": 1.0, "text": "beta"}}},
		},
		"unknown tool": {tool: "rm", arguments: `{}`, status: "rejected", code: "unknown_tool", content: `bash, edit`},
		"not JSON":     {tool: "bash", arguments: `{`, status: "rejected", code: "invalid_tool_arguments", content: `JSON`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.needs != "" {
				if _, err := exec.LookPath(c.needs); err != nil {
					processtest.Unavailable(t, err.Error())
				}
			}
			workspace := t.TempDir()
			write(t, filepath.Join(workspace, "a.txt"), "alpha\n")
			write(t, filepath.Join(workspace, "sub", "b.txt"), "beta\n")
			linkTo(t, "/etc", filepath.Join(workspace, "link"))
			args := []string{"call", "--sandbox", "process", "--workspace", workspace, c.tool}
			if c.arguments != "" {
				args = append(args, c.arguments)
			}
			got := execute(t, coordinator, launch{args: args})
			result := parseCall(t, got)
			require.Equal(t, c.status, result.Status, got.stdout)
			require.Equal(t, c.status == "ok", got.code == 0)
			require.Contains(t, []int{0, 1}, got.code)
			require.Regexp(t, c.content, result.Content)
			require.Equal(t, c.tool, result.Name)
			for field, want := range c.result {
				require.Equal(t, want, result.Result[field], "%s: %s", field, got.stdout)
			}
			if c.code == "" {
				require.Nil(t, result.Error)
				require.NotEmpty(t, result.WorkerID)
				require.Equal(t, 1, result.Attempt)
				return
			}
			require.NotNil(t, result.Error, got.stdout)
			require.Equal(t, c.code, result.Error.Code)
			require.NotEmpty(t, result.Error.Message)
		})
	}
}

func TestCall_ReadsArgumentsFromStdin(t *testing.T) {
	t.Parallel()
	workspace := t.TempDir()
	arguments := fmt.Sprintf(`{"path":"big.txt","content":%q}`, strings.Repeat("line\n", 100_000))
	got := execute(t, coordinator, launch{
		args:  []string{"call", "--sandbox", "process", "--workspace", workspace, "write", "-"},
		stdin: arguments,
	})
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, "ok", parseCall(t, got).Status)
	require.Equal(t, strings.Repeat("line\n", 100_000), content(t, filepath.Join(workspace, "big.txt")))
}

// TestCall_SessionKeepsItsWorkspace: with an id the sandbox is found again, in the
// user's state directory when no other is named; without one nothing is kept.
func TestCall_SessionKeepsItsWorkspace(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	call := func(flags ...string) callResult {
		args := append([]string{"call", "--sandbox", "process"}, flags...)
		got := succeed(t, coordinator, launch{args: args, env: []string{"HOME=" + home, "XDG_STATE_HOME="}})
		return parseCall(t, got)
	}
	const session = "01a1f7cc-9c17-75db-ab48-c34c3f3946dc"
	call("--session", session, "write", `{"path":"kept.txt","content":"here\n"}`)
	require.Contains(t, call("--session", session, "read", `{"path":"kept.txt"}`).Content, "here")
	require.DirExists(t, filepath.Join(home, ".local", "state", "toolfleet", "local", "sessions", session))
	require.Contains(t, call("exists", `{"path":"kept.txt"}`).Content, "no", "another session has another workspace")
	entries, err := filepath.Glob(filepath.Join(home, ".local", "state", "toolfleet", "local", "sessions", "*"))
	require.NoError(t, err)
	require.Len(t, entries, 1, "a call without a session leaves nothing behind")
}

// TestCall_WithAnIDOfItsOwn: a call that is sent again with its id does not run again, also from
// another process, and after another call.
func TestCall_WithAnIDOfItsOwn(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	call := func(flags ...string) finished {
		args := append([]string{"call", "--sandbox", "process"}, flags...)
		return execute(t, coordinator, launch{args: args, env: []string{"HOME=" + home, "XDG_STATE_HOME="}})
	}
	const session, add = "01a1f7cc-9c17-75db-ab48-c34c3f3946dd", `{"command":"echo line >> f; wc -l < f"}`
	first := parseCall(t, call("--session", session, "--id", "order-17", "bash", add))
	require.Equal(t, "ok", first.Status)
	require.Equal(t, "order-17", first.CallID)
	require.Contains(t, first.Content, "1")
	require.Contains(t, parseCall(t, call("--session", session, "--id", "order-18", "bash", add)).Content, "2")
	again := parseCall(t, call("--session", session, "--id", "order-17", "bash", add))
	require.Equal(t, first, again)
	reused := call("--session", session, "--id", "order-17", "write", `{"path":"f","content":"x"}`)
	require.Equal(t, 1, reused.code)
	require.Contains(t, reused.stdout, `"code":"id_reused"`)
	require.Contains(t, reused.stdout, "an earlier call of bash; this one, of write, was not run")
	require.Contains(t, parseCall(t, call("--session", session, "bash", add)).Content, "3")

	got := call("--id", "order-17", "bash", add)
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, "--id order-17: needs --session")
	got = call("--session", session, "--id", "a b", "bash", add)
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, "--id: invalid name: call id")
}

// TestCall_NotBefore: the call starts at its time, its time limit begins then, and what is no time
// is an error that says what one is.
func TestCall_NotBefore(t *testing.T) {
	t.Parallel()
	call := func(flags ...string) finished {
		args := append([]string{"call", "--sandbox", "process"}, append(flags, "bash", `{"command":"date +%s%N"}`)...)
		return execute(t, coordinator, launch{args: args, env: []string{"HOME=" + t.TempDir(), "XDG_STATE_HOME="}})
	}
	before := time.Now()
	got := call("--not-before", "3s", "--timeout", "2m")
	result := parseCall(t, got)
	require.Equal(t, "ok", result.Status, got.stdout)
	ran, err := strconv.ParseInt(strings.TrimSpace(result.Content), 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Unix(0, ran).Sub(before), 3*time.Second)
	require.Contains(t, got.stderr, "bash: waiting until ")
	for value, want := range map[string]string{
		"tomorrow": `--not-before: "tomorrow": must be a duration such as 15m, 24h or 7d, or a time with its zone such as 2026-12-01T07:00:00+01:00`,
		"-1s":      `--not-before: "-1s": must not be negative`,
		"99999h":   "must be at most 8784h0m0s after issued_at",
	} {
		got := call("--not-before=" + value)
		require.Equal(t, 2, got.code, value)
		require.Contains(t, got.stderr, want)
	}
}

// TestCall_SessionIsShortened: as session show takes the beginning of an id and "last", so does
// --session; the beginning of a name that somebody chose is another name.
func TestCall_SessionIsShortened(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	call := func(flags ...string) finished {
		args := append([]string{"call", "--sandbox", "process"}, append(flags, "list")...)
		return execute(t, coordinator, launch{args: args, env: []string{"HOME=" + home, "XDG_STATE_HOME="}})
	}
	session := func(flags ...string) string {
		got := call(flags...)
		require.Equal(t, 0, got.code, got.stderr)
		return parseCall(t, got).SessionID
	}
	got := call("--session", "last")
	require.Equal(t, 2, got.code, got.stderr)
	require.Contains(t, got.stderr, "--session last: there is no session to continue")

	const id, other, name = "01a1f7cc-9c17-75db-ab48-c34c3f3946dc", "01a1f7cc-aaaa-75db-ab48-c34c3f3946dc", "feed-1"
	for _, begun := range []string{id, other, name} {
		require.Equal(t, begun, session("--session", begun))
		require.Equal(t, begun, session("--session", "last"))
	}
	require.Equal(t, id, session("--session", "01a1f7cc-9c"))
	require.Equal(t, id, session("--session", "last"))
	require.Equal(t, "feed", session("--session", "feed"))
	got = call("--session", "01a1f7cc")
	require.Equal(t, 2, got.code, got.stderr)
	require.Contains(t, got.stderr, "--session 01a1f7cc: 2 sessions have ids that begin like this")
	got = call("--session", "last", "--data", t.TempDir())
	require.Equal(t, 2, got.code, got.stderr)
	require.Contains(t, got.stderr, "give the session's id")
}

// TestCall_WithoutIsolation: what isolates nothing is asked for by its name.
func TestCall_WithoutIsolation(t *testing.T) {
	t.Parallel()
	if isolates(t) {
		t.Skip("there is an isolating driver here, so auto works")
	}
	got := execute(t, coordinator, launch{args: []string{"call", "bash", `{"command":"true"}`}})
	require.Equal(t, 2, got.code, got.stderr)
	require.Regexp(t, `--sandbox auto: .*no isolating sandbox driver(?s:.*)--sandbox process`, got.stderr)
	require.Empty(t, got.stdout)
}

// TestCall_TimesOut: the bound of the whole call, its wait included.
func TestCall_TimesOut(t *testing.T) {
	t.Parallel()
	got := execute(t, coordinator, launch{args: []string{"call", "--sandbox", "process", "--timeout", "10s", "bash", `{"command":"echo begun; sleep 100"}`}})
	require.Equal(t, 1, got.code, got.stderr)
	result := parseCall(t, got)
	require.Equal(t, "timeout", result.Status, "for one cause there is one outcome")
	require.Contains(t, result.Content, "begun", "partial output is kept")
}
