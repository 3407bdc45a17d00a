package webui_test

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/httpapi"
)

// TestSignIn_ACodeIsNotForOtherUsers: another user of this machine, who sees the address as an
// argument of a browser, is not signed in with it, and does not spoil it.
func TestSignIn_ACodeIsNotForOtherUsers(t *testing.T) {
	t.Parallel()
	s := start(t)
	code := s.handler.Code(operator)
	theirs := another(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/ui/open?code="+code, http.NoBody)
	require.NoError(t, err)
	answer, err := theirs.Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, 403, answer.StatusCode)
	require.Empty(t, answer.Cookies())
	status, _, _ := s.get("/open?code=" + code)
	require.Equal(t, 200, status)
	_, _, at := s.get("/")
	require.Equal(t, "/sessions", at)
}

// TestSignIn_BehindAProxy: the connection is that of the proxy's user, so it says nothing of the
// browser, and other servers of the fleet have connections of other proxies.
func TestSignIn_BehindAProxy(t *testing.T) {
	t.Parallel()
	for _, proxy := range []bool{false, true} {
		s := start(t, func(o *httpapi.Options) { o.AnyHost = proxy })
		s.signIn(operator)
		address, err := url.Parse(s.URL + "/ui/")
		require.NoError(t, err)
		cookies := s.Client().Jar.Cookies(address)
		require.Len(t, cookies, 1)
		require.Equal(t, proxy, s.handler.Opens(cookies[0].Value) == nil, "proxy: %t", proxy)
	}
}

// another is a client of another user of this machine.
func another(t *testing.T) *http.Client {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: only the superuser gives a connection to another user")
	}
	const nobody = 65534
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.Fchown(int(fd), nobody, -1) })
		return errors.Join(err, failed)
	}}
	theirs := &http.Client{
		Transport:     &http.Transport{DialContext: dialer.DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(theirs.CloseIdleConnections)
	return theirs
}

// TestSignIn_ACookieIsNotForOtherUsers: a server of another user of this machine gets the cookie of
// a browser that opens it at 127.0.0.1, and can do nothing with it.
func TestSignIn_ACookieIsNotForOtherUsers(t *testing.T) {
	t.Parallel()
	s := start(t)
	theirs := another(t)
	s.signIn(operator)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/ui/sessions", http.NoBody)
	require.NoError(t, err)
	for _, cookie := range s.Client().Jar.Cookies(request.URL) {
		request.AddCookie(cookie)
	}
	for client, want := range map[*http.Client]int{{}: 200, theirs: 303} {
		answer, err := client.Do(request)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		client.CloseIdleConnections()
		require.Equal(t, want, answer.StatusCode)
	}
}
