package webui_test

import (
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestSignIn_ACodeIsNotForOtherUsers: another user of this machine, who sees the address as an
// argument of a browser, is not signed in with it, and does not spoil it.
func TestSignIn_ACodeIsNotForOtherUsers(t *testing.T) {
	t.Parallel()
	s := start(t)
	code := s.handler.Code(operator)
	const nobody = 65534
	var failed error
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { failed = unix.Fchown(int(fd), nobody, -1) })
	}}
	theirs := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	t.Cleanup(theirs.CloseIdleConnections)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/ui/open?code="+code, http.NoBody)
	require.NoError(t, err)
	answer, err := theirs.Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	if failed != nil {
		t.Skipf("only the superuser gives a connection to another user: %v", failed)
	}
	require.Equal(t, 403, answer.StatusCode)
	require.Empty(t, answer.Cookies())
	status, _, _ := s.get("/open?code=" + code)
	require.Equal(t, 200, status)
	_, _, at := s.get("/")
	require.Equal(t, "/sessions", at)
}
