package worker_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A server at a URL is reached from the worker, where the network allows it and with its headers;
// it has one session for each of ours.
func TestMCP_AServerAtAURL(t *testing.T) {
	t.Parallel()
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return toolservertest.New() }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+os.Getenv("PATH") {
			http.Error(w, "who is it?", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	r := newRig(t)
	o := r.isolatedOptions(t)
	if !o.Caps.Enforces(isolation.NetworkProxy) {
		t.Skip("NOT TESTED: lists of hosts are not enforced here")
	}
	allow, err := egress.ParseAllow(strings.TrimPrefix(web.URL, "http://"))
	require.NoError(t, err)
	o.Allow, o.AllowPrivate, o.MCPEnv = allow, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, []string{"PATH"}
	_, stop := r.work(o)
	session := protocol.NewSessionID()
	server := protocol.MCPServer{Name: "web", URL: web.URL, Headers: map[string]string{"Authorization": "Bearer ${PATH}"}}
	count := func(session protocol.SessionID) string {
		return said(t, r.do(session, serverCall(server, "count", `{}`)))
	}
	require.Equal(t, "1 calls, 0 overlap", count(session))
	require.Equal(t, "2 calls, 0 overlap", count(session))
	require.Equal(t, "1 calls, 0 overlap", count(protocol.NewSessionID()))

	server.Headers = nil
	stranger := r.do(session, wire.MCPList{Server: server})
	requireFault(t, stranger, protocol.StatusRejected, codes.LoginRequired)
	require.Contains(t, stranger.Error.Message, "MCP server web needs a login: nobody has logged in (401 Unauthorized)")
	elsewhere := r.do(session, wire.MCPList{Server: protocol.MCPServer{Name: "elsewhere", URL: "http://127.0.0.1:1/mcp"}})
	requireFault(t, elsewhere, protocol.StatusRejected, codes.NetworkOff)
	require.Contains(t, elsewhere.Error.Message, "it is not listed")
	stop() // before the server, whose streams it has
}

func serverCall(server protocol.MCPServer, tool, arguments string) protocol.MCPCall {
	return protocol.MCPCall{Server: server, Tool: tool, Arguments: json.RawMessage(arguments)}
}
