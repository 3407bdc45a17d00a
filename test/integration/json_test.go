package integration

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRun_JSON holds --json to its contract, field by field.
func TestRun_JSON(t *testing.T) {
	t.Parallel()
	workspace := t.TempDir()
	write(t, filepath.Join(workspace, "a.txt"), "alpha\n")
	model := script(t,
		step{
			"text":       "Reading <both> & more.",
			"tool_calls": []object{use("c1", "read", object{"path": "a.txt"}), bash("c2", "echo out; echo err >&2")},
			"usage":      object{"input_tokens": 10, "output_tokens": 5},
		},
		step{"text": "Done.", "usage": object{"input_tokens": 20, "output_tokens": 7}})
	got := execute(t, coordinator, launch{args: runFlags(t, model, workspace, "--json")})
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "<both> &", "texts are not escaped for HTML")
	list := events(t, got.stdout)

	var kinds []string
	for _, e := range list {
		kinds = append(kinds, e.Type)
		require.Equal(t, list[0].SessionID, e.SessionID)
		_, err := time.Parse(time.RFC3339Nano, e.Time)
		require.NoError(t, err)
	}
	require.Equal(t, []string{
		"session_started", "environment", "model_reply", "tool_call", "tool_call", "tool_result", "tool_result", "model_reply", "session_ended",
	}, kinds)
	list = slices.Delete(list, 1, 2)

	started := list[0].raw
	require.Equal(t, model, started["model"])
	require.Equal(t, []any{
		"bash", "edit", "exists", "glob", "grep", "json_read", "json_write", "list", "multi_edit", "process", "read", "run_code", "tree", "write",
	}, started["tools"])
	require.Equal(t, workspace, started["workspace"])

	reply := list[1]
	require.Equal(t, "Reading <both> & more.", reply.Text)
	require.Equal(t, 1, reply.Step)
	require.Equal(t, []toolCall{
		{ID: "c1", Name: "read", Arguments: `{"path":"a.txt"}`},
		{ID: "c2", Name: "bash", Arguments: `{"command":"echo out; echo err \u003e\u00262"}`},
	}, reply.ToolCalls)
	requireUsage(t, 10, 5, reply.Usage)

	for i, call := range list[2:4] {
		require.Equal(t, 1, call.Step)
		require.Equal(t, toolCall{ID: call.ToolCallID, Name: call.Name, Arguments: call.Arguments}, reply.ToolCalls[i])
		require.NotEmpty(t, call.CallID)
	}
	ended := list[7]
	require.Equal(t, "answered", ended.Status)
	require.Equal(t, "Done.", ended.Text)
	requireUsage(t, 30, 12, ended.Usage)
	require.Nil(t, ended.Error)

	read := results(list)["c1"]
	require.Equal(t, "     1\talpha\n[lines 1-1 of 1]", read.Content)
	command := results(list)["c2"]
	require.Equal(t, "out\nerr\n", command.Content)
	for i, result := range []event{read, command} {
		require.Equal(t, list[2+i].CallID, result.CallID)
		require.Equal(t, list[2+i].Name, result.Name)
		requireRun(t, result)
	}
}

func requireUsage(tb testing.TB, input, output int64, u *usage) {
	tb.Helper()
	require.NotNil(tb, u)
	require.Equal(tb, &input, u.InputTokens)
	require.Equal(tb, &output, u.OutputTokens)
}

// requireRun checks what every result has whose call a worker ran.
func requireRun(tb testing.TB, result event) {
	tb.Helper()
	require.Equal(tb, "tool_result", result.Type)
	require.Equal(tb, "ok", result.Status)
	require.Nil(tb, result.Error)
	require.Equal(tb, 1, result.Step)
	require.NotEmpty(tb, result.WorkerID)
	require.Equal(tb, 1, result.Attempt)
	require.NotNil(tb, result.QueueMS)
	require.NotNil(tb, result.RunMS)
	require.GreaterOrEqual(tb, *result.QueueMS, 0.0)
	require.Greater(tb, *result.RunMS, 0.0)
}

