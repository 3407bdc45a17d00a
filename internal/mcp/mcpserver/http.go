package mcpserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/judge"
)

// MaxBody bounds the body of a request over HTTP, in bytes.
const MaxBody = 8 << 20

// firstStateless is the first version of the protocol without sessions.
const firstStateless = "2026-07-28"

// idleSession is how long a silent session of the protocol is kept. Its sandbox stays, until the
// client ends the session or the sandbox is old.
const idleSession = time.Hour

// HTTPOptions are about clients over HTTP.
type HTTPOptions struct {
	// Access knows who sends a request; with nil, every client that reaches the address may
	// connect.
	Access access.Verifier
	// Resource is the URL of this server as clients know it, and AuthorizationServers who gives out
	// tokens for it: metadata for clients (RFC 9728), served when both are set.
	Resource             string
	AuthorizationServers []string
}

// Handler serves clients over streamable HTTP at /mcp and /mcp/KEY: protocol versions with sessions
// and without, on one address. Requests of web pages from elsewhere are refused, and so are those
// to a loopback address under another name.
func (s *Server) Handler(o HTTPOptions) http.Handler { return s.handler(o, access.DefaultBounds()) }

func (s *Server) handler(o HTTPOptions, b access.Bounds) http.Handler {
	reading := s.readingServer()
	server := func(r *http.Request) *mcp.Server {
		if principalOf(auth.TokenInfoFromContext(r.Context())).Role == judge.RoleRead {
			return reading.server
		}
		return s.server
	}
	sessions := mcp.NewStreamableHTTPHandler(server, &mcp.StreamableHTTPOptions{
		EventStore: mcp.NewMemoryEventStore(nil), SessionTimeout: idleSession, MaxRequestBodyBytes: MaxBody,
		PropagateRequestCancellation: true, Logger: s.options.Logger,
	})
	stateless := mcp.NewStreamableHTTPHandler(server, &mcp.StreamableHTTPOptions{
		Stateless: true, MaxRequestBodyBytes: MaxBody, PropagateRequestCancellation: true, Logger: s.options.Logger,
	})
	opened := &openSessions{handler: sessions, ended: s.ended, of: map[string]map[string]*openSession{}}
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set(keyHeader, r.PathValue("key"))
		if r.Header.Get("MCP-Protocol-Version") >= firstStateless {
			stateless.ServeHTTP(w, r)
			return
		}
		opened.serve(w, r)
	})
	handler = wellFormed(b.Body, handler)
	const metadataPath = "/.well-known/oauth-protected-resource"
	mux := http.NewServeMux()
	bearer := auth.RequireBearerTokenOptions{}
	if o.Resource != "" && len(o.AuthorizationServers) > 0 {
		bearer.ResourceMetadataURL = strings.TrimSuffix(o.Resource, "/mcp") + metadataPath
		metadata := auth.ProtectedResourceMetadataHandler(&oauthex.ProtectedResourceMetadata{
			Resource: o.Resource, AuthorizationServers: o.AuthorizationServers,
			ScopesSupported:        []string{string(judge.RoleRead), string(judge.RoleRun), string(judge.RoleOperate)},
			BearerMethodsSupported: []string{"header"}, ResourceName: "toolfleet",
		})
		mux.Handle(metadataPath, metadata)
		mux.Handle(metadataPath+"/mcp", metadata)
	}
	if o.Access != nil {
		handler = admitted(o.Access, auth.RequireBearerToken(tokenInfo, &bearer)(handler))
	}
	handler = http.NewCrossOriginProtection().Handler(handler)
	mux.Handle("/mcp", handler)
	mux.Handle("/mcp/{key}", handler)
	return unread(mux)
}

// principalExtra is where the information about a token has the principal.
const principalExtra = "principal"

// principalOf is whose token it is; without a token, the owner of the server.
func principalOf(info *auth.TokenInfo) (p judge.Principal) {
	if info != nil {
		p, _ = info.Extra[principalExtra].(judge.Principal) // as tokenInfo has set it
	}
	return p
}

// admission is what a request's token gives, or why it gives nothing.
type admission struct {
	access.Grant

	err error
}

type admissionKey struct{}

// admitted verifies the token of a request, and ends the request, or its stream, when the token
// expires or is removed. The SDK answers without a token, and with an unknown one.
func admitted(verifier access.Verifier, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := admission{err: access.ErrUnknown}
		if bearer, is := access.BearerOf(r); is {
			a.Grant, a.err = verifier.Verify(r.Context(), bearer)
		}
		if a.err != nil && !errors.Is(a.err, access.ErrUnknown) {
			http.Error(w, access.CannotCheck(a.err), http.StatusServiceUnavailable)
			return
		}
		ctx, end := a.Until(context.WithValue(r.Context(), admissionKey{}, a))
		defer end()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// principal is who sends a request. Each request has the token of its own, also in a session of the
// protocol, which the SDK keeps for the principal that opened it.
func principal(request mcp.Request) judge.Principal {
	if extra := request.GetExtra(); extra != nil {
		return principalOf(extra.TokenInfo)
	}
	return judge.Principal{}
}

// tokenInfo is what [admitted] knows of a token.
func tokenInfo(ctx context.Context, _ string, _ *http.Request) (*auth.TokenInfo, error) {
	a, _ := ctx.Value(admissionKey{}).(admission) // as admitted has set it
	if a.err != nil {
		return nil, auth.ErrInvalidToken
	}
	expires := time.Now().Add(time.Hour)
	if !a.Expires.IsZero() && a.Expires.Before(expires) { // the SDK refuses one that has expired
		expires = a.Expires
	}
	return &auth.TokenInfo{UserID: a.ID(), Scopes: []string{string(a.Role)}, Expiration: expires, Extra: map[string]any{principalExtra: a.Principal}}, nil
}

// Serve serves clients over HTTP, see [Server.Handler], until ctx ends, and closes the listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener, o HTTPOptions) error {
	return s.serve(ctx, listener, o, access.DefaultBounds())
}

func (s *Server) serve(ctx context.Context, listener net.Listener, o HTTPOptions, b access.Bounds) error {
	return access.Serve(ctx, listener, s.handler(o, b), b)
}

// unread ends the connection of a request that is answered before its body was read, without
// waiting for that. [readBody] keeps the connection.
func unread(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		read := false
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyRead{}, &read)))
		if !read {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // else the server reads on
		}
	})
}

// bodyRead is the key of whether the body of a request was read, in its context.
type bodyRead struct{}

// readBody reads the body of a request. [access.Serve] bounds in what time it must arrive.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err == nil {
		w.Header().Del("Connection")
		if read, ok := r.Context().Value(bodyRead{}).(*bool); ok {
			*read = true
		}
	}
	return body, err
}
