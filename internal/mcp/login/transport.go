package login

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"
)

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
	if err = t.Login.judge(ctx, response, token != nil); err != nil {
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

// judge returns an error for a response that another login is the answer to.
func (l *Login) judge(ctx context.Context, response *http.Response, loggedIn bool) error {
	switch {
	case response.StatusCode == http.StatusUnauthorized && loggedIn:
		return l.needed("it does not accept its login (%s)", response.Status)
	case response.StatusCode == http.StatusUnauthorized:
		return l.needed("nobody has logged in (%s)", response.Status)
	case response.StatusCode != http.StatusForbidden || !loggedIn:
		return nil
	}
	scopes, insufficient := lacking(response)
	if !insufficient {
		return nil
	}
	if err := l.want(ctx, scopes); err != nil {
		return err
	}
	return l.needed("its login lacks scopes that this takes: %.200q", strings.Join(scopes, " "))
}

// lacking are the scopes that a server names which refuses a request for the lack of them.
func lacking(response *http.Response) (scopes []string, insufficient bool) {
	challenges, _ := oauthex.ParseWWWAuthenticate(response.Header.Values("WWW-Authenticate")) // what is not understood says nothing
	for _, one := range challenges {
		scopes, reason := strings.Fields(one.Params["scope"]), one.Params["error"]
		if one.Scheme == "bearer" && (reason == "insufficient_scope" || reason == "" && len(scopes) > 0) { // not all give a reason
			return scopes, true
		}
	}
	return nil, false
}

// maxLacking bounds the scopes that a login asks for because calls were refused.
const maxLacking = 64

// want has the next login ask for scopes, too.
func (l *Login) want(ctx context.Context, scopes []string) error {
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
	r.Lacking = r.Lacking[:min(len(r.Lacking), maxLacking)]
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
