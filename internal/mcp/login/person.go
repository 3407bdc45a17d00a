package login

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"
)

// Person is how a person logs in.
type Person struct {
	// ClientID is a client that the authorization server knows, or the URL of a document about one;
	// without it, or when documents are not taken, one is registered. ClientSecret is its secret.
	ClientID, ClientSecret string
	// Scopes to request; none means the scopes that the server names.
	Scopes []string
	// Port is where the browser comes back to on this host; 0 is any.
	Port int
	// Transport sends all requests, with Headers those to the server.
	Transport http.RoundTripper
	Headers   map[string]string
	// Show has the person open a page, from which the browser comes back to another one.
	Show func(page, back string)
}

// LogIn has a person log in and stores the login. It returns how many tools the server then has,
// and where the login is renewed, "" if it cannot be. It waits for the person until ctx ends.
func (l *Login) LogIn(ctx context.Context, p Person) (tools int, renewedAt string, err error) {
	if tools, err = l.logIn(ctx, p); err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) { // the SDK may keep only its text
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return 0, "", withoutSecrets(err)
	}
	r, err := l.read()
	if err == nil && r != nil && r.Token.RefreshToken != "" {
		renewedAt = r.TokenURL
	}
	return tools, renewedAt, err
}

func (l *Login) logIn(ctx context.Context, p Person) (tools int, err error) {
	back, err := serveCallback(ctx, p)
	if err != nil {
		return 0, err
	}
	defer back.close(ctx)
	known, err := l.read()
	if err != nil || known == nil {
		known = &record{} // what cannot be read is replaced
	}
	handler, err := auth.NewAuthorizationCodeHandler(l.config(p, back, known.Lacking))
	if err != nil {
		return 0, err
	}
	client := &http.Client{
		Transport:     &headed{base: p.Transport, headers: p.Headers},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	tools, err = count(ctx, &mcp.StreamableClientTransport{Endpoint: l.url, HTTPClient: client, OAuthHandler: handler, DisableStandaloneSSE: true})
	if source, _ := handler.TokenSource(ctx); err != nil || source != nil {
		return tools, err
	}
	// It lets anybody list its tools: it asks who comes when one is called.
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, http.NoBody)
	if err == nil {
		err = handler.Authorize(ctx, request, &http.Response{StatusCode: http.StatusUnauthorized, Body: http.NoBody, Header: http.Header{}})
	}
	return tools, err
}

// config is the flow of the SDK.
func (l *Login) config(p Person, back *callbackPage, lacking []string) *auth.AuthorizationCodeHandlerConfig {
	config := &auth.AuthorizationCodeHandlerConfig{
		RedirectURL: back.url, AuthorizationCodeFetcher: back.fetchCode, RequestRefreshToken: true, Client: authorityClient(p.Transport),
		ScopeFilter: func(found []string) []string {
			if len(p.Scopes) > 0 {
				found = p.Scopes
			}
			return union(found, lacking)
		},
		NewTokenSource: func(ctx context.Context, c *oauth2.Config, token *oauth2.Token) (oauth2.TokenSource, error) {
			return oauth2.StaticTokenSource(token), l.save(ctx, c, token)
		},
	}
	isDocument := strings.HasPrefix(p.ClientID, "https://")
	switch {
	case isDocument:
		config.ClientIDMetadataDocumentConfig = &auth.ClientIDMetadataDocumentConfig{URL: p.ClientID}
	case p.ClientID != "":
		config.PreregisteredClient = &oauthex.ClientCredentials{ClientID: p.ClientID}
		if p.ClientSecret != "" {
			config.PreregisteredClient.ClientSecretAuth = &oauthex.ClientSecretAuth{ClientSecret: p.ClientSecret}
		}
		return config
	}
	config.DynamicClientRegistrationConfig = &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
		ClientName: "toolfleet", RedirectURIs: []string{back.url}, TokenEndpointAuthMethod: "none",
		GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
	}}
	return config
}

