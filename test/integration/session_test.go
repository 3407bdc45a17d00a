package integration

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// object is a JSON object.
type object = map[string]any

// step is one reply of a scripted model.
type step = object

// say is a reply with tool calls, or the answer without any.
func say(text string, calls ...object) step {
	if len(calls) == 0 {
		return step{"text": text}
	}
	return step{"text": text, "tool_calls": calls}
}

// use is a tool call.
func use(id, name string, arguments object) object {
	return object{"id": id, "name": name, "arguments": arguments}
}

// bash is a call of the tool bash.
func bash(id, command string) object { return use(id, "bash", object{"command": command}) }

// script writes a script and returns the value for --model.
func script(tb testing.TB, steps ...step) string {
	tb.Helper()
	content, err := json.Marshal(object{"steps": steps})
	require.NoError(tb, err)
	file := filepath.Join(tb.TempDir(), "script.json")
	require.NoError(tb, os.WriteFile(file, content, 0o600))
	return "script:" + file
}

// event is a line of `coordinator run --json`: the contract, written down once more.
type event struct {
	Type       string      `json:"type"`
	SessionID  string      `json:"session_id"`
	Step       int         `json:"step"`
	CallID     string      `json:"call_id"`
	ToolCallID string      `json:"tool_call_id"`
	Name       string      `json:"name"`
	Arguments  string      `json:"arguments"`
	Status     string      `json:"status"`
	Content    string      `json:"content"`
	Text       string      `json:"text"`
	WorkerID   string      `json:"worker_id"`
	Attempt    int         `json:"attempt"`
	QueueMS    *float64    `json:"queue_ms"`
	RunMS      *float64    `json:"run_ms"`
	Time       string      `json:"time"`
	TraceID    string      `json:"trace_id"`
	ToolCalls  []toolCall  `json:"tool_calls"`
	Usage      *usage      `json:"usage"`
	Error      *eventError `json:"error"`
	raw        object
}

type toolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type usage struct {
	InputTokens  *int64 `json:"input_tokens"`
	OutputTokens *int64 `json:"output_tokens"`
}

type eventError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// events reads stdout of --json, on which nothing but events may be.
func events(tb testing.TB, stdout string) []event {
	tb.Helper()
	require.True(tb, strings.HasSuffix(stdout, "\n"), stdout)
	var list []event
	for line := range strings.Lines(stdout) {
		var e event
		require.NoError(tb, json.Unmarshal([]byte(line), &e), line)
		require.NoError(tb, json.Unmarshal([]byte(line), &e.raw), line)
		require.NotEmpty(tb, e.Type, line)
		require.NotEmpty(tb, e.SessionID, line)
		list = append(list, e)
	}
	require.NotEmpty(tb, list)
	return list
}

// ofType are the events of a type, in their order.
func ofType(list []event, kind string) []event {
	var found []event
	for _, e := range list {
		if e.Type == kind {
			found = append(found, e)
		}
	}
	return found
}

// results are the results by the model's own ids of their calls.
func results(list []event) map[string]event {
	found := map[string]event{}
	for _, e := range ofType(list, "tool_result") {
		found[e.ToolCallID] = e
	}
	return found
}

// runFlags are the flags of a session with everything embedded.
func runFlags(tb testing.TB, model, workspace string, flags ...string) []string {
	tb.Helper()
	args := []string{"run", "--model", model, "--data", tb.TempDir(), "--sandbox", "process"}
	if workspace != "" {
		args = append(args, "--workspace", workspace)
	}
	return append(append(args, flags...), "do it")
}

