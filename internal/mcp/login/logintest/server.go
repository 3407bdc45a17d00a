// Package logintest is a server of the Model Context Protocol that asks who comes, and the
// authorization server that knows, for tests.
package logintest

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// Client and Secret are a client that the authorization server knows.
const (
	Client = "known-client"
	Secret = "known-secret"
)

// Server is both servers.
type Server struct {
	// URL is that of the server of tools.
	URL string
	// Authority is that of the authorization server, at another port.
	Authority string

	mu       sync.Mutex
	clients  map[string]string // secrets by ids
	codes    map[string]url.Values
	access   map[string][]string // scopes by tokens that are good
	spent    map[string]bool     // refresh tokens; false are good
	secrets  []string
	demanded []string
	lifetime time.Duration
	broken   int // status of the token endpoint
	asked    []url.Values
}

// Start serves the tools of a server until the test ends.
func Start(t *testing.T, tools func() *mcp.Server) *Server {
	t.Helper()
	s := &Server{
		clients: map[string]string{Client: Secret}, codes: map[string]url.Values{}, access: map[string][]string{}, spent: map[string]bool{},
		secrets: []string{Secret}, lifetime: time.Hour,
	}
	mux := http.NewServeMux()
	web, authority := httptest.NewServer(mux), httptest.NewServer(mux)
	t.Cleanup(web.Close)
	t.Cleanup(authority.Close)
	s.URL, s.Authority = web.URL+"/mcp", authority.URL
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return tools() }, nil)
	const metadata = "/.well-known/oauth-protected-resource/mcp"
	mux.Handle(metadata, auth.ProtectedResourceMetadataHandler(&oauthex.ProtectedResourceMetadata{
		Resource: s.URL, AuthorizationServers: []string{s.Authority}, ScopesSupported: []string{"basic"},
	}))
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		auth.RequireBearerToken(s.verify, &auth.RequireBearerTokenOptions{
			ResourceMetadataURL: web.URL + metadata, Scopes: s.demands(),
		})(handler).ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, &oauthex.AuthServerMeta{
			Issuer: s.Authority, AuthorizationEndpoint: s.Authority + "/authorize", TokenEndpoint: s.Authority + "/token", RegistrationEndpoint: s.Authority + "/register",
			ResponseTypesSupported: []string{"code"}, CodeChallengeMethodsSupported: []string{"S256"}, TokenEndpointAuthMethodsSupported: []string{"client_secret_basic"},
		})
	})
	mux.HandleFunc("POST /register", s.register)
	mux.HandleFunc("GET /authorize", s.authorize)
	mux.HandleFunc("POST /token", s.token)
	return s
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

// Demand has the server want scopes of every request from now on.
func (s *Server) Demand(scopes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.demanded = scopes
}

func (s *Server) demands() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.demanded
}

// Lifetime is what tokens say from now on of how long they are good.
// They are until [Server.Revoke].
func (s *Server) Lifetime(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lifetime = d
}

// Revoke makes all tokens bad: those of access, and with refresh the others, too.
func (s *Server) Revoke(refresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.access)
	if refresh {
		for token := range s.spent {
			s.spent[token] = true
		}
	}
}

// Break has the token endpoint answer with a status; 0 mends it.
func (s *Server) Break(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = status
}

// Asked are the forms of requests for tokens so far.
func (s *Server) Asked() []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// Secrets are all tokens and secrets so far; none may appear anywhere.
func (s *Server) Secrets() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.secrets)
}

func (s *Server) verify(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	scopes, good := s.access[token]
	if !good {
		return nil, auth.ErrInvalidToken
	}
	return &auth.TokenInfo{Scopes: scopes, Expiration: time.Now().Add(time.Hour)}, nil
}

func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	var metadata oauthex.ClientRegistrationMetadata
	if err := json.NewDecoder(r.Body).Decode(&metadata); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	id := rand.Text()
	s.clients[id] = ""
	s.mu.Unlock()
	reply(w, http.StatusCreated, &oauthex.ClientRegistrationResponse{ClientID: id, ClientRegistrationMetadata: metadata})
}

func (s *Server) authorize(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.clients[query.Get("client_id")]; !known {
		http.Error(w, "unknown client", http.StatusBadRequest)
		return
	}
	back := url.Values{"state": {query.Get("state")}}
	if strings.Contains(query.Get("scope"), "forbidden") {
		back.Set("error", "access_denied")
	} else {
		code := rand.Text()
		s.codes[code] = query
		s.secrets = append(s.secrets, code)
		back.Set("code", code)
	}
	http.Redirect(w, r, query.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.PostForm)
	// A bad authorization server repeats secrets in what it says.
	refuse := func(status int, code string) {
		reply(w, status, map[string]string{"error": code, "error_description": "not for " + strings.Join(s.secrets, " ")})
	}
	id, secret, basic := r.BasicAuth()
	if !basic {
		id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	if known, is := s.clients[id]; !is || known != secret {
		refuse(http.StatusUnauthorized, "invalid_client")
		return
	}
	if s.broken != 0 {
		http.Error(w, "broken: "+strings.Join(s.secrets, " "), s.broken)
		return
	}
	var scopes []string
	switch r.PostForm.Get("grant_type") {
	case "authorization_code":
		asked, known := s.codes[r.PostForm.Get("code")]
		delete(s.codes, r.PostForm.Get("code"))
		sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
		if !known || base64.RawURLEncoding.EncodeToString(sum[:]) != asked.Get("code_challenge") {
			refuse(http.StatusBadRequest, "invalid_grant")
			return
		}
		scopes = strings.Fields(asked.Get("scope"))
	case "refresh_token":
		old := r.PostForm.Get("refresh_token")
		if spent, known := s.spent[old]; spent || !known {
			refuse(http.StatusBadRequest, "invalid_grant")
			return
		}
		s.spent[old] = true // each is good once
	case "client_credentials":
		scopes = strings.Fields(r.PostForm.Get("scope"))
	}
	access, refresh := rand.Text(), rand.Text()
	s.access[access], s.spent[refresh] = append(scopes, "basic"), false
	s.secrets = append(s.secrets, access, refresh)
	reply(w, http.StatusOK, map[string]any{
		"access_token": access, "token_type": "Bearer", "expires_in": int(s.lifetime.Seconds()), "refresh_token": refresh,
	})
}

// Open opens a page, as the browser of a user who accepts everything.
func Open(ctx context.Context, web http.RoundTripper, page string) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := (&http.Client{Transport: web}).Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// Browse opens every page that a line of what a login prints is, until that ends.
func Browse(ctx context.Context, output io.Reader) error {
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "http") {
			if _, err := Open(ctx, http.DefaultTransport, lines.Text()); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}