// TestRun_ModelMistakesAreResults: whatever a model gets wrong, it is told, and the
// session goes on.
func TestRun_ModelMistakesAreResults(t *testing.T) {
	t.Parallel()
	raw := func(id, arguments string) object {
		return object{"id": id, "name": "bash", "arguments_raw": arguments}
	}
	cases := map[string]struct {
		call    object
		status  string
		code    string
		content string // a regular expression
	}{
		"cut":          {raw("cut", "{"), "rejected", "invalid_tool_arguments", `JSON`},
		"text":         {raw("text", "run it"), "rejected", "invalid_tool_arguments", `JSON`},
		"null":         {raw("null", "null"), "rejected", "invalid_tool_arguments", `object`},
		"many faults":  {use("many faults", "bash", object{"cmd": "x", "timeout": "soon"}), "rejected", "invalid_tool_arguments", `(?s)command.*cmd.*timeout|cmd.*command.*timeout|timeout.*cmd|command.*timeout.*cmd`},
		"unknown tool": {use("unknown tool", "rm_rf", object{}), "rejected", "unknown_tool", `rm_rf.*(?s:.*)bash`},
		"escape":       {use("escape", "read", object{"path": "../../etc/passwd"}), "rejected", "path_escape", `etc/passwd`},
		"no file":      {use("no file", "read", object{"path": "none.txt"}), "failed", "not_found", `none\.txt`},
		"no match":     {use("no match", "edit", object{"path": "a.txt", "old": "x", "new": "y"}), "failed", "edit_not_found", `a\.txt`},
		"exit code":    {bash("exit code", "echo no; exit 3"), "ok", "", `^no\n\[exit code 3\]$`},
		"silent":       {bash("silent", "true"), "ok", "", `.`},
		"too slow":     {use("too slow", "bash", object{"command": "echo begun; sleep 100", "timeout": 6}), "timeout", "run_timeout", `begun`},
		"not there":    {bash("not there", "no-such-command-here"), "ok", "", `exit code 127`},
	}
	calls := make([]object, 0, len(cases))
	for _, c := range cases {
		calls = append(calls, c.call)
	}
	workspace := t.TempDir()
	write(t, filepath.Join(workspace, "a.txt"), "alpha\n")
	got := execute(t, coordinator, launch{args: runFlags(t, script(t, say("All wrong.", calls...), say("I see.")), workspace, "--json")})
	require.Equal(t, 0, got.code, got.stderr)
	list := events(t, got.stdout)
	require.Equal(t, "answered", list[len(list)-1].Status)
	require.Equal(t, "I see.", list[len(list)-1].Text)
	told := results(list)
	require.Len(t, told, len(cases))
	for id, want := range cases {
		result := told[id]
		require.Equal(t, want.status, result.Status, "%s: %v", id, result)
		require.Regexp(t, want.content, result.Content, id)
		for _, field := range []string{"call_id", "name", "step", "status", "content", "queue_ms", "run_ms"} {
			require.Contains(t, result.raw, field, id)
		}
		if want.code == "" {
			require.Nil(t, result.Error, id)
			continue
		}
		require.NotNil(t, result.Error, id)
		require.Equal(t, want.code, result.Error.Code, id)
		require.NotEmpty(t, result.Error.Message, id)
		require.Contains(t, result.Content, want.code, "the model must learn the code")
	}
}

// TestRun_RepairsTheExample is `make demo`: everything in one process, the
// workspace used in place.
func TestRun_RepairsTheExample(t *testing.T) {
	t.Parallel()
	workspace := t.TempDir()
	require.NoError(t, os.CopyFS(workspace, os.DirFS(filepath.Join(module, "examples", "wordstats"))))
	before, err := goCommand(t.Context(), workspace, "test", "./...")
	require.Error(t, err, "the example must have a failing test:\n%s", before)
	source := content(t, filepath.Join(workspace, "text", "split.go"))
	model, err := filepath.Abs(filepath.Join(module, "examples", "wordstats.script.json"))
	require.NoError(t, err)

	got := execute(t, coordinator, launch{args: runFlags(t, "script:"+model, workspace,
		"--env", "GOCACHE="+goEnv(t.Context(), t, "GOCACHE"), "--env", "GOTOOLCHAIN=local", "--env", "GOWORK=off")})
	require.Equal(t, 0, got.code, got.stderr)
	require.Regexp(t, `^Fixed\. (?s:.*)counts now\.\n$`, got.stdout, "stdout is the answer and nothing else")
	for _, part := range []string{
		`isolates nothing`,                      // the warning of the driver
		`I'll run the tests first`,              // what the model says on its way
		`\[1\.1 bash\] +. queued`,               // each call as it is queued,
		`\[1\.1 bash\] +. running on \S+`,       // running
		`ok · on \S+, attempt 1 · queued .* ms`, // and done
		`FAIL: TestSplit`,                       // output of a tool
		`(?m)^ +│ \+.*text ended inside a word`, // the diff
	} {
		require.Regexp(t, part, got.stderr)
	}

	require.NotEqual(t, source, content(t, filepath.Join(workspace, "text", "split.go")), "used in place")
	after, err := goCommand(t.Context(), workspace, "test", "./...")
	require.NoError(t, err, after)
}

// TestRun_WithoutWorkspaceHasAnEmptyOne also goes on with a session: its id is all that
// the second process needs.
func TestRun_WithoutWorkspaceHasAnEmptyOne(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	model := script(t,
		say("Writing.", bash("c1", "ls -A | wc -l; echo kept > note.txt")),
		say("first answer"),
		say("Reading.", use("c2", "read", object{"path": "note.txt"})),
		say("second answer"))
	flags := []string{"run", "--json", "--model", model, "--data", data, "--sandbox", "process"}

	first := execute(t, coordinator, launch{args: append(flags, "write it")})
	require.Equal(t, 0, first.code, first.stderr)
	list := events(t, first.stdout)
	require.Equal(t, "0\n", results(list)["c1"].Content, "the workspace is empty")

	second := execute(t, coordinator, launch{args: append(flags, "--session", list[0].SessionID, "read it")})
	require.Equal(t, 0, second.code, second.stderr)
	again := events(t, second.stdout)
	require.Empty(t, ofType(again, "session_started"), "it was started before")
	require.Contains(t, results(again)["c2"].Content, "kept")
	require.Equal(t, "second answer", again[len(again)-1].Text)
}