// write makes a file and its directories.
func write(tb testing.TB, file, content string) {
	tb.Helper()
	require.NoError(tb, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(tb, os.WriteFile(file, []byte(content), 0o600))
}

func encode(tb testing.TB, value any) []byte {
	tb.Helper()
	body, err := json.Marshal(value)
	require.NoError(tb, err)
	return body
}

func content(tb testing.TB, file string) string {
	tb.Helper()
	data, err := os.ReadFile(file)
	require.NoError(tb, err)
	return string(data)
}

// goCommand runs the go tool in a directory and returns what it printed.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// linkTo makes a symbolic link.
func linkTo(tb testing.TB, target, name string) {
	tb.Helper()
	require.NoError(tb, os.Symlink(target, name))
}

// isolates reports whether this build has a driver that isolates on this host.
func isolates(tb testing.TB) bool {
	tb.Helper()
	_, _, err := drivers.Open(tb.Context(), drivers.Auto, nil)
	if err != nil {
		require.ErrorIs(tb, err, isolation.ErrLevel)
	}
	return err == nil
}

// TestSession_IsRemoved: a session that has ended is gone with its workspace; one that runs
// is refused, or ends.
func TestSession_IsRemoved(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	data := filepath.Join(t.TempDir(), "data")
	startWorkers(t, 1, append([]string{"--data", data}, b.flags...))
	hold := newGate(t)
	model := script(t, say("Writing.", use("c1", "write", object{"path": "a", "content": "x"})), say("Slow.", bash("c2", hold.pass())), say("Done."))
	run := append(append([]string{"run", "--session", "gone", "--model", model}, b.flags...), "go")
	rm := append([]string{"session", "rm", "gone"}, b.flags...)
	p := start(t, coordinator, launch{args: run})
	p.waitFor(t, `\[2\.1 bash\] +. running on`)
	refused := execute(t, coordinator, launch{args: rm})
	require.Equal(t, 1, refused.code)
	require.Contains(t, refused.stderr, "session is busy: turn 1 is open, lane sandbox/gone has 1 unfinished calls")
	require.DirExists(t, filepath.Join(data, "sandboxes", "gone", "workspace"))

	listed := succeed(t, coordinator, launch{args: append([]string{"session", "ls"}, b.flags...)})
	require.Regexp(t, `\ngo +running +\d+ s +\S+ +1 +2 +2 +gone\n`, listed.stdout)

	forced := succeed(t, coordinator, launch{args: append(rm, "--force")})
	require.Regexp(t, `^session gone is removed: \d+ messages of its journal, \d results, 0 stored outputs, its workspace\n$`, forced.stdout)
	require.NoDirExists(t, filepath.Join(data, "sandboxes", "gone"))
	require.Equal(t, 1, p.wait(t), "it cannot go on")
	shown := execute(t, coordinator, launch{args: append([]string{"session", "show", "gone"}, b.flags...)})
	require.Equal(t, 1, shown.code)
	require.Contains(t, shown.stderr, "session gone: there is no such session")
	again := execute(t, coordinator, launch{args: rm})
	require.Equal(t, 1, again.code, again.stdout)
	require.Contains(t, again.stderr, "session gone: there is no such session")
}

// TestEval_CasesRunOnTheFleet: each case has its own copy of the workspace, and its checks see what
// the agent did there. The exit code and the XML file report what has not passed.
func TestEval_CasesRunOnTheFleet(t *testing.T) {
	t.Parallel()
	model := script(t, say("Changing.", bash("c1", "echo new > made.txt")), say("All changed."))
	b := newBroker(t)
	startServe(t, model, b.flags...)
	startWorkers(t, 1, b.flags)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "project"), 0o700))
	write(t, filepath.Join(dir, "project", "there.txt"), "before\n")
	write(t, filepath.Join(dir, "good.yaml"), `cases:
  - {name: changes, prompt: do it, workspace: project, checks: [{command: cat made.txt there.txt}, {text: All changed}]}
  - {name: says, prompt: do it, checks: [{text: All changed}]}
`)
	good := b.session(t, "eval", "--json", filepath.Join(dir, "good.yaml"))
	require.Equal(t, 0, good.code, good)
	var results []struct {
		Name, State string
		Steps       int
	}
	require.NoError(t, json.Unmarshal([]byte(good.stdout), &results))
	require.Len(t, results, 2)
	require.Equal(t, "changes passed 2", results[0].Name+" "+results[0].State+" "+string(rune('0'+results[0].Steps)))
	require.NoFileExists(t, filepath.Join(dir, "project", "made.txt"))

	write(t, filepath.Join(dir, "bad.yaml"), `cases:
  - {name: changes, prompt: do it, workspace: project, checks: [{command: cat made.txt}]}
  - {name: wrong, prompt: do it, workspace: project, checks: [{command: "cat missing.txt"}, {text: nothing}]}
  - {name: too long, prompt: do it, budget: steps=1, checks: [{text: All changed}]}
`)
	xml := filepath.Join(dir, "results.xml")
	bad := b.session(t, "eval", "--junit", xml, filepath.Join(dir, "bad.yaml"))
	require.Equal(t, 1, bad.code, bad)
	require.Regexp(t, `changes\s+passed`, bad.stdout)
	require.Regexp(t, `wrong\s+failed .*check 1: cat missing.txt: exit code 1`, bad.stdout)
	require.Regexp(t, `too long\s+failed .*the turn ended as limit_reached`, bad.stdout)
	require.Contains(t, bad.stderr, "2 of 3 cases have not passed")
	content, err := os.ReadFile(xml)
	require.NoError(t, err)
	require.Contains(t, string(content), `tests="3" failures="2" errors="0"`)
	require.Contains(t, string(content), `No such file`)

	write(t, filepath.Join(dir, "nobody.yaml"), "cases: [{name: unserved, prompt: do it, model: 'script:other.json', checks: [{text: x}]}]\n")
	unserved := b.session(t, "eval", filepath.Join(dir, "nobody.yaml"))
	require.Equal(t, 1, unserved.code, unserved)
	require.Regexp(t, `unserved\s+error .*no coordinator serves`, unserved.stdout)

	unknown := b.session(t, "eval", filepath.Join(dir, "missing.yaml"))
	require.Equal(t, 2, unknown.code, unknown)
}

