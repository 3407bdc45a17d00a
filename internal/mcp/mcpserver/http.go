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
	// Access knows who sends a request; with nil, every client that reaches the address may connect.
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
			Resource: o.Resource, AuthorizationServers: o.AuthorizationServers, ScopesSupported: []string{string(judge.RoleRead), string(judge.RoleRun), string(judge.RoleOperate)},
			BearerMethodsSupported: []string{"header"}, ResourceName: "toolfleet",
		})
		mux.Handle(metadataPath, metadata)
		mux.Handle(metadataPath+"/mcp", metadata)
	}
	if o.Access != nil {
		handler = auth.RequireBearerToken(verifier(o.Access), &bearer)(whileGranted(handler))
	}
	handler = http.NewCrossOriginProtection().Handler(handler)
	mux.Handle("/mcp", handler)
	mux.Handle("/mcp/{key}", handler)
	return unread(mux)
}

// grantExtra is where the information about a token has what it gives.
const grantExtra = "grant"

// grantOf is what a token gives.
func grantOf(info *auth.TokenInfo) (grant access.Grant) {
	if info != nil {
		grant, _ = info.Extra[grantExtra].(access.Grant) // as the verifier has set it
	}
	return grant
}

// principalOf is whose token it is; without a token, the owner of the server.
func principalOf(info *auth.TokenInfo) judge.Principal { return grantOf(info).Principal }

// whileGranted ends requests, and streams, whose token expires or is removed.
func whileGranted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, end := grantOf(auth.TokenInfoFromContext(r.Context())).Until(r.Context())
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

// verifier asks for the principal of a token.
func verifier(tokens access.Verifier) auth.TokenVerifier {
	return func(ctx context.Context, given string, _ *http.Request) (*auth.TokenInfo, error) {
		grant, err := tokens.Verify(ctx, given)
		if errors.Is(err, access.ErrUnknown) {
			return nil, auth.ErrInvalidToken
		}
		if err != nil {
			return nil, err
		}
		expires := time.Now().Add(time.Hour)
		if !grant.Expires.IsZero() && grant.Expires.Before(expires) { // the SDK refuses one that has expired
			expires = grant.Expires
		}
		return &auth.TokenInfo{UserID: grant.ID(), Scopes: []string{string(grant.Role)}, Expiration: expires, Extra: map[string]any{grantExtra: grant}}, nil
	}
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
