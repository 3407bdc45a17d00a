package integration

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// mcpClient connects a client of the official SDK.
func mcpClient(tb testing.TB, transport mcp.Transport) *mcp.ClientSession {
	tb.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(tb.Context(), transport, nil)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = session.Close() }) // the server may have ended
	return session
}

func mcpBash(tb testing.TB, c *mcp.ClientSession, command string) string {
	tb.Helper()
	result, err := c.CallTool(tb.Context(), &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": command}})
	require.NoError(tb, err)
	require.False(tb, result.IsError, "%v", result.StructuredContent)
	said, ok := result.Content[0].(*mcp.TextContent)
	require.True(tb, ok)
	return said.Text
}

// TestMcp_OnStdio is an agent that starts the coordinator as its server, in place.
func TestMcp_OnStdio(t *testing.T) {
	t.Parallel()
	home, workspace := t.TempDir(), t.TempDir()
	write(t, filepath.Join(workspace, "a.txt"), "alpha\n")
	command := exec.CommandContext(context.WithoutCancel(t.Context()), coordinator, "mcp", "--workspace", workspace, "--sandbox", "process")
	command.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "TOOLFLEET_MIN_LEVEL=none")
	dieWithTests(command)
	c := mcpClient(t, &mcp.CommandTransport{Command: command})
	require.Equal(t, "alpha\n", mcpBash(t, c, "cat a.txt; echo beta >b.txt"))
	require.FileExists(t, filepath.Join(workspace, "b.txt"))
	require.NoError(t, c.Close())
	log := execute(t, coordinator, launch{args: []string{"session", "ls"}, env: []string{"HOME=" + home}})
	require.Regexp(t, `answered .* 1 +1 +1 `, log.stdout, "what an agent does is kept as a session")
}

// TestMcp_ToolsComeAndGo: clients are told when the folder of tools changes.
func TestMcp_ToolsComeAndGo(t *testing.T) {
	t.Parallel()
	home, folder := t.TempDir(), t.TempDir()
	command := exec.CommandContext(context.WithoutCancel(t.Context()), coordinator, "mcp", "--tools", folder, "--sandbox", "process")
	command.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "TOOLFLEET_MIN_LEVEL=none")
	dieWithTests(command)
	changed := make(chan struct{}, 9)
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	}).Connect(t.Context(), &mcp.CommandTransport{Command: command}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // the server may have ended
	manifest, err := os.ReadFile("../../examples/tools/digest.yaml")
	require.NoError(t, err)
	has := func(is bool) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(time.Minute):
			require.Fail(t, "no word of a change")
		}
		listed, err := c.ListTools(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, is, slices.ContainsFunc(listed.Tools, func(tool *mcp.Tool) bool { return tool.Name == "digest" }))
	}
	require.NoError(t, os.WriteFile(filepath.Join(folder, "new"), manifest, 0o600))
	require.NoError(t, os.Rename(filepath.Join(folder, "new"), filepath.Join(folder, "digest.yaml")))
	has(true)
	require.NoError(t, os.Remove(filepath.Join(folder, "digest.yaml")))
	has(false)
}

// TestMcp_ToolsetsOfOtherSystems: an agent of another system reads what it always did.
func TestMcp_ToolsetsOfOtherSystems(t *testing.T) {
	t.Parallel()
	const none, file = `{"path":"none"}`, `{"path":"a.txt"}`
	for set, calls := range map[string][][3]string{
		"openrath": {{"read_workspace_file", file, `{"data":"alpha\n"}`}, {"read_workspace_file", none, `{"ok":false,"error_kind":"file_not_found","message":"`}},
		"smithers": {{"read", file, "alpha\n"}, {"read", none, "ENOENT: no such file or directory, open 'none'"}},
		"files":    {{"read_file", file, "alpha\n"}, {"read_file", none, "Error: File not found 'none'"}},
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			home, workspace := t.TempDir(), t.TempDir()
			write(t, filepath.Join(workspace, "a.txt"), "alpha\n")
			command := exec.CommandContext(context.WithoutCancel(t.Context()), coordinator, "mcp", "--toolset", set, "--workspace", workspace, "--sandbox", "process")
			command.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "TOOLFLEET_MIN_LEVEL=none")
			dieWithTests(command)
			c := mcpClient(t, &mcp.CommandTransport{Command: command})
			for i, call := range calls {
				result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: call[0], Arguments: json.RawMessage(call[1])})
				require.NoError(t, err)
				require.Equal(t, i > 0, result.IsError)
				said, ok := result.Content[0].(*mcp.TextContent)
				require.True(t, ok)
				require.True(t, strings.HasPrefix(said.Text, call[2]), said.Text)
			}
		})
	}
}

