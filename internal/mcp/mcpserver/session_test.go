package mcpserver_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/mcpserver"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/telemetry/metrictest"
)

// TestHTTP_KeysAreOfTheirToken: what two tokens call by one name is not one sandbox, and the key of
// none is one like any other.
func TestHTTP_KeysAreOfTheirToken(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	const annToken, cidToken, deeToken = "0123456789abcdef-ann", "0123456789abcdef-cid", "0123456789abcdef-cid-too"
	tokens, err := mcpserver.ReadTokens(strings.NewReader("ann use " + annToken + "\ncid use " + cidToken + "\ncid use " + deeToken + "\n"))
	require.NoError(t, err)
	web := httptest.NewServer(s.Handler(mcpserver.HTTPOptions{Tokens: tokens}))
	t.Cleanup(web.Close)
	t.Cleanup(as[*http.Transport](t, http.DefaultTransport).CloseIdleConnections)
	said := func(token, path, command string) string {
		t.Helper()
		got := asking{t: t, url: web.URL + path, token: token, unaware: true}.call(command)
		require.Zero(t, got.Error.Code)
		return got.Result.Content[0].Text
	}
	said(annToken, "/mcp/key", "echo ann >f")
	said(cidToken, "/mcp/key", "echo cid >g")
	require.Equal(t, "f\n", said(annToken, "/mcp/key", "ls"))
	require.Equal(t, "g\n", said(cidToken, "/mcp/key", "ls"))
	require.Equal(t, "g\n", said(deeToken, "/mcp/key", "ls"), "two tokens of one name")
	require.Contains(t, said(annToken, "/mcp", "ls; echo ann >none"), "no output")
	require.Contains(t, said(cidToken, "/mcp", "ls"), "no output")
	require.Equal(t, "none\n", said(annToken, "/mcp", "ls"))
}

// TestHTTP_SessionsWithoutAKeyHaveTheirOwn: two sessions of the protocol that one token begins at
// one address share nothing.
func TestHTTP_SessionsWithoutAKeyHaveTheirOwn(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	at := posting{t: t, url: serveHTTP(t, s), version: "2025-11-25"}
	one, two := at.begin(), at.begin()
	require.NotEqual(t, one.session, two.session)
	says := func(p posting, command string) string {
		t.Helper()
		arguments, err := json.Marshal(map[string]any{"command": command})
		require.NoError(t, err)
		response := p.do(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash","arguments":`+string(arguments)+`}}`, nil)
		_, got := event(t, bufio.NewReader(response.body), false)
		return got.Result.Content[0].Text
	}
	says(one, "echo 1 >f")
	require.Contains(t, says(two, "ls; echo 2 >f"), "no output")
	require.Equal(t, "1\n", says(one, "cat f"))
}

// How long a session of the protocol lasted is a metric; the end of the server ends those that are
// open.
func TestHTTP_MeasuresSessions(t *testing.T) { //nolint:paralleltest // it sets the process's meter
	meter := metrictest.New(t)
	meter.Install()
	s, _ := open(t)
	at := posting{t: t, url: serveHTTP(t, s), version: "2025-11-25"}
	ended := at.begin()
	at.begin()
	const attributes = "mcp.protocol.version=2025-11-25,network.transport=tcp"
	require.Empty(t, meter.Read(t, genaiconv.MetricMCPServerSession))
	ended.do(http.MethodDelete, "", nil)
	require.Eventually(t, func() bool { return meter.Read(t, genaiconv.MetricMCPServerSession)[attributes] == 1 }, time.Minute, time.Millisecond)
	s.Close()
	require.EqualValues(t, 2, meter.Read(t, genaiconv.MetricMCPServerSession)[attributes])
}
