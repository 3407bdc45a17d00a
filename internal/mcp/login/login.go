// Package login lets a worker into servers of the Model Context Protocol that ask who comes
// (OAuth 2.1).
//
//	person ──► Ask: URL, browser, code ──► tokens ──► file of a Store (mode 0600)
//	                                                    │        ▲ renewed under the file's lock
//	call ──► Transport ◄── access token ────────────────┘        │
//	            │  expired, or the server answers 401 ───────────┘
//	            └─ none, refused, too few scopes: login_required, which says what to run
//
//	call ──► Machine: client credentials ──► access token, in memory
//
// The file is authoritative: it is read for every request, so a change by a person or another
// process counts at once. A login is bound to the name and the URL of its server; no other gets the
// token. Tokens are in the file and in headers of requests to the server, and nowhere else: errors
// name what an authorization server said by its code only.
package login

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/auth/extauth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Store is a directory of logins.
type Store struct {
	// Dir has a file for each login; the first one makes it.
	Dir string
	// Advice says what a person does to log in to a server.
	Advice func(server string) string
}

// Login is a person's login at a server, if there was one. It is safe for concurrent use, also by
// several processes.
type Login struct {
	server, url string
	file        string
	advice      func(server string) string
}

// Of returns the login at the server of this name and URL. Both come from calls and are in the
// file's name only as a hash.
func (s Store) Of(server, url string) *Login {
	sum := sha256.Sum256([]byte(server + "\n" + url))
	return &Login{server: server, url: url, file: filepath.Join(s.Dir, hex.EncodeToString(sum[:16])+".json"), advice: s.Advice}
}

// File is where the login is kept.
func (l *Login) File() string { return l.file }

// record is a login as its file has it.
type record struct {
	Server       string           `json:"server"`
	URL          string           `json:"url"`
	ClientID     string           `json:"client_id"`
	ClientSecret string           `json:"client_secret,omitempty"`
	TokenURL     string           `json:"token_url"`
	AuthStyle    oauth2.AuthStyle `json:"auth_style"`
	Token        *oauth2.Token    `json:"token"`
	// Lacking are scopes that refused calls needed; logins request them, too.
	Lacking []string `json:"lacking,omitempty"`
}

// maxRecord bounds the file of a login, in bytes.
const maxRecord = 1 << 20

// read returns the record; nil without a login.
func (l *Login) read() (*record, error) {
	data, err := regular.Read(l.file, maxRecord)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // none is fine
	}
	r := &record{}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err == nil && r.Token == nil {
		err = errors.New("has no token")
	}
	if err != nil {
		return nil, l.needed("its login %s cannot be read: %v", l.file, err)
	}
	return r, nil
}

// write replaces the record; the lock is held.
func (l *Login) write(r *record) error {
	data, err := json.MarshalIndent(r, "", "  ") //nolint:gosec // that file is for secrets
	if err != nil {
		return err
	}
	return regular.ReplaceSynced(l.file, data)
}

// lockPeriod is how often a lock is tried that another one holds.
const lockPeriod = 10 * time.Millisecond

// lock waits until no other caller or process changes the login.
func (l *Login) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(l.file), 0o700); err != nil {
		return nil, err
	}
	lock := flock.New(l.file+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, lockPeriod); err != nil {
		return nil, fmt.Errorf("lock the login %s: %w", l.file, err)
	}
	return func() { _ = lock.Close() }, nil
}

// needed is the error of a call that a person has to log in for.
func (l *Login) needed(format string, args ...any) error {
	return protocol.Errorf(codes.LoginRequired, "MCP server %s needs a login: %s; %s", l.server, fmt.Sprintf(format, args...), l.advice(l.server))
}

// authorityTimeout bounds a request to an authorization server.
const authorityTimeout = 15 * time.Second

// authorityClient is the client for authorization servers.
func authorityClient(transport http.RoundTripper) *http.Client {
	return &http.Client{Transport: transport, Timeout: authorityTimeout, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		const most = 10
		if r.Method != http.MethodGet || len(via) > most {
			return http.ErrUseLastResponse // what is posted has secrets
		}
		return nil
	}}
}

