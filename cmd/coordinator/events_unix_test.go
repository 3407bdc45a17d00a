//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
	delete(events, "call_judged") // and turns count in tool_call
	delete(events, "native_call") // a script is no provider with tools
	delete(events, "worker_lost") // TestWorker_ThatIsLostIsTold has it
	for kind := range events {
		require.True(t, seen[kind], "%s is missing in:\n%s", kind, out)
	}
	require.Equal(t, []string{"1.1", "1.2", "1.3", "1.0"}, order[:4], "refused ones end first")
}
