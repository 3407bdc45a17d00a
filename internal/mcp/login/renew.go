package login

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/oauth2"
)

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
// same time, one of them requests it.
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
	code = answer.ErrorCode
	if code == "" {
		code = answer.Response.Status
	}
	return fmt.Sprintf("the authorization server says %.100q", code), status != http.StatusTooManyRequests && status < http.StatusInternalServerError
}