// mcpURL is where clients without a token reach a coordinator.
func mcpURL(t *testing.T, p *process) string {
	t.Helper()
	at := p.waitFor(t, `MCP is at (\S+) for clients that send the token in (.+) \(Authorization`)
	return processtest.Authorized(t, at[1], at[2])
}

// TestMcp_OnlyWithItsToken: whoever reaches the port needs the token, which only its owner reads; a
// socket is its owner's, and replaces one that was left behind.
func TestMcp_OnlyWithItsToken(t *testing.T) {
	t.Parallel()
	b, model := newBroker(t), script(t, say("Done."))
	startWorkers(t, 1, b.flags)
	p := startServe(t, model, append(b.flags, "--mcp", "127.0.0.1:0")...)
	at := p.waitFor(t, `MCP is at (\S+) for clients that send the token in (.+) \(Authorization`)
	_, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: at[1]}, nil)
	require.ErrorContains(t, err, "Unauthorized")
	info, err := os.Stat(at[2])
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.Equal(t, "hi\n", mcpBash(t, mcpClient(t, &mcp.StreamableClientTransport{Endpoint: mcpURL(t, p)}), "echo hi"))

	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // a path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "mcp.sock")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	t.Cleanup(client.CloseIdleConnections)
	for range 2 {
		p := startServe(t, model, append(b.flags, "--mcp", "unix:"+socket)...)
		p.waitFor(t, `MCP is at `+socket)
		info, err := os.Stat(socket)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		require.Equal(t, "hi\n", mcpBash(t, mcpClient(t, &mcp.StreamableClientTransport{Endpoint: "http://localhost/mcp", HTTPClient: client}), "echo hi"))
		p.kill(t)
	}
	write(t, filepath.Join(dir, "file"), "")
	got := execute(t, coordinator, launch{args: []string{"mcp", "--listen", "unix:" + filepath.Join(dir, "file")}})
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, "exists, and is not a socket")
}

// TestMcp_OverHTTP is a client of a fleet whose coordinator is killed: another one serves it, and
// its files are still there.
func TestMcp_OverHTTP(t *testing.T) {
	t.Parallel()
	b, model := newBroker(t), script(t, say("Done."))
	startWorkers(t, 1, b.flags)
	serve := func() (*process, string) {
		p := startServe(t, model, append(b.flags, "--mcp", "127.0.0.1:0")...)
		return p, mcpURL(t, p)
	}
	first, url := serve()
	require.NotEmpty(t, mcpBash(t, mcpClient(t, &mcp.StreamableClientTransport{Endpoint: url + "/k"}), "echo kept >f"))
	first.kill(t)
	_, url = serve()
	require.Equal(t, "kept\n", mcpBash(t, mcpClient(t, &mcp.StreamableClientTransport{Endpoint: url + "/k"}), "cat f"))
}

