package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
)

// startFleet starts a server and a worker until the test ends, and returns the flags of
// coordinators for them and the directory of a session's files.
func startFleet(t *testing.T, session string) (flags []string, files string) {
	t.Helper()
	fl, files := startWorker(t, session, func(o *public.Options) { o.Data, o.Listen = t.TempDir(), "127.0.0.1:0" })
	return []string{"--nats", fl.Server.URL(), "--creds", fl.Server.CredentialFile(), "--session", session}, files
}

// startWorker starts a worker until the test ends, and returns its fleet and the directory of a
// session's files.
func startWorker(t *testing.T, session string, at func(o *public.Options)) (fl *fleet.Fleet, files string) {
	t.Helper()
	var o public.Options
	o.Opened = func(opened *fleet.Fleet) { fl = opened }
	at(&o)
	client, err := public.Connect(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	driver, dir := process.New(nil), t.TempDir()
	_, err = fl.StartWorker(t.Context(), worker.Options{
		Options: lane.Options{Slots: 4}, Data: t.TempDir(),
		Settings: sandboxes.Settings{
			Driver: driver, Caps: isolation.Caps{Driver: driver.Name()}, Env: map[string]string{"PATH": os.Getenv("PATH")},
			Workspace: func(sandbox string) (string, bool) {
				dir := filepath.Join(dir, sandbox)
				return dir, os.MkdirAll(dir, 0o755) == nil
			},
		},
	})
	require.NoError(t, err)
	return fl, filepath.Join(dir, session)
}

// stateless asks by a protocol version that the SDK's client has no tasks in.
func stateless(t *testing.T, url, method, name string, params map[string]any, answer any) {
	t.Helper()
	params["_meta"] = map[string]any{
		"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": map[string]any{"name": "test", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": map[string]any{"extensions": map[string]any{"io.modelcontextprotocol/tasks": map[string]any{}}},
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	require.NoError(t, err)
	for header, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28",
		"Mcp-Method": method, "Mcp-Name": name,
	} {
		request.Header.Set(header, value)
	}
	response, err := (&http.Client{Timeout: patience}).Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if at := bytes.LastIndex(said, []byte("data: ")); at >= 0 {
		said = said[at+len("data: "):]
	}
	require.NoError(t, json.Unmarshal(said, answer), "%s", said)
}

const waits = "touch begun; until [ -e go ]; do sleep 0.05; done; echo done"

// begun waits until a command has, and then lets it go on by what it returns.
func begun(t *testing.T, files string) (goOn func()) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(files, "begun"))
		return err == nil
	}, patience, 10*time.Millisecond)
	return func() { require.NoError(t, os.WriteFile(filepath.Join(files, "go"), nil, 0o600)) }
}

// begin makes a task that waits, and returns its id and what lets it go on.
func begin(t *testing.T, url, files string) (id string, goOn func()) {
	t.Helper()
	var made struct {
		Result struct{ ResultType, TaskID string }
	}
	stateless(t, url, "tools/call", "bash", map[string]any{"name": "bash", "arguments": map[string]any{"command": waits}}, &made)
	require.Equal(t, "task", made.Result.ResultType)
	return made.Result.TaskID, begun(t, files)
}

// found is how a task stands, and what its tool said.
func found(t *testing.T, url, id string) (status, text string) {
	t.Helper()
	var got struct {
		Result struct {
			Status string
			Result struct{ Content []struct{ Text string } }
		}
	}
	stateless(t, url, "tasks/get", id, map[string]any{"taskId": id}, &got)
	if got.Result.Result.Content != nil {
		text = got.Result.Result.Content[0].Text
	}
	return got.Result.Status, text
}

// ends waits for the result of a task, which has a text.
func ends(t *testing.T, url, id, says string) {
	t.Helper()
	var status, text string
	require.Eventually(t, func() bool {
		status, text = found(t, url, id)
		return status != "working" && status != "" // a server that is away is an error
	}, patience, 100*time.Millisecond)
	require.Equal(t, "completed", status)
	require.Contains(t, text, says)
}

// TestKilled_ATaskIsFound, whatever was killed meanwhile.
func TestKilled_ATaskIsFound(t *testing.T) {
	t.Parallel()
	t.Run("its coordinator: by any other", func(t *testing.T) {
		t.Parallel()
		flags, files := startFleet(t, "task")
		url, kill := start(t, append(flags, "--mcp-task-after", "0s")...)
		id, goOn := begin(t, url, files)
		kill()
		url, _ = start(t, flags...)
		status, _ := found(t, url, id)
		require.Equal(t, "working", status)
		goOn()
		ends(t, url, id, "done\n")
	})
	t.Run("the server: by the same coordinator, once it is there again", func(t *testing.T) {
		t.Parallel()
		data, script := t.TempDir(), filepath.Join(t.TempDir(), "script.json")
		require.NoError(t, os.WriteFile(script, []byte(`{"steps": [{"text": "Done."}]}`), 0o600))
		server := []string{"serve", "--model", "script:" + script, "--data", data, "--listen", fmt.Sprintf("127.0.0.1:%d", natsiotest.FreePorts(t, 1)[0])}
		at, kill := startCommand(t, "NATS", server...)
		creds := filepath.Join(data, fleet.ServerDir, embedded.TokenFile)
		_, files := startWorker(t, "task", func(o *public.Options) { o.URL, o.Creds = at, creds })
		url, _ := start(t, "--nats", at, "--creds", creds, "--session", "task", "--mcp-task-after", "0s")
		id, goOn := begin(t, url, files)
		kill()
		goOn()
		startCommand(t, "NATS", server...)
		ends(t, url, id, "done\n") // of a second attempt, if the worker was killed, too
	})
	t.Run("a fleet of its own: by the next one of its data and session", func(t *testing.T) {
		t.Parallel()
		files := t.TempDir()
		flags := []string{"--sandbox", "process", "--data", t.TempDir(), "--session", "task", "--workspace", files, "--mcp-task-after", "0s"}
		url, kill := start(t, flags...)
		id, goOn := begin(t, url, files)
		kill()
		goOn()
		url, _ = start(t, flags...)
		ends(t, url, id, "outcome_unknown") // in place a command that was interrupted does not start again
	})
}

// connect connects the SDK's client until the test ends, or its server does.
func connect(t *testing.T, url string) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, MaxRetries: -1}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = session.Close() }) // its server may have gone
	return session
}

// TestKilled_WhatGoesOnIsRead also by clients that know no tasks.
func TestKilled_WhatGoesOnIsRead(t *testing.T) {
	t.Parallel()
	flags, files := startFleet(t, "later")
	url, kill := start(t, append(flags, "--mcp-patience", "1ms")...)
	result, err := connect(t, url).CallTool(t.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": waits}})
	require.NoError(t, err)
	typed, _ := result.StructuredContent.(map[string]any)
	require.Equal(t, "working", typed["status"])
	path := fmt.Sprintf("result:%v", typed["call_id"])
	goOn := begun(t, files)
	kill()
	goOn()
	url, _ = start(t, flags...)
	c := connect(t, url)
	require.Eventually(t, func() bool {
		result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "read", Arguments: map[string]any{"path": path}})
		if err != nil || result.IsError { // it goes on
			return false
		}
		text, _ := result.Content[0].(*mcp.TextContent)
		return strings.Contains(text.Text, "done")
	}, patience, 100*time.Millisecond)
}
