package login_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/mcp/login"
	"github.com/toolfleet/toolfleet/internal/mcp/login/logintest"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a server that asks who comes, and a store of logins at it.
type rig struct {
	*logintest.Server

	t     *testing.T
	store login.Store
	web   *http.Transport
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		t: t, web: &http.Transport{},
		store: login.Store{Dir: filepath.Join(t.TempDir(), "logins"), Advice: func(server string) string { return "log in to " + server }},
	}
	r.Server = logintest.Start(t, toolservertest.New)
	t.Cleanup(r.web.CloseIdleConnections)
	return r
}

func (r *rig) login() *login.Login { return r.store.Of("web", r.URL) }

// ask logs in, as somebody whose browser opens every page at once.
func (r *rig) ask(p login.Person) (tools int, err error) {
	var browser sync.WaitGroup
	defer browser.Wait()
	p.Transport = r.web
	p.Show = func(page, _ string) {
		browser.Go(func() {
			if _, err := logintest.Open(r.t.Context(), r.web, page); err != nil {
				r.t.Errorf("browser: %v", err)
			}
		})
	}
	tools, _, err = r.login().LogIn(r.t.Context(), p)
	return tools, err
}

// post sends a request of the login to the server.
func (r *rig) post(at *login.Login) (status int, err error) {
	client := &http.Client{Transport: &login.Transport{Login: at, Server: r.web, Authority: r.web}}
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.URL, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	require.NoError(r.t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// let requires that the server lets the login in.
func (r *rig) let(at *login.Login) {
	r.t.Helper()
	status, err := r.post(at)
	require.NoError(r.t, err)
	require.NotContains(r.t, []int{http.StatusUnauthorized, http.StatusForbidden}, status)
}

// needs requires that the login is not enough, and that nothing secret is said.
func (r *rig) needs(at *login.Login, why string) {
	r.t.Helper()
	_, err := r.post(at)
	r.isLogin(err, why)
}

func (r *rig) isLogin(err error, why string) {
	r.t.Helper()
	var fault *protocol.Error
	require.ErrorAs(r.t, err, &fault)
	require.Equal(r.t, codes.LoginRequired, fault.Code)
	require.Contains(r.t, err.Error(), why)
	r.secretFree(err.Error())
}

func (r *rig) secretFree(text string) {
	r.t.Helper()
	for _, secret := range r.Secrets() {
		require.NotContains(r.t, text, secret)
	}
}

// renewals is how often a token was asked for by a refresh token.
func (r *rig) renewals() (n int) {
	for _, form := range r.Asked() {
		if form.Get("grant_type") == "refresh_token" {
			n++
		}
	}
	return n
}

func TestLogin_OfAPersonIsKeptAndUsed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.needs(r.login(), "nobody has logged in (401 Unauthorized); log in to web")
	tools, err := r.ask(login.Person{})
	require.NoError(t, err)
	require.Positive(t, tools)
	r.let(r.login())
	r.needs(r.store.Of("other", r.URL), "nobody has logged in")
	if runtime.GOOS != "windows" {
		for path, mode := range map[string]os.FileMode{r.login().File(): 0o600, r.store.Dir: 0o700} {
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, mode, info.Mode().Perm())
		}
	}

	require.NoError(t, os.WriteFile(r.login().File(), []byte("{"), 0o600))
	r.needs(r.login(), "cannot be read")
	_, err = r.ask(login.Person{ClientID: logintest.Client, ClientSecret: logintest.Secret})
	require.NoError(t, err)
	r.let(r.login())
}

// The token is for the URL that was logged in to: a call that names another one does not get it.
func TestLogin_IsOfOneURL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.ask(login.Person{})
	require.NoError(t, err)
	_, err = r.post(r.store.Of("web", r.URL+"/"))
	r.isLogin(err, "nobody has logged in")
}

func TestLogin_IsRenewed(t *testing.T) {
	t.Parallel()
	for name, lifetime := range map[string]time.Duration{"when it has expired": time.Second, "when it is not accepted": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.Lifetime(lifetime)
			_, err := r.ask(login.Person{})
			require.NoError(t, err)
			r.Lifetime(time.Hour)
			if lifetime == time.Hour {
				r.Revoke(false)
			}
			for range 3 {
				r.let(r.login())
			}
			require.Equal(t, 1, r.renewals())
			r.Revoke(false)
			r.let(r.login()) // by the refresh token that came with the other one
			require.Equal(t, 2, r.renewals())
		})
	}
}

// Refresh tokens are good once: of many that find the login expired, one renews it.
func TestLogin_IsRenewedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.ask(login.Person{})
	require.NoError(t, err)
	r.Revoke(false)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			if status, err := r.post(r.login()); err != nil || status == http.StatusUnauthorized {
				t.Errorf("not let in: %d %v", status, err)
			}
		})
	}
	workers.Wait()
	require.Equal(t, 1, r.renewals())
}

