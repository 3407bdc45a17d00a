//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/telemetry/telemetrytest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	clipboard = "\x1b]52;c;cm0gLXJmIH4=\x07" // writes the clipboard
	shown     = "␛]52;c;cm0gLXJmIH4=␇"
	csi       = "\u009b" // begins what acts on a terminal, and JSON may have it as it is
)

// The answer goes to standard output, which is a terminal also where progress is not wanted.
func TestRun_AnswerDoesNothingToATerminal(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script.json")
	require.NoError(t, os.WriteFile(script, []byte(`{"steps": [{"text": "Look: \u001b]52;c;cm0gLXJmIH4=\u0007"}]}`), 0o600))
	args := []string{"run", "--sandbox", "process", "--model", "script:" + script, "--data", t.TempDir(), "go"}

	screen, slave, err := pty.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, screen.Close()) })
	cmd := coordinator(t, args...)
	cmd.Stdout = slave
	require.NoError(t, cmd.Run())
	_, err = slave.WriteString("END")
	require.NoError(t, err)
	require.Equal(t, "Look: "+shown+"\r\nEND", readUntil(t, screen, "END"))

	var piped bytes.Buffer
	cmd = coordinator(t, append(args[:len(args)-3], "--data", t.TempDir(), "go")...)
	cmd.Stdout = &piped
	require.NoError(t, cmd.Run())
	require.Equal(t, "Look: "+clipboard+"\n", piped.String(), "a pipe gets every byte")
}

// What a worker calls itself is its own choice.
func TestWorkers_NamesDoNothingToATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, printWorkers(&out, []*wire.WorkerInfo{{
		WorkerID: clipboard, Build: clipboard, Driver: clipboard, Level: clipboard, Network: clipboard,
		Languages: []string{clipboard}, Kinds: []protocol.Kind{clipboard + "\nw2\t1"},
	}}))
	require.NotContains(t, out.String(), "\x1b")
	require.NotContains(t, out.String(), "\x07")
	require.Equal(t, 2, bytes.Count(out.Bytes(), []byte("\n")), "no row of its own making:\n%s", out.String())
}

// What a session has written, and what it calls its files, is shown by every verb that prints it; a
// pipe gets it as it is.
func TestSession_FilesDoNothingToATerminal(t *testing.T) {
	t.Parallel()
	const name = csi + `evil\u001b]52;c;cm0gLXJmIH4=\u0007`
	writes := `{"name": "write", "arguments": {"path": "` + name + `", "content": "` + name + `\n"}}`
	fleet := served(t, script(t, `{"text": "`+name+`", "tool_calls": [`+writes+`]}, {"text": "Done."}`))
	cmd := coordinator(t, append([]string{"submit", "--json", "--min-level", "none", "--session", "s-1", "go"}, fleet...)...)
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	session := func(verb string, args ...string) []string {
		return append(append([]string{"session", verb}, fleet...), args...)
	}
	out, err = coordinator(t, session("diff", "--json", "s-1")...).Output()
	require.NoError(t, err)
	var calls []struct{ Calls []string }
	require.NoError(t, json.Unmarshal(out, &calls))

	const named, escaped, quoted = csi + "evil" + clipboard, `evil\u001b]52;c;cm0gLXJmIH4=\u0007`, `evil\x1b]52;c;cm0gLXJmIH4=\a"`
	for verb, c := range map[string]struct {
		args           []string
		screen, inPipe string
	}{
		"files":       {session("files", "s-1", named), "evil" + shown, named},
		"files all":   {session("files", "s-1"), quoted, quoted},
		"diff":        {session("diff", "s-1", calls[0].Calls[0]), "evil" + shown + "\r\n", "+++ " + strconv.Quote("b/"+named) + "\n"},
		"diff --json": {session("diff", "--json", "s-1", calls[0].Calls[0]), escaped, escaped},
		"log":         {session("log", "s-1"), "evil" + shown, "evil" + shown},
		"log --json":  {session("log", "--json", "s-1"), escaped, escaped},
		"export":      {session("export", "s-1"), escaped, escaped},
		"pull":        {session("pull", "s-1", conflicting(t, named)), "evil" + shown, "0 removed"}, // it is there by then
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			screen, slave, err := pty.Open()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, screen.Close()) })
			cmd := coordinator(t, c.args...)
			cmd.Stdout, cmd.Stderr = slave, slave
			require.NoError(t, cmd.Run())
			_, err = slave.WriteString("END")
			require.NoError(t, err)
			got := readUntil(t, screen, "END")
			require.NotContains(t, got, clipboard)
			require.NotContains(t, got, "\x07")
			require.NotContains(t, got, csi)
			require.Contains(t, got, c.screen)

			piped, err := coordinator(t, c.args...).CombinedOutput()
			require.NoError(t, err)
			require.Contains(t, string(piped), c.inPipe)
		})
	}
}