// token returns the current access token; nil without a login. authority reaches authorization
// servers.
func (l *Login) token(ctx context.Context, authority http.RoundTripper) (*oauth2.Token, error) {
	r, err := l.read()
	if err != nil || r == nil {
		return nil, err
	}
	if r.Token.Valid() {
		return r.Token, nil
	}
	return l.renewed(ctx, authority, r.Token)
}

// renewed replaces a token that has expired or is not accepted. If several callers need it at the
// same time, only one requests it.
func (l *Login) renewed(ctx context.Context, authority http.RoundTripper, old *oauth2.Token) (*oauth2.Token, error) {
	unlock, err := l.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	r, err := l.read()
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		return nil, l.needed("nobody is logged in any more")
	case r.Token.AccessToken != old.AccessToken && r.Token.Valid():
		return r.Token, nil
	case r.Token.RefreshToken == "":
		return nil, l.needed("its login has ended")
	}
	// This may use up the old refresh token, so the new one is written even if the caller gives up.
	asking := context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, authorityClient(authority))
	config := oauth2.Config{
		ClientID: r.ClientID, ClientSecret: r.ClientSecret, Endpoint: oauth2.Endpoint{TokenURL: r.TokenURL, AuthStyle: r.AuthStyle},
	}
	token, err := config.TokenSource(asking, &oauth2.Token{RefreshToken: r.Token.RefreshToken}).Token()
	if code, final := refused(err); final {
		return nil, l.needed("its login is not accepted any more (%s)", code)
	} else if code != "" {
		err = errors.New(code)
	}
	if err != nil {
		return nil, fmt.Errorf("renew the login: %w", err)
	}
	r.Token = token
	if err := l.write(r); err != nil {
		return nil, fmt.Errorf("keep the login: %w", err)
	}
	return token, nil
}

// refused is what an authorization server answered instead of a token, "" when it did not answer;
// final says that it will not answer differently. The rest of the answer may repeat secrets.
func refused(err error) (code string, final bool) {
	answer, is := errors.AsType[*oauth2.RetrieveError](err)
	if !is {
		return "", false
	}
	status := answer.Response.StatusCode
	code = cmp.Or(answer.ErrorCode, answer.Response.Status)
	return fmt.Sprintf("the authorization server says %.100q", code), status != http.StatusTooManyRequests && status < http.StatusInternalServerError
}

// machine logs in as a client of its own.
type machine struct {
	alive  context.Context //nolint:containedctx // tokens are renewed when the first request is over
	server string
	scopes []string

	mu    sync.Mutex // the SDK's handler is of one goroutine
	inner *extauth.ClientCredentialsHandler
}

// Machine logs in to a server by client credentials, for as long as alive. authority reaches
// authorization servers.
func Machine(alive context.Context, authority http.RoundTripper, server string, client protocol.MCPClient) (auth.OAuthHandler, error) {
	credentials := &oauthex.ClientCredentials{ClientID: client.ID, ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: client.Secret}}
	inner, err := extauth.NewClientCredentialsHandler(&extauth.ClientCredentialsHandlerConfig{
		Credentials: credentials, HTTPClient: authorityClient(authority),
	})
	if err != nil {
		return nil, protocol.Errorf(codes.InvalidPayload, "MCP server %s: client: id and secret must not be empty", server)
	}
	return &machine{alive: alive, server: server, scopes: client.Scopes, inner: inner}, nil
}

// TokenSource implements [auth.OAuthHandler].
func (m *machine) TokenSource(ctx context.Context) (oauth2.TokenSource, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	source, err := m.inner.TokenSource(ctx)
	if source == nil || err != nil {
		return nil, err
	}
	return &renewing{source, m}, nil
}

// Authorize implements [auth.OAuthHandler].
func (m *machine) Authorize(_ context.Context, request *http.Request, response *http.Response) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.scopes) > 0 { // the first one that names scopes counts
		own := fmt.Sprintf("Bearer scope=%q", strings.Join(m.scopes, " "))
		response.Header["Www-Authenticate"] = append([]string{own}, response.Header["Www-Authenticate"]...)
	}
	return m.withoutSecrets(m.inner.Authorize(m.alive, request, response)) //nolint:contextcheck // the source outlives the request
}

