package integration

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// taskAnswer is what a client that knows tasks gets.
type taskAnswer struct {
	Result struct {
		ResultType, TaskID, Status string
		Result                     struct{ Content []struct{ Text string } }
	}
}

// askTask sends a request of 2026-07-28 as a client that knows tasks.
func askTask(t *testing.T, url, method, name, params string) (got taskAnswer) {
	t.Helper()
	body := `{"jsonrpc": "2.0", "id": 1, "method": "` + method + `", "params": {` + params + `, "_meta": {
		"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}
	}}}`
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	for header, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name,
	} {
		request.Header.Set(header, value)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if at := bytes.LastIndex(said, []byte("data: ")); at >= 0 {
		said = said[at+len("data: "):]
	}
	require.NoError(t, json.Unmarshal(said, &got), "%s", said)
	return got
}

// TestMcp_TaskSurvivesItsCoordinator: the coordinator that took a task is killed, then its worker;
// a client that comes back to another coordinator finds the result.
func TestMcp_TaskSurvivesItsCoordinator(t *testing.T) {
	t.Parallel()
	b, model := newBroker(t), script(t, say("Done."))
	workers := startWorkers(t, 1, b.flags)
	serve := func() (*process, string) {
		p := startServe(t, model, append(b.flags, "--mcp", "127.0.0.1:0", "--mcp-task-after", "0s")...)
		return p, mcpURL(t, p) + "/k"
	}
	first, url := serve()
	made := askTask(t, url, "tools/call", "bash", `"name": "bash", "arguments": {"command": "sleep 2; echo done"}`).Result
	require.Equal(t, "task", made.ResultType)
	first.kill(t)
	for _, w := range workers {
		w.kill(t)
	}
	startWorkers(t, 1, b.flags)
	_, url = serve()
	var got taskAnswer
	require.Eventually(t, func() bool {
		got = askTask(t, url, "tasks/get", made.TaskID, `"taskId": "`+made.TaskID+`"`)
		return got.Result.Status != "working"
	}, patience, 100*time.Millisecond)
	require.Equal(t, "completed", got.Result.Status)
	require.Contains(t, got.Result.Result.Content[0].Text, "done")
}
