//nolint:staticcheck // older clients have what is deprecated
package mcpserver

import (
	"context"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// listeners are the sessions of the protocol that asked for log messages: they get live output as
// such. The level itself the SDK keeps.
type listeners struct {
	mu       sync.Mutex
	sessions map[*mcp.ServerSession]bool
}

// middleware notes who sets a level.
func (l *listeners) middleware(server *mcp.Server) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
			if session, ok := request.GetSession().(*mcp.ServerSession); ok && method == "logging/setLevel" {
				l.add(server, session)
			}
			return next(ctx, method, request)
		}
	}
}

// add notes a session, and forgets those that have ended.
func (l *listeners) add(server *mcp.Server, session *mcp.ServerSession) {
	l.mu.Lock()
	defer l.mu.Unlock()
	live := map[*mcp.ServerSession]bool{session: true}
	for s := range server.Sessions() {
		if l.sessions[s] {
			live[s] = true
		}
	}
	l.sessions = live
}

// want reports whether the client of a call may want log messages.
func (l *listeners) want(request *mcp.CallToolRequest) bool {
	if _, given := request.Params.Meta[mcp.MetaKeyLogLevel]; given {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sessions[request.Session]
}

// log sends output as log messages, one a line.
func log(ctx context.Context, request *mcp.CallToolRequest, output string) {
	for line := range strings.Lines(output) {
		_ = request.Session.Log(ctx, &mcp.LoggingMessageParams{ // a client that has gone hears nothing
			Level: "info", Logger: request.Params.Name, Data: strings.TrimRight(line, "\r\n"),
		})
	}
}

func capabilities() *mcp.ServerCapabilities {
	c := &mcp.ServerCapabilities{Logging: &mcp.LoggingCapabilities{}}
	c.AddExtension(tasksExtension, nil)
	return c
}