// renewing is a token source without what an authorization server says of secrets.
type renewing struct {
	oauth2.TokenSource

	of *machine
}

// Token implements [oauth2.TokenSource].
func (r *renewing) Token() (*oauth2.Token, error) {
	token, err := r.TokenSource.Token()
	return token, r.of.withoutSecrets(err)
}

// withoutSecrets is an error without the text of an answer, which may repeat secrets.
func (m *machine) withoutSecrets(err error) error {
	code, final := refused(err)
	switch {
	case final:
		return protocol.Errorf(codes.LoginRequired,
			"MCP server %s needs a login: its client is not accepted (%s); look at clientId and clientSecret of its oauth",
			m.server, code)
	case code != "":
		return errors.New(code)
	}
	return err
}

// Transport is a [http.RoundTripper] for requests to one server, to which it adds the token of a
// person's login.
type Transport struct {
	// Login is that at the server.
	Login *Login
	// Server sends requests to it, and Authority those to the authorization server.
	Server, Authority http.RoundTripper
}

// RoundTrip implements [http.RoundTripper]. A request that has no usable token ends with
// login_required.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	token, err := t.Login.token(ctx, t.Authority)
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}
	response, err := t.send(request, token)
	if err == nil && response.StatusCode == http.StatusUnauthorized && token != nil {
		_ = response.Body.Close()
		if token, err = t.Login.renewed(ctx, t.Authority, token); err != nil {
			return nil, err
		}
		if request.GetBody != nil {
			if request.Body, err = request.GetBody(); err != nil {
				return nil, err
			}
		}
		response, err = t.send(request, token)
	}
	if err != nil {
		return nil, err
	}
	if err = t.Login.checkResponse(ctx, response, token != nil); err != nil {
		_ = response.Body.Close()
		return nil, err
	}
	return response, nil
}

func (t *Transport) send(request *http.Request, token *oauth2.Token) (*http.Response, error) {
	request = request.Clone(request.Context())
	if token != nil {
		request.Header.Set("Authorization", "Bearer "+token.AccessToken)
	}
	return t.Server.RoundTrip(request)
}

// checkResponse returns an error for a response that another login is the answer to.
func (l *Login) checkResponse(ctx context.Context, response *http.Response, loggedIn bool) error {
	switch {
	case response.StatusCode == http.StatusUnauthorized && loggedIn:
		return l.needed("it does not accept its login (%s)", response.Status)
	case response.StatusCode == http.StatusUnauthorized:
		return l.needed("nobody has logged in (%s)", response.Status)
	case response.StatusCode != http.StatusForbidden || !loggedIn:
		return nil
	}
	scopes, insufficient := missingScopes(response)
	if !insufficient {
		return nil
	}
	if err := l.requestScopes(ctx, scopes); err != nil {
		return err
	}
	return l.needed("its login lacks scopes that this takes: %.200q", strings.Join(scopes, " "))
}

// missingScopes are the scopes that a server names which refuses a request for the lack of them.
func missingScopes(response *http.Response) (scopes []string, insufficient bool) {
	challenges, _ := oauthex.ParseWWWAuthenticate(response.Header.Values("WWW-Authenticate")) // what is not understood says nothing
	for _, one := range challenges {
		scopes, reason := strings.Fields(one.Params["scope"]), one.Params["error"]
		if one.Scheme == "bearer" && (reason == "insufficient_scope" || reason == "" && len(scopes) > 0) { // not all give a reason
			return scopes, true
		}
	}
	return nil, false
}

// maxMissing bounds the scopes that a login asks for because calls were refused.
const maxMissing = 64

// requestScopes has the next login ask for scopes, too.
func (l *Login) requestScopes(ctx context.Context, scopes []string) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := l.read()
	if err != nil || r == nil {
		return err
	}
	r.Lacking = union(scopes, r.Lacking)
	r.Lacking = r.Lacking[:min(len(r.Lacking), maxMissing)]
	return l.write(r)
}

// union is one list without repetitions, in their order.
func union(lists ...[]string) (all []string) {
	for _, one := range slices.Concat(lists...) {
		if !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return all
}