// save stores the tokens of a login.
func (l *Login) save(ctx context.Context, c *oauth2.Config, token *oauth2.Token) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	r := &record{
		Server: l.server, URL: l.url, ClientID: c.ClientID, ClientSecret: c.ClientSecret,
		TokenURL: c.Endpoint.TokenURL, AuthStyle: c.Endpoint.AuthStyle, Token: token,
	}
	if known, _ := l.read(); known != nil { // what cannot be read is replaced
		r.Lacking = known.Lacking
	}
	if r.ClientSecret == "" {
		r.AuthStyle = oauth2.AuthStyleInParams // there is nothing to find out
	}
	return l.write(r)
}

// count is how many tools a server has.
func count(ctx context.Context, transport mcp.Transport) (tools int, err error) {
	session, err := mcp.NewClient(&mcp.Implementation{Name: "toolfleet", Version: "1"}, nil).Connect(ctx, transport, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = session.Close() }() // if it fails, the server forgets the session later
	if session.InitializeResult().Capabilities.Tools == nil {
		return 0, nil
	}
	for _, err := range session.Tools(ctx, nil) {
		if err != nil {
			return 0, err
		}
		tools++
	}
	return tools, nil
}

// withoutSecrets is an error without the text of an answer, which may repeat secrets.
func withoutSecrets(err error) error {
	if code, _ := refused(err); code != "" {
		return errors.New(code)
	}
	return err
}

// headed adds the headers of a server.
type headed struct {
	base    http.RoundTripper
	headers map[string]string
}

// RoundTrip implements [http.RoundTripper].
func (h *headed) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	for name, value := range h.headers {
		request.Header.Set(name, value)
	}
	return h.base.RoundTrip(request)
}

// callbackPage is the page to which the browser returns with the code.
type callbackPage struct {
	url    string
	show   func(page, back string)
	state  atomic.Pointer[string] // of the login that waits
	got    chan outcome
	server *http.Server
	ended  chan struct{}
}

type outcome struct {
	result *auth.AuthorizationResult
	err    error
}

// serveCallback serves the [callbackPage] on loopback.
func serveCallback(ctx context.Context, p Person) (*callbackPage, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port)))
	if err != nil {
		return nil, fmt.Errorf("wait for the browser: %w", err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String()) // it listens there
	b := &callbackPage{url: "http://localhost:" + port + "/callback", show: p.Show, got: make(chan outcome, 1), ended: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /callback", b.onCallback)
	b.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() {
		defer close(b.ended)
		_ = b.server.Serve(listener) // it ends with close
	}()
	return b, nil
}

// closeGrace is how long the last page may take to its browser.
const closeGrace = time.Second

func (b *callbackPage) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	_ = b.server.Shutdown(ctx)
	_ = b.server.Close()
	<-b.ended
}

// onCallback accepts the code of the login that waits, and of no other.
func (b *callbackPage) onCallback(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if state := b.state.Load(); state == nil || query.Get("state") != *state {
		http.Error(w, "No login waits for this.", http.StatusBadRequest)
		return
	}
	got := outcome{result: &auth.AuthorizationResult{Code: query.Get("code"), State: query.Get("state"), Iss: query.Get("iss")}}
	text := "toolfleet has the code and goes on: see there. You can close this page."
	if said := query.Get("error"); said != "" {
		got.err = fmt.Errorf("the authorization server says %q: %q", said, query.Get("error_description"))
		text = "The login was refused: " + cmp.Or(query.Get("error_description"), said)
	}
	select {
	case b.got <- got:
	default: // it came before
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = fmt.Fprintf(w, "<!doctype html><title>toolfleet</title><p>%s</p>", html.EscapeString(text))
}

// fetchCode is the part of a login that a person does.
func (b *callbackPage) fetchCode(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
	page, err := url.Parse(args.URL)
	if err != nil {
		return nil, err
	}
	b.state.Store(new(page.Query().Get("state")))
	b.show(args.URL, b.url)
	select {
	case got := <-b.got:
		return got.result, got.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