// Who gives up a call while the login is renewed does not lose it.
func TestLogin_SurvivesWhoGivesUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.ask(login.Person{})
	require.NoError(t, err)
	r.Revoke(false)
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := &http.Client{Transport: &login.Transport{Login: r.login(), Server: r.web, Authority: givingUp{r.web, cancel}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL, http.NoBody)
	require.NoError(t, err)
	response, err := gaveUp.Do(request)
	if err == nil {
		_ = response.Body.Close()
	}
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, r.renewals())
	r.let(r.login())
	require.Equal(t, 1, r.renewals())
}

// givingUp cancels a call when its login begins to be renewed.
type givingUp struct {
	http.RoundTripper

	cancel func()
}

// RoundTrip implements [http.RoundTripper].
func (g givingUp) RoundTrip(request *http.Request) (*http.Response, error) {
	g.cancel()
	return g.RoundTripper.RoundTrip(request)
}

func TestLogin_ThatEndsSaysWhatToDo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.ask(login.Person{})
	require.NoError(t, err)
	r.Revoke(false)
	r.Break(http.StatusBadGateway)
	_, err = r.post(r.login())
	require.ErrorContains(t, err, `renew the login: the authorization server says "502 Bad Gateway"`)
	r.secretFree(err.Error())
	r.Break(0)
	r.let(r.login()) // it was only broken
	r.Revoke(true)
	r.needs(r.login(), `not accepted any more (the authorization server says "invalid_grant")`)
	require.NoError(t, os.Remove(r.login().File()))
	r.needs(r.login(), "nobody has logged in")
}

// A call that the login is too little for says so, and the next login asks for more.
func TestLogin_AsksForWhatCallsLacked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.ask(login.Person{})
	require.NoError(t, err)
	r.Demand("basic", "write")
	r.needs(r.login(), `lacks scopes that this takes: "basic write"`)
	for range 2 {
		r.Demand() // a login sees nothing of it
		_, err = r.ask(login.Person{})
		require.NoError(t, err)
		r.Demand("basic", "write")
		r.let(r.login())
	}
	_, err = r.ask(login.Person{Scopes: []string{"forbidden"}})
	require.ErrorContains(t, err, `"access_denied"`)
	r.let(r.login()) // the old one stays
}

// Pages that come back without the state of the login that waits are none of its own.
func TestLogin_TakesNoOtherCode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, _, err := r.login().LogIn(ctx, login.Person{Transport: r.web, Show: func(_, back string) {
		for _, query := range []string{"?code=stolen", "?code=stolen&state=mine", "?error=access_denied&state="} {
			if status, err := logintest.Open(t.Context(), r.web, back+query); status != http.StatusBadRequest {
				t.Errorf("a page of others is answered %d (%v)", status, err)
			}
		}
		cancel() // nobody logs in
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.NoFileExists(t, r.login().File())
}

// connect has a machine greet the server.
func (r *rig) connect(client protocol.MCPClient) error {
	handler, err := login.Machine(r.t.Context(), r.web, "web", client)
	require.NoError(r.t, err)
	transport := &mcp.StreamableClientTransport{Endpoint: r.URL, OAuthHandler: handler, HTTPClient: &http.Client{Transport: r.web}}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(r.t.Context(), transport, nil)
	if err != nil {
		return err
	}
	err = session.Ping(r.t.Context(), nil)
	_ = session.Close()
	return err
}

func TestLogin_OfAMachine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.NoError(t, r.connect(protocol.MCPClient{ID: logintest.Client, Secret: logintest.Secret}))
	r.Demand("basic", "write")
	require.NoError(t, r.connect(protocol.MCPClient{ID: logintest.Client, Secret: logintest.Secret, Scopes: []string{"write", "more"}}))
	require.Equal(t, "write more", sorted(r.Asked()[len(r.Asked())-1].Get("scope"), "write", "more"))
	err := r.connect(protocol.MCPClient{ID: logintest.Client, Secret: "wrong"})
	r.isLogin(err, `its client is not accepted (the authorization server says "invalid_client")`)
	r.Break(http.StatusBadGateway)
	err = r.connect(protocol.MCPClient{ID: logintest.Client, Secret: logintest.Secret})
	require.ErrorContains(t, err, "502 Bad Gateway")
	r.secretFree(err.Error())
	_, err = login.Machine(t.Context(), r.web, "web", protocol.MCPClient{ID: logintest.Client})
	require.ErrorContains(t, err, "id and secret must not be empty")
}

// sorted is a list of scopes, which come in any order, in that of others.
func sorted(scopes string, order ...string) string {
	var found []string
	for _, one := range order {
		if strings.Contains(" "+scopes+" ", " "+one+" ") {
			found = append(found, one)
		}
	}
	if len(found) != len(strings.Fields(scopes)) {
		return fmt.Sprintf("%q has others", scopes)
	}
	return strings.Join(found, " ")
}
