package interop

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/npmtest"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// TestEditor has the protocol's own client of the Agent Client Protocol drive a session.
func TestEditor(t *testing.T) {
	t.Parallel()
	if !*tables {
		t.Skip("it installs packages of npm: make interop runs it")
	}
	sdk := filepath.Join(npmtest.Install(t, "test/interop/acp", "NO TEST WITH THE CLIENT OF THE AGENT CLIENT PROTOCOL"),
		"node_modules/@agentclientprotocol/sdk/dist/v1/stable/acp.js")
	dir, home := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\ntwo\n"), 0o600))
	script := filepath.Join(home, "script.json")
	require.NoError(t, os.WriteFile(script, []byte(`{"steps": [
		{"reasoning": "I think.", "text": "I look.", "tool_calls": [{"name": "read", "arguments": {"path": "a.txt"}}, {"name": "ask_user", "arguments": {"question": "Which?", "choices": ["x", "y"]}},
			{"name": "scratchpad", "arguments": {"action": "set", "key": "plan", "value": "- [x] read\n- [~] edit"}}, {"name": "edit", "arguments": {"path": "a.txt", "old": "two", "new": "2"}}]},
		{"text": "All done."}, {"text": "{\"n\": 7}"},
		{"tool_calls": [{"name": "bash", "arguments": {"command": "echo waiting; sleep 1000"}}]},
		{"tool_calls": [{"name": "own__greet", "arguments": {}}]}, {"text": "Greeted."}]}`), 0o600))
	state := filepath.Join(home, "state")
	t.Cleanup(func() { processtest.EndServer(state) })
	cmd := exec.CommandContext(t.Context(), "node", "testdata/editor.mjs", sdk, coordinator, dir, "--model",
		"script:"+script, "--sandbox", "process", "--toolset", "core,ask,scratchpad", "--unsaved")
	cmd.Env = append(environment(home), "XDG_STATE_HOME="+state)
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	require.NoError(t, err)
	var got struct {
		Version                                    int
		Kinds                                      map[string]int
		Asked, Modes                               []string
		Thought, First, Loaded, Stopped, Cancelled string
		Text, Resumed, Shown                       string
		User                                       []string
		Answered                                   struct {
			Meta map[string]any `json:"_meta"` //nolint:tagliatelle // as the protocol has it
		}
		Used []struct {
			Kind, Title string
			Locations   []struct{ Path string }
		}
		Diffs              []struct{ Path, OldText, NewText string }
		Statuses           map[string]string
		Listed, Left, Exit int
		Read, Plan         []string
		Form               struct {
			Mode, Message string
			Choices       []string
		}
		Error struct {
			Code    int
			Message string
			Data    map[string]string
		}
	}
	require.NoError(t, json.Unmarshal(output, &got), "%s", output)
	require.Equal(t, 1, got.Version)
	require.Equal(t, []string{"ask", "auto", "read-only"}, got.Modes)
	require.Len(t, got.Asked, 2)
	require.Equal(t, "edit a.txt", got.Asked[0])
	require.Contains(t, got.Asked[1], "greet", "a tool of the editor's own server")
	require.Equal(t, []string{"end_turn", "cancelled"}, []string{got.Stopped, got.Cancelled})
	const said = `I look.All done.{"n": 7}`
	require.Equal(t, []string{said, said, ""}, []string{got.First, got.Loaded, got.Resumed}, "live, loaded, and resumed")
	require.Equal(t, map[string]any{"toolfleet/answer": map[string]any{"n": 7.0}}, got.Answered.Meta)
	require.Equal(t, "Greeted.The conversation begins again.", got.Text)
	require.Contains(t, got.Shown, "hello from the editor")
	require.Regexp(t, "(?s)^go *`a.txt`.*`/elsewhere/b.txt`.*\\[.+\\]", strings.Join(got.User, ""), "with what was attached")
	kinds := map[string]bool{}
	for _, call := range got.Used {
		kinds[call.Kind] = true
		if call.Kind == "read" || call.Kind == "edit" {
			require.Equal(t, filepath.Join(dir, "a.txt"), call.Locations[0].Path, call.Title)
		}
	}
	require.Subset(t, slices.Collect(maps.Keys(kinds)), []string{"read", "edit", "execute"})
	require.Equal(t, "I think.I think.", got.Thought, "live, and loaded")
	require.Equal(t, filepath.Join(dir, "a.txt"), got.Diffs[0].Path)
	require.Equal(t, []int{1, 0}, []int{got.Listed, got.Left}, "and deleted")
	require.Len(t, got.Statuses, 6)
	require.Equal(t, []string{filepath.Join(dir, "a.txt")}, got.Read)
	require.Equal(t, []string{"completed: read", "in_progress: edit"}, got.Plan)
	require.Equal(t, "form Which? [x y]", fmt.Sprint(got.Form.Mode, " ", got.Form.Message, " ", got.Form.Choices))
	for _, kind := range []string{"user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "available_commands_update"} {
		require.Positive(t, got.Kinds[kind], kind)
	}
	require.Equal(t, -32602, got.Error.Code)
	require.Equal(t, "cwd", got.Error.Data["field"])
	require.Zero(t, got.Exit, "it ends with the editor")
	fmt.Printf("\n@agentclientprotocol/sdk: a session ran, asked, answered by a schema, was cancelled, closed, loaded, resumed and deleted\n")
}
