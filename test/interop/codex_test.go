package interop

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/npmtest"
)

// responses is a server of models that has its model run a command by a tool of an MCP server, and
// say its output then. Codex offers such tools in a name space, mcp__SERVER.
func responses(t *testing.T, command string) (url string) {
	t.Helper()
	arguments, err := json.Marshal(map[string]string{"command": command})
	require.NoError(t, err)
	return listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Input []struct {
				Type   string
				Output json.RawMessage
			}
		}
		if json.NewDecoder(r.Body).Decode(&asked) != nil {
			w.WriteHeader(http.StatusNotFound) // it was asked for something else than an answer
			return
		}
		item := map[string]any{
			"type": "function_call", "id": "f1", "call_id": "c1", "namespace": "mcp__toolfleet", "name": "bash", "arguments": string(arguments),
		}
		for _, input := range asked.Input {
			if input.Type == "function_call_output" {
				item = map[string]any{"type": "message", "id": "m1", "role": "assistant", "content": []any{
					map[string]any{"type": "output_text", "text": "The tool said: " + string(input.Output)},
				}}
			}
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range []map[string]any{
			{"type": "response.created", "response": map[string]any{"id": "r1"}},
			{"type": "response.output_item.done", "output_index": 0, "item": item},
			{"type": "response.completed", "response": map[string]any{
				"id": "r1", "usage": map[string]any{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
			}},
		} {
			data, _ := json.Marshal(event) // it has nothing that JSON has not
			_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event["type"], data)
		}
	}))
}

// TestCodex has the agent Codex do its model's work in the shell by the fleet.
func TestCodex(t *testing.T) {
	t.Parallel()
	if !*tables {
		t.Skip("the agent is 400 MB: make interop runs it")
	}
	dir := npmtest.Install(t, "test/interop/codex", "NO TEST AGAINST CODEX")
	found, err := filepath.Glob(filepath.Join(dir, "node_modules/@openai/codex-*/vendor/*/bin/codex"))
	require.NoError(t, err)
	require.Len(t, found, 1, "of this system")
	for name, at := range map[string]func(t *testing.T, workspace string) string{
		"stdio": func(t *testing.T, workspace string) string {
			t.Helper()
			return fmt.Sprintf("command = %q\nargs = [\"mcp\", \"--workspace\", %q, \"--sandbox\", \"process\"]\nenv = {TOOLFLEET_MIN_LEVEL = \"none\", HOME = %q}\n",
				coordinator, workspace, t.TempDir())
		},
		"http": func(t *testing.T, workspace string) string {
			t.Helper()
			return "url = " + strconv.Quote(serve(t, "--workspace", workspace)) + "\n"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, workspace := t.TempDir(), t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(workspace, "a.txt"), []byte("alpha\n"), 0o600))
			base := strings.TrimSuffix(responses(t, "cat a.txt; echo beta >b.txt"), "/mcp")
			require.NoError(t, os.WriteFile(filepath.Join(home, "config.toml"), []byte(
				"model = \"m\"\nmodel_provider = \"p\"\napproval_policy = \"never\"\n"+
					"[model_providers.p]\nname = \"p\"\nwire_api = \"responses\"\nbase_url = "+strconv.Quote(base+"/v1")+"\n"+
					"[mcp_servers.toolfleet]\ndefault_tools_approval_mode = \"approve\"\nstartup_timeout_sec = 120\n"+at(t, workspace)), 0o600))
			cmd := exec.CommandContext(t.Context(), found[0], "exec", "--skip-git-repo-check", "--json", "--cd", workspace, "What is in a.txt?")
			cmd.Env = append(environment(home), "CODEX_HOME="+home)
			output, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", output)
			require.Regexp(t, `agent_message.*The tool said.*alpha`, string(output))
			require.FileExists(t, filepath.Join(workspace, "b.txt"))
			fmt.Printf("\n@openai/codex over %s: a command ran by tool bash of toolfleet\n", name)
		})
	}
}
