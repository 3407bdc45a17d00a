package examples_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/scripted"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// TestWordstats_ScriptRepairsTheProject plays the script of `make demo` against a copy
// of the project: its arguments are valid, its edit applies, and the tests fail
// before it and pass after it.
func TestWordstats_ScriptRepairsTheProject(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("wordstats")))

	before, passed := goCommand(t, dir, "test", "./...")
	require.False(t, passed, "the project must have a failing test:\n%s", before)
	require.Equal(t, 1, strings.Count(before, "    --- FAIL:"), "exactly one case fails:\n%s", before)

	table, err := tools.NewTable(toolset.Core()...)
	require.NoError(t, err)
	var used []string
	for _, call := range playScript(t, "wordstats.script.json") {
		_, _, refused := table.Plan(tools.Scope{Session: "demo", Sandbox: "demo"}, call.Name, call.Arguments)
		require.Nil(t, refused, "%s %s", call.Name, call.Arguments)
		used = append(used, call.Name)
		if call.Name == "edit" {
			applyEdit(t, dir, call.Arguments)
		}
	}
	require.Equal(t, []string{"bash", "list", "grep", "read", "read", "edit", "bash"}, used)

	after, passed := goCommand(t, dir, "test", "./...")
	require.True(t, passed, "the edit must repair the project:\n%s", after)
	vet, passed := goCommand(t, dir, "vet", "./...")
	require.True(t, passed, vet)
	counted, passed := goCommand(t, dir, "run", ".", "-top", "3", "testdata/fox.txt")
	require.True(t, passed, counted)
	require.Contains(t, counted, "17 words", "the answer of the script says so")
}

// playScript returns the tool calls of a whole script, in order.
func playScript(t *testing.T, file string) []loop.ToolCall {
	t.Helper()
	model, err := scripted.Load(file)
	require.NoError(t, err)
	var calls []loop.ToolCall
	conversation := []loop.Message{{Role: loop.RoleUser, Text: "Repair it."}}
	for {
		reply, err := model.Reply(t.Context(), loop.Request{Messages: conversation}, func(loop.Delta) {})
		require.NoError(t, err, "the last step must have no tool calls")
		require.NotEmpty(t, reply.Text)
		if len(reply.ToolCalls) == 0 {
			return calls
		}
		calls = append(calls, reply.ToolCalls...)
		conversation = append(conversation, loop.Message{Role: loop.RoleAssistant, Text: reply.Text, ToolCalls: reply.ToolCalls})
	}
}

// applyEdit does what the edit tool does: the old text occurs exactly once.
func applyEdit(t *testing.T, dir, arguments string) {
	t.Helper()
	var edit struct{ Path, Old, New string }
	require.NoError(t, json.Unmarshal([]byte(arguments), &edit))
	file := filepath.Join(dir, filepath.FromSlash(edit.Path))
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(content), edit.Old))
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(content), edit.Old, edit.New, 1)), 0o600))
}

func goCommand(t *testing.T, dir string, args ...string) (output string, passed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// TestReviewer_SubAgentsAnswer runs the reviewer with its three sub-agents, as docs/agents.md shows it.
func TestReviewer_SubAgentsAnswer(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	require.NoError(t, processtest.Build(bin, false, "./cmd/coordinator"))
	run := exec.CommandContext(t.Context(), filepath.Join(bin, "coordinator"), "run", "--json", "--sandbox", "process", "--data", t.TempDir(),
		"--model", "script:examples/reviewer/parent.json", "--toolset", "core,agents", "--agents", "examples/reviewer/agents",
		"--workspace", "examples/wordstats", "Review it.")
	run.Dir = ".."
	out, err := run.Output()
	require.NoError(t, err, "%s", out)
	require.Equal(t, 3, strings.Count(string(out), `"content":"I read every function: see the list above.`), "%s", out)
	require.Equal(t, 3, strings.Count(string(out), `[The fork has nothing new to merge.]`), "%s", out)
}