// Sessions begin with a template that is made of a directory, or of a session.
func TestTemplate_SessionsBeginWithIt(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	do := func(command string, args ...string) finished {
		t.Helper()
		return execute(t, coordinator, launch{args: append(append([]string{command}, b.flags...), args...)})
	}
	template := func(args ...string) finished { return do("template", args...) }
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("one\n"), 0o600))
	model := script(t, say("", bash("c1", "cat f; echo two >> f")), say("Done."))
	for _, w := range startWorkers(t, 1, b.flags) { // which makes the fleet
		require.Equal(t, 0, template("create", "base", dir).code)
		for _, session := range []string{"s-1", "s-2"} {
			got := do("run", "--template", "base", "--session", session, "--model", model, "go")
			require.Equal(t, 0, got.code, got)
			require.Contains(t, got.stderr, "one")
		}
		require.Equal(t, 0, template("create", "second", "s-1").code)
		called := do("call", "--min-level", "none", "--template", "second", "read", `{"path": "f"}`)
		require.Equal(t, 0, called.code, called)
		require.Contains(t, called.stdout, `"content":"one\ntwo\n"`)
		w.stop(t)
	}
	require.Regexp(t, `(?m)^base +\S+ \S+ +1 file, 4 bytes\nsecond +\S+ \S+ +1 file, 8 bytes$`, template("ls").stdout)
	require.Equal(t, 0, template("rm", "base").code)
	require.Contains(t, template("rm", "base").stderr, "there is no template base (template ls lists them)")
	for want, all := range map[int][][]string{
		1: {
			{"template", "rm", "base"},
			{"template", "create", "second", dir},
			{"template", "create", "third", "nobody"},
			{"run", "--template", "base", "--model", model, "go"},
		},
		2: {
			{"template", "create", "No", dir},
			{"template", "create", "no", filepath.Join(dir, "f")},
			{"template", "rm", "a.b"},
			{"run", "--template", "a b", "--model", model, "go"},
			{"run", "--template", "base", "--workspace", dir, "--model", model, "go"},
		},
	} {
		for _, args := range all {
			got := do(args[0], args[1:]...)
			require.Equal(t, want, got.code, "%v %v", args, got)
		}
	}
}
