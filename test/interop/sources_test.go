package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// longTool is one that takes a time, and says how far it has come.
const longTool = "trigger-long-running-operation"

// sources writes a file for --mcp-config with servers of others, which live with the files of a
// session. Each writes the id of its process into a file of its name when it starts.
func sources(t *testing.T, files string) (config string) {
	t.Helper()
	node, dir := install(t)
	servers, settings := map[string]any{}, map[string]any{
		"everything": map[string]any{longTool: map[string]any{"delivery": "at_most_once"}}, // its hint is that it only reads
	}
	for name, arguments := range map[string][]string{"filesystem": {"."}, "memory": {}, "everything": {"stdio"}} {
		script := filepath.Join(dir, "node_modules/@modelcontextprotocol/server-"+name+"/dist/index.js")
		servers[name] = map[string]any{
			"command": "sh", "args": append([]string{"-c", `echo $$ >>` + name + `.pid; exec "$0" "$@"`, node, script}, arguments...),
			"env":       map[string]string{"MEMORY_FILE_PATH": filepath.Join(files, "memory.jsonl")},
			"toolfleet": map[string]any{"tools": settings[name]},
		}
	}
	content, err := json.Marshal(map[string]any{"mcpServers": servers})
	require.NoError(t, err)
	config = filepath.Join(t.TempDir(), "mcp.json")
	require.NoError(t, os.WriteFile(config, content, 0o600))
	return config
}

// starts are the processes that a server of [sources] has been.
func starts(t *testing.T, files, name string) (processes []int) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(files, name+".pid"))
	require.NoError(t, err)
	for line := range strings.FieldsSeq(string(content)) {
		process, err := strconv.Atoi(line)
		require.NoError(t, err)
		processes = append(processes, process)
	}
	return processes
}

// coordinate runs a command of the coordinator that answers in JSON.
func coordinate(t *testing.T, answer any, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), coordinator, args...)
	cmd.Env = environment(t.TempDir())
	var problems bytes.Buffer
	cmd.Stderr = &problems
	output, err := cmd.Output()
	require.NoError(t, err, "%s%s", output, &problems)
	require.NoError(t, json.Unmarshal(output, answer), "%s", output)
}

// called is what coordinator call prints.
type called struct {
	Status, Content string
	Result          struct {
		Content []struct {
			Type, URI string
			MediaType string `json:"media_type"`
		}
	}
}

// TestSources_OfOthers has servers of others as tools: by their names, with the files and the
// process of their session.
func TestSources_OfOthers(t *testing.T) {
	t.Parallel()
	flags, files := startFleet(t, "sources")
	config := sources(t, files)
	var listed []struct{ Name string }
	coordinate(t, &listed, "tools", "--mcp-config", config, "--sandbox", "process")
	for _, name := range []string{"filesystem__read_text_file", "memory__read_graph", "everything__get-sum"} {
		require.Contains(t, listed, struct{ Name string }{name})
	}
	call := func(tool, arguments string) (c called) {
		t.Helper()
		coordinate(t, &c, append([]string{"call", "--mcp-config", config, tool, arguments}, flags...)...)
		require.Equal(t, "ok", c.Status)
		return c
	}
	call("filesystem__write_file", `{"path": "a.txt", "content": "alpha"}`)
	content, err := os.ReadFile(filepath.Join(files, "a.txt"))
	require.NoError(t, err)
	require.Equal(t, "alpha", string(content))
	require.Equal(t, "alpha", call("filesystem__read_text_file", `{"path": "a.txt"}`).Content)

	call("memory__create_entities", `{"entities": [{"name": "Ann", "entityType": "person", "observations": ["likes tea"]}]}`)
	require.Contains(t, call("memory__search_nodes", `{"query": "tea"}`).Content, "Ann")
	require.Len(t, starts(t, files, "memory"), 1)

	image := call("everything__get-tiny-image", `{}`).Result.Content
	require.Equal(t, "image", image[1].Type)
	require.Equal(t, "image/png", image[1].MediaType)
	link := call("everything__get-resource-links", `{"count": 1}`).Result.Content
	require.Equal(t, "resource_link", link[1].Type)
	require.Contains(t, link[1].URI, "demo://resource/")
}

// TestSources_KilledInACall has a server of others die while its tool runs, of which a client has
// heard by progress: what the call did is not known, and the next one has a fresh process.
func TestSources_KilledInACall(t *testing.T) {
	t.Parallel()
	flags, files := startFleet(t, "killed")
	url, _ := start(t, append(flags, "--mcp-config", sources(t, files))...)
	progress := make(chan string, 1000)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { progress <- r.Params.Message },
	})
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, MaxRetries: -1}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = session.Close() })
	type ending struct {
		status any
		text   string
		err    error
	}
	call := func(seconds float64) (e ending) {
		params := &mcp.CallToolParams{Name: "everything__" + longTool, Arguments: map[string]any{"duration": seconds, "steps": 100}}
		params.SetProgressToken("token")
		result, err := session.CallTool(t.Context(), params)
		if err != nil {
			return ending{err: err}
		}
		typed, _ := result.StructuredContent.(map[string]any)
		said, _ := result.Content[0].(*mcp.TextContent)
		return ending{status: typed["status"], text: said.Text}
	}
	ended := make(chan ending, 1)
	go func() { ended <- call(60) }()
	for message := <-progress; !strings.Contains(message, "[progress 1/100"); {
		message = <-progress
	}
	process, err := os.FindProcess(starts(t, files, "everything")[0])
	require.NoError(t, err)
	require.NoError(t, process.Kill())
	lost := <-ended
	require.NoError(t, lost.err)
	require.Equal(t, "outcome_unknown", lost.status, lost.text)
	require.Contains(t, lost.text, "it was killed by")
	next := call(0.1)
	require.NoError(t, next.err)
	require.Equal(t, "ok", next.status, next.text)
	processes := starts(t, files, "everything")
	require.Len(t, processes, 2)
	require.NotEqual(t, processes[0], processes[1])
}