// TestMcp_ASessionThatItsClientEndsIsRemoved: what only a session of the protocol used goes with
// it; a sandbox that has a key, or that calls without a session used, is listed until it is
// removed.
func TestMcp_ASessionThatItsClientEndsIsRemoved(t *testing.T) {
	t.Parallel()
	b, model := newBroker(t), script(t, say("Done."))
	startWorkers(t, 1, b.flags)
	url := mcpURL(t, startServe(t, model, append(b.flags, "--mcp", "127.0.0.1:0")...))
	id := ""
	request := func(method, body string) string { // as of a version of the protocol that has sessions
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		require.NoError(t, err)
		r.Header = http.Header{
			"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
			"Mcp-Protocol-Version": {"2025-11-25"}, "Mcp-Session-Id": {id},
		}
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		require.Less(t, answer.StatusCode, 300)
		id = cmp.Or(answer.Header.Get("Mcp-Session-Id"), id)
		content, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return string(content)
	}
	request(http.MethodPost,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	request(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	require.Contains(t,
		request(http.MethodPost, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"bash","arguments":{"command":"echo x >f; echo ran"}}}`),
		"ran")
	require.NotEmpty(t, mcpBash(t, mcpClient(t, &mcp.StreamableClientTransport{Endpoint: url + "/k"}), "echo x >f"))
	succeed(t, coordinator, launch{args: append([]string{"call", "--session", "named", "bash", `{"command":"echo x >f"}`}, b.flags...)})
	states := func() map[string]string {
		var list []report.Session
		got := b.session(t, "ls", "--json")
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &list), got.stderr)
		states := map[string]string{}
		for _, s := range list {
			states[string(s.SessionID)] = s.State
		}
		return states
	}
	before := states()
	require.Len(t, before, 3)
	require.Contains(t, before, id)
	require.Equal(t, report.StateWorkspaceOnly, before["named"])

	request(http.MethodDelete, "")
	delete(before, id)
	require.Eventually(t, func() bool { return len(states()) == 2 }, time.Minute, 50*time.Millisecond)
	require.Equal(t, before, states())
	require.Contains(t, b.session(t, "rm", "named").stdout, "its workspace")
	require.Len(t, states(), 1)
}

// TestMcp_AFleetThatCanStoreNothingEnds is a coordinator whose embedded server lost its files: it
// ends and says why.
func TestMcp_AFleetThatCanStoreNothingEnds(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	data := filepath.Join(home, "data")
	command := exec.CommandContext(t.Context(), coordinator, "mcp", "--sandbox", "process", "--data", data)
	command.Dir = t.TempDir()
	command.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "TOOLFLEET_MIN_LEVEL=none")
	stderr := &processtest.Output{}
	command.Stderr = stderr
	dieWithTests(command)
	c := mcpClient(t, &mcp.CommandTransport{Command: command})
	require.NoError(t, os.RemoveAll(filepath.Join(data, "nats", "jetstream")))
	big := encode(t, map[string]string{"path": "big", "content": strings.Repeat("x", 4<<20)})
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for range 5 { // until a store needs another file
		go func() {
			_, _ = c.CallTool(t.Context(), &mcp.CallToolParams{Name: "write", Arguments: json.RawMessage(big)})
		}()
	}
	select {
	case <-ended: //nolint:errcheck // how it ended is looked at below
	case <-time.After(2 * time.Minute):
		require.Fail(t, "the coordinator goes on")
	}
	_ = c.Close()
	require.Contains(t, stderr.String(), "coordinator: embedded NATS in "+data)
	require.Contains(t, stderr.String(), "can no longer store")
	require.Equal(t, 1, command.ProcessState.ExitCode())
}

// TestInterfaces_SpeakTLS: the address of HTTP and that of MCP, with the files of a certificate,
// and no plain text there.
func TestInterfaces_SpeakTLS(t *testing.T) {
	t.Parallel()
	known := httptest.NewTLSServer(nil) // has a certificate
	t.Cleanup(known.Close)
	key, err := x509.MarshalPKCS8PrivateKey(known.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	dir := t.TempDir()
	cert, private := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: known.Certificate().Raw})))
	write(t, private, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	for command, flags := range map[string][]string{
		"http": {"--http", "127.0.0.1:0", "--http-tls-cert", cert, "--http-tls-key", private},
		"mcp":  {"--listen", "127.0.0.1:0", "--mcp-tls-cert", cert, "--mcp-tls-key", private},
	} {
		p := start(t, coordinator, launch{args: append([]string{command, "--data", t.TempDir(), "--sandbox", "process"}, flags...)})
		at := p.waitFor(t, `is at (https)(://\S+)`)
		get := func(url string) int {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
			require.NoError(t, err)
			response, err := known.Client().Do(request)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			return response.StatusCode
		}
		path := map[string]string{"http": "/v1/workers"}[command] // without one, web pages ask for a token
		require.Equal(t, http.StatusUnauthorized, get(at[1]+at[2]+path), command)
		require.Equal(t, http.StatusBadRequest, get("http"+at[2]+path), "plain text: %s", command)
	}
}

func TestMcp_UsageErrors(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens")
	write(t, tokens, "ann admin 0123456789abcdef\n")
	others := filepath.Join(t.TempDir(), "tokens")
	write(t, others, "ann use 0123456789abcdef\n")
	require.NoError(t, os.Chmod(others, 0o604))
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a relative socket": {[]string{"--listen", "unix:sock"}, "--listen unix:sock: must be an absolute path"},
		"no address":        {[]string{"--listen", "7080"}, "--listen 7080: must be an address"},
		"open to others":    {[]string{"--listen", "0.0.0.0:0"}, "give --mcp-tokens"},
		"tokens on stdio":   {[]string{"--mcp-tokens", tokens}, "they need --listen"},
		"tokens of others":  {[]string{"--listen", "127.0.0.1:0", "--mcp-tokens", others}, "its mode is 0604, so other users of this machine may use it"},
		"a wrong role":      {[]string{"--listen", "127.0.0.1:0", "--mcp-tokens", tokens}, `role "admin": must be read, run or operate`},
		"half of metadata":  {[]string{"--listen", "127.0.0.1:0", "--mcp-resource", "https://x.example.com/mcp"}, "one needs the other"},
		"a task before":     {[]string{"--mcp-task-after=-1s"}, "--mcp-task-after -1s: must be 0 or more"},
		"an unknown set":    {[]string{"--toolset", "none"}, "unknown toolset"},
		"no such directory": {[]string{"--workspace", "/none"}, "--workspace /none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, coordinator, launch{args: append([]string{"mcp"}, c.args...)})
			require.Equal(t, 2, got.code)
			require.Contains(t, got.stderr, c.want)
			require.Empty(t, got.stdout)
		})
	}
}

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
