package mcpserver

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// MaxBody bounds the body of a request over HTTP, in bytes.
const MaxBody = 8 << 20

// firstStateless is the first version of the protocol without sessions.
const firstStateless = "2026-07-28"

// idleSession is how long a silent session of the protocol is kept. Its sandbox stays, until the
// client ends the session or the sandbox is old.
const idleSession = time.Hour

// Token lets a client in as a principal. Clients of one name and tenant share their keys.
type Token struct {
	judge.Principal

	hash [sha256.Size]byte
}

// ErrTokens is wrapped by every error of [ReadTokens].
var ErrTokens = errors.New("invalid tokens")

// minToken is the least length of a token, in bytes.
const minToken = 16

// ReadTokens reads tokens, one a line: a name, a role ([judge.ParseRole]), the token and, if the
// client has them, its tenant and expires=TIME (RFC 3339), between spaces. Empty lines and those
// that begin with # are skipped. The error has every error, and no token.
func ReadTokens(r io.Reader) ([]Token, error) {
	var tokens []Token
	var errs []error
	names := map[[sha256.Size]byte]string{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		token, err := readToken(fields)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: line %d: %w", ErrTokens, n, err))
			continue
		}
		if other, taken := names[token.hash]; taken {
			errs = append(errs, fmt.Errorf("%w: line %d: the token of %q is that of %q, too: each line must have its own", ErrTokens, n, token.Name, other))
		}
		names[token.hash] = token.Name
		tokens = append(tokens, token)
	}
	if err := lines.Err(); err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", ErrTokens, err))
	}
	if len(tokens) == 0 && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%w: there is none", ErrTokens))
	}
	return tokens, errors.Join(errs...)
}

// readToken reads the words of a line.
func readToken(fields []string) (Token, error) {
	token := Token{}
	if expires, has := strings.CutPrefix(fields[len(fields)-1], "expires="); has {
		at, err := time.Parse(time.RFC3339, expires)
		if err != nil {
			return token, fmt.Errorf("expires %q: must be a time such as 2030-01-31T00:00:00Z", expires)
		}
		token.Expires, fields = at, fields[:len(fields)-1]
	}
	if len(fields) != 3 && len(fields) != 4 {
		return token, fmt.Errorf("must have a name, a role and a token, and may have a tenant and expires=TIME, but has %d words", len(fields))
	}
	if len(fields[2]) < minToken {
		return token, fmt.Errorf("the token of %q has %d characters: must have at least %d", fields[0], len(fields[2]), minToken)
	}
	role, err := judge.ParseRole(fields[1])
	if err == nil && len(fields) == 4 {
		token.Tenant, err = protocol.ParseTenant(fields[3])
	}
	token.Known, token.Name, token.Role, token.hash = judge.ByToken, fields[0], role, sha256.Sum256([]byte(fields[2]))
	return token, err
}

// OwnToken is a token of the server's owner, the operator.
func OwnToken(token string) Token {
	return Token{Principal: judge.Principal{Name: "owner", Role: judge.RoleOperate}, hash: sha256.Sum256([]byte(token))}
}

// HTTPOptions are about clients over HTTP.
type HTTPOptions struct {
	// Tokens let clients in; without any, every client that reaches the address may connect.
	Tokens []Token
	// Resource is the URL of this server as clients know it, and AuthorizationServers who gives out
	// tokens for it: metadata for clients (RFC 9728), served when both are set.
	Resource             string
	AuthorizationServers []string
}

// Handler serves clients over streamable HTTP at /mcp and /mcp/KEY: protocol versions with sessions
// and without, on one address. Requests of web pages from elsewhere are refused, and so are those
// to a loopback address under another name.
func (s *Server) Handler(o HTTPOptions) http.Handler { return s.handler(o, defaultBounds()) }

func (s *Server) handler(o HTTPOptions, b bounds) http.Handler {
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
	handler = wellFormed(b.body, handler)
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
	if len(o.Tokens) > 0 {
		handler = auth.RequireBearerToken(verifier(o.Tokens), &bearer)(handler)
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
		p, _ = info.Extra[principalExtra].(judge.Principal) // as the verifier has set it
	}
	return p
}

// principal is who sends a request. Each request has the token of its own, also in a session of the
// protocol, which the SDK keeps for the principal that opened it.
func principal(request mcp.Request) judge.Principal {
	if extra := request.GetExtra(); extra != nil {
		return principalOf(extra.TokenInfo)
	}
	return judge.Principal{}
}

// verifier knows tokens by their digests: how long a look takes says nothing about them.
func verifier(tokens []Token) auth.TokenVerifier {
	known := map[[sha256.Size]byte]Token{}
	for _, token := range tokens {
		known[token.hash] = token
	}
	return func(_ context.Context, given string, _ *http.Request) (*auth.TokenInfo, error) {
		token, ok := known[sha256.Sum256([]byte(given))]
		if !ok {
			return nil, auth.ErrInvalidToken
		}
		expires := time.Now().Add(time.Hour)
		if !token.Expires.IsZero() && token.Expires.Before(expires) { // the SDK refuses one that has expired
			expires = token.Expires
		}
		return &auth.TokenInfo{
			UserID: token.ID(), Scopes: []string{string(token.Role)}, Expiration: expires, Extra: map[string]any{principalExtra: token.Principal},
		}, nil
	}
}

// bounds limit what any client over HTTP may consume of this process.
type bounds struct {
	head, body time.Duration // in which the head of a request must arrive, and its body after that
	idle       time.Duration // for which a connection may wait for its next request
	last       time.Duration // for answers when the server is to end
	conns      int           // connections at once
}

func defaultBounds() bounds {
	// A connection costs a descriptor, and the stores of an embedded NATS server need some.
	return bounds{head: 10 * time.Second, body: time.Minute, idle: 2 * time.Minute, last: 5 * time.Second, conns: min(max(system.OpenFiles()/4, 16), 4096)}
}

// Serve serves clients over HTTP, see [Server.Handler], until ctx ends, and closes the listener. It
// bounds the number of connections and the time in which a request must arrive.
func (s *Server) Serve(ctx context.Context, listener net.Listener, o HTTPOptions) error {
	return s.serve(ctx, listener, o, defaultBounds())
}

func (s *Server) serve(ctx context.Context, listener net.Listener, o HTTPOptions, b bounds) error {
	web := &http.Server{Handler: s.handler(o, b), ReadHeaderTimeout: b.head, IdleTimeout: b.idle, ConnState: capped(b.conns)}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.last)
		defer cancel()
		if web.Shutdown(last) != nil {
			_ = web.Close() // streams of clients that only listen
		}
	})
	err := web.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	if !stop() {
		<-ended
	}
	return err
}

// capped counts connections, and closes those beyond a number at once: a client that had to wait
// for others would not know why.
func capped(most int) func(net.Conn, http.ConnState) {
	var open atomic.Int64
	return func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > int64(most) {
				_ = conn.Close()
			}
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		default:
		}
	}
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

// readBody reads the body of a request, which must arrive within some time.
func readBody(w http.ResponseWriter, r *http.Request, within time.Duration) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(within)) // where it is no connection, as in tests, there is none
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err == nil {
		_ = control.SetReadDeadline(time.Time{}) // the server waits for the client to go
		w.Header().Del("Connection")
		if read, ok := r.Context().Value(bodyRead{}).(*bool); ok {
			*read = true
		}
	}
	return body, err
}
