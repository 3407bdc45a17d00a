package interop

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
		{"text": "All done."},
		{"tool_calls": [{"name": "bash", "arguments": {"command": "echo waiting; sleep 1000"}}]}]}`), 0o600))
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
		Diffs                                      []struct{ Path, OldText, NewText string }
		Statuses                                   map[string]string
		Listed, Left, Exit                         int
		Read, Plan                                 []string
		Form                                       struct {
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
	require.Equal(t, []string{"edit a.txt"}, got.Asked)
	require.Equal(t, []string{"end_turn", "cancelled"}, []string{got.Stopped, got.Cancelled})
	require.Equal(t, []string{"I look.All done.", "I look.All done."}, []string{got.First, got.Loaded})
	require.Equal(t, "I think.I think.", got.Thought, "live, and loaded")
	require.Equal(t, filepath.Join(dir, "a.txt"), got.Diffs[0].Path)
	require.Equal(t, []int{1, 0}, []int{got.Listed, got.Left}, "and deleted")
	require.Len(t, got.Statuses, 5)
	require.Equal(t, []string{filepath.Join(dir, "a.txt")}, got.Read)
	require.Equal(t, []string{"completed: read", "in_progress: edit"}, got.Plan)
	require.Equal(t, "form Which? [x y]", fmt.Sprint(got.Form.Mode, " ", got.Form.Message, " ", got.Form.Choices))
	for _, kind := range []string{"user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "available_commands_update"} {
		require.Positive(t, got.Kinds[kind], kind)
	}
	require.Equal(t, -32602, got.Error.Code)
	require.Equal(t, "cwd", got.Error.Data["field"])
	require.Zero(t, got.Exit, "it ends with the editor")
	fmt.Printf("\n@agentclientprotocol/sdk: a session ran, asked, was cancelled, closed, loaded and deleted\n")
}
