package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
	got := succeed(t, coordinator, launch{args: runFlags(t, model, workspace, "--json")})
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
		"cut":  {raw("cut", "{"), "rejected", "invalid_tool_arguments", `JSON`},
		"text": {raw("text", "run it"), "rejected", "invalid_tool_arguments", `JSON`},
		"null": {raw("null", "null"), "rejected", "invalid_tool_arguments", `object`},
		"many faults": {
			use("many faults", "bash", object{"cmd": "x", "timeout": "soon"}), "rejected", "invalid_tool_arguments",
			`(?s)command.*cmd.*timeout|cmd.*command.*timeout|timeout.*cmd|command.*timeout.*cmd`,
		},
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
	got := succeed(t, coordinator, launch{args: runFlags(t, script(t, say("All wrong.", calls...), say("I see.")), workspace, "--json")})
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

	first := succeed(t, coordinator, launch{args: append(flags, "write it")})
	list := events(t, first.stdout)
	require.Equal(t, "0\n", results(list)["c1"].Content, "the workspace is empty")

	second := succeed(t, coordinator, launch{args: append(flags, "--session", list[0].SessionID, "read it")})
	again := events(t, second.stdout)
	require.Empty(t, ofType(again, "session_started"), "it was started before")
	require.Contains(t, results(again)["c2"].Content, "kept")
	require.Equal(t, "second answer", again[len(again)-1].Text)
}

// deaf is a file that nobody reads.
func deaf(t *testing.T) *os.File {
	t.Helper()
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reader.Close())
	t.Cleanup(func() { _ = writer.Close() })
	return writer
}

// TestPipe_AReaderThatWentAwayEndsNoSession: what was begun is done, and that nobody has read it is
// told.
func TestPipe_AReaderThatWentAwayEndsNoSession(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	model := script(t, say("", bash("c1", "yes | head -n 1")), say("done"))
	for name, flags := range map[string][]string{"answer": nil, "events": {"--json"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr strings.Builder
			cmd := exec.CommandContext(t.Context(), coordinator, append(append([]string{"run", "--session", name, "--model", model, "go"}, flags...), b.flags...)...)
			cmd.Env, cmd.Dir = append(os.Environ(), "HOME="+t.TempDir(), "TOOLFLEET_MIN_LEVEL=none"), t.TempDir()
			cmd.Stdout, cmd.Stderr = deaf(t), &stderr
			require.Error(t, cmd.Run())
			require.Equal(t, 1, cmd.ProcessState.ExitCode(), stderr.String())
			require.Contains(t, stderr.String(), "broken pipe")
			shown := execute(t, coordinator, launch{args: append([]string{"session", "show", name}, b.flags...)})
			require.Contains(t, shown.stdout, "answered")
		})
	}
}

// TestPipe_AWorkerNeedsNobodyToReadItsLog: it takes calls when what it says goes nowhere.
func TestPipe_AWorkerNeedsNobodyToReadItsLog(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	cmd := exec.CommandContext(t.Context(), worker, append([]string{"--sandbox", "process", "--data", t.TempDir(), "--log-level", "debug"}, b.flags...)...)
	cmd.Env, cmd.Stderr = append(os.Environ(), "HOME="+t.TempDir()), deaf(t)
	dieWithTests(cmd)
	require.NoError(t, cmd.Start())
	defer func() { // it has lived until now
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.NoError(t, cmd.Wait())
	}()
	got := execute(t, coordinator, launch{args: append([]string{"call", "bash", `{"command":"echo hi"}`, "--timeout", "2m"}, b.flags...)})
	require.Equal(t, 0, got.code, got.stdout+got.stderr)
}

// TestSubmit_SaysThatNobodyServes: a turn that nobody takes is no silence.
func TestSubmit_SaysThatNobodyServes(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	p := start(t, coordinator, launch{args: append([]string{"submit", "go"}, b.flags...)})
	p.waitFor(t, `the turn waits: no coordinator serves this fleet now`)
	p.signal(t, os.Interrupt)
	p.wait(t)
}

// TestSubmit_ShowsItsOwnTurn: whoever waits for another one's turn of the session is told so, and
// shown nothing of it.
func TestSubmit_ShowsItsOwnTurn(t *testing.T) {
	t.Parallel()
	hold := newGate(t)
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	startServe(t, script(t, say("First.", bash("c1", "echo begun; "+hold.pass())), say("One."), say("Two."), say("Three.")), b.flags...)
	submit := func(extra ...string) *process {
		return start(t, coordinator, launch{args: append(append([]string{"submit", "--session", "row", "go"}, b.flags...), extra...)})
	}
	one := submit()
	one.waitFor(t, `\[1\.1 bash\] +. running on (\S+)\n`)
	two := submit()
	two.waitFor(t, `the turn has waited 3s: .* an earlier turn of the session still runs`)
	three := submit("--json")
	three.waitFor(t, `the turn has waited 3s`)
	hold.open(t)
	for p, answer := range map[*process]string{one: "One.\n", two: "Two.\n"} {
		require.Equal(t, 0, p.wait(t), p)
		require.Equal(t, answer, p.stdout.String())
	}
	require.NotContains(t, two.stderr.String(), "One.")
	require.Equal(t, 0, three.wait(t), three)
	var texts []string
	for _, e := range ofType(events(t, three.stdout.String()), "model_reply") {
		texts = append(texts, e.Text)
	}
	require.Equal(t, []string{"Three."}, texts)
}
