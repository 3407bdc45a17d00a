package integration

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
)

// received is an answer.
type received struct {
	StatusCode int
	Header     http.Header
	Body       io.Reader
}

// TestTokens_CountAtEachServer: a token that the command makes is known to each coordinator of the
// fleet, by HTTP and by MCP over HTTP, until it is removed: then its requests, and its streams,
// end.
func TestTokens_CountAtEachServer(t *testing.T) {
	t.Parallel()
	model := script(t, say("Done."))
	first := startServe(t, model, "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data"), "--http", "127.0.0.1:0", "--mcp", "127.0.0.1:0")
	reach := first.waitFor(t, `reach it with: --nats (nats://127.0.0.1:\d+) --creds (\S+)\n`)
	flags := []string{"--nats", reach[1], "--creds", reach[2]}
	second := startServe(t, model, append([]string{"--data", t.TempDir(), "--http", "127.0.0.1:0", "--mcp", "127.0.0.1:0"}, flags...)...)
	tokens := func(verb string, args ...string) string {
		return succeed(t, coordinator, launch{args: append(append([]string{"token", verb}, flags...), args...)}).stdout
	}
	secret := strings.TrimSpace(tokens("add", "--role", "run", "--tenant", "acme", "ann"))
	ask := func(url, body string) received {
		t.Helper()
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		require.NoError(t, err)
		for name, value := range map[string]string{"Authorization": "Bearer " + secret, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"} {
			request.Header.Set(name, value)
		}
		answer, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		t.Cleanup(func() { _ = answer.Body.Close() })
		return received{answer.StatusCode, answer.Header, answer.Body}
	}
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	var urls []string
	streams := map[string]received{}
	for i, server := range []*process{first, second} {
		api := server.waitFor(t, `the HTTP API is at (http://\S+)`)[1]
		agents := server.waitFor(t, `MCP is at (http://\S+)`)[1]
		urls = append(urls, api+"/v1/workers", agents)
		require.Eventually(t, func() bool { return ask(api+"/v1/workers", "").StatusCode == http.StatusOK }, patience, 10*time.Millisecond)
		if i == 0 {
			require.Equal(t, http.StatusAccepted, ask(api+"/v1/calls", `{"tool": "bash", "arguments": {"command": "true"}, "session_id": "s"}`).StatusCode, "no worker runs it")
		}
		streams[api] = ask(api+"/v1/sessions/s/events", "")
		var begun received
		require.Eventually(t, func() bool { begun = ask(agents, hello); return begun.StatusCode == http.StatusOK }, patience, 10*time.Millisecond)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, agents, nil)
		require.NoError(t, err)
		request.Header = http.Header{
			"Authorization": {"Bearer " + secret}, "Accept": {"text/event-stream"},
			"Mcp-Session-Id": {begun.Header.Get("Mcp-Session-Id")}, "Mcp-Protocol-Version": {"2025-11-25"},
		}
		stream, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		t.Cleanup(func() { _ = stream.Body.Close() })
		streams[agents] = received{stream.StatusCode, stream.Header, stream.Body}
	}
	for url, stream := range streams {
		require.Equal(t, http.StatusOK, stream.StatusCode, url)
	}
	var list []fleet.Token
	require.NoError(t, json.Unmarshal([]byte(tokens("ls", "--json")), &list))
	require.Len(t, list, 1)
	require.Equal(t, "ann", list[0].Name)
	require.NotContains(t, tokens("ls"), secret)
	tokens("rm", list[0].ID)
	for url, stream := range streams {
		rest, err := io.ReadAll(bufio.NewReader(stream.Body))
		require.NoError(t, err, "the stream of %s ends", url)
		if !strings.HasSuffix(url, "/mcp") {
			require.Contains(t, string(rest), `"code":"unauthorized"`)
		}
	}
	for _, url := range urls {
		require.Equal(t, http.StatusUnauthorized, ask(url, "").StatusCode, url)
	}
}