// conflicting is a directory with another file of that name.
func conflicting(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("mine\n"), 0o600))
	return dir
}

// coordinator is this program as the coordinator.
func coordinator(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	executable, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), executable)
	cmd.Args = append([]string{"coordinator"}, args...)
	return cmd
}

func readUntil(t *testing.T, screen *os.File, end string) string {
	t.Helper()
	var got []byte
	for buf := make([]byte, 1000); !bytes.HasSuffix(got, []byte(end)); {
		n, err := screen.Read(buf)
		require.NoError(t, err, "%s", got)
		got = append(got, buf[:n]...)
	}
	return string(got)
}

// What a session prints is what docs/cli.md promises, and results come as calls end: the first call
// waits for a file that is written behind it.
func TestRunJSON_AsDocumented(t *testing.T) {
	t.Parallel()
	executable, err := os.Executable()
	require.NoError(t, err)
	beside, dir := t.TempDir(), t.TempDir()
	coordinator := filepath.Join(beside, "coordinator")
	require.NoError(t, os.Symlink(executable, coordinator))
	require.NoError(t, exec.CommandContext(t.Context(), "git", "init", "-q", dir).Run())
	slow := filepath.Join(beside, "slow")
	require.NoError(t, os.Mkdir(slow, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(slow, "slow.yaml"), []byte(`
name: slow
description: Takes its time.
parameters: {type: object}
background: true
command: [sh, -c, "echo 1"]
`), 0o600))
	model := script(t, `
		{"text": "a", "reasoning": "hm", "tool_calls": [
			{"id": "c1", "name": "bash", "arguments": {"command": "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; exit 3"}},
			{"id": "c2", "name": "write", "arguments": {"path": "a", "content": "b"}},
			{"id": "c3", "name": "edit", "arguments": {"path": "a", "old": "b", "new": "c"}},
			{"id": "c4", "name": "nosuch", "arguments": {}}]},
		{"tool_calls": [{"id": "c5", "name": "slow", "arguments": {}}, {"id": "c6", "name": "multi_edit", "arguments": {"files": []}}]},
		{"tool_calls": [{"id": "c7", "name": "job_wait", "arguments": {"job": "job_1_2_0"}}]},
		{"text": "done"}`)
	cmd := exec.CommandContext(t.Context(), coordinator, "run", "--json", "--sandbox", "process", "--workspace", dir, "--data", t.TempDir(),
		"--tools", slow, "--toolset", "core,jobs", "--deny-tool", "write", "--ask-for", "edit", "--model", model, "Go.")
	cmd.Env = append(os.Environ(), "HOME="+beside)
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)

	events, seen, order := documented(t), map[string]bool{}, []string{}
	for line := range strings.Lines(string(out)) {
		event := requireDocumented(t, line, events)
		kind, _ := event["type"].(string)
		seen[kind] = true
		if kind == "tool_result" {
			order = append(order, fmt.Sprintf("%v.%v", event["step"], event["index"]))
		}
	}
	delete(events, "approval_asked") // nobody is asked here
	delete(events, "question_asked") // nor by a server
	delete(events, "question_answered")
	delete(events, "part_left_out") // which refuses nothing either
	delete(events, "model_waits")   // nor is a provider down
	delete(events, "conversation_compacted")
	delete(events, "reply_failed")   // a script's replies do not fail
	delete(events, "turn_postponed") // no trigger begins this turn
	delete(events, "input_added")    // no person types, or goes back
	delete(events, "conversation_rewound")
	delete(events, "call_judged")    // and turns count in tool_call
	delete(events, "native_call")    // a script is no provider with tools
	delete(events, "worker_lost")    // TestWorker_ThatIsLostIsTold has it
	delete(events, "answer_refused") // no schema is given
	delete(events, "hook_decided")   // nor hooks
	for kind := range events {
		require.True(t, seen[kind], "%s is missing in:\n%s", kind, out)
	}
	require.Equal(t, []string{"1.1", "1.2", "1.3", "1.0"}, order[:4], "refused ones end first")
}

// Whoever exports traces is told which one a call was.
func TestCall_SaysWhichTrace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env    []string
		traced string
	}{
		"exported": {telemetrytest.Start(t).Env(), `^[0-9a-f]{32}$`}, "not exported": {nil, `^$`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := coordinator(t, "call", "--sandbox", "process", "--data", t.TempDir(), "bash", `{"command": "true"}`)
			cmd.Env = append(append(os.Environ(), "HOME="+t.TempDir()), c.env...)
			out, err := cmd.Output()
			require.NoError(t, err, "%s", out)
			var result callOutput
			require.NoError(t, json.Unmarshal(out, &result))
			require.Regexp(t, c.traced, result.TraceID)
		})
	}
}
