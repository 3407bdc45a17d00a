package login

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/auth/extauth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
	return m.plain(m.inner.Authorize(m.alive, request, response)) //nolint:contextcheck // the source outlives the request
}

// renewing is a token source without what an authorization server says of secrets.
type renewing struct {
	oauth2.TokenSource

	of *machine
}

// Token implements [oauth2.TokenSource].
func (r *renewing) Token() (*oauth2.Token, error) {
	token, err := r.TokenSource.Token()
	return token, r.of.plain(err)
}

// plain is an error without the text of an answer, which may repeat secrets.
func (m *machine) plain(err error) error {
	code, final := refused(err)
	switch {
	case final:
		return protocol.Errorf(codes.LoginRequired, "MCP server %s needs a login: its client is not accepted (%s); look at clientId and clientSecret of its oauth", m.server, code)
	case code != "":
		return errors.New(code)
	}
	return err
}
