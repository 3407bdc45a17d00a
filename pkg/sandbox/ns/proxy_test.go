//go:build linux

package ns_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/egress"
	"github.com/toolfleet/toolfleet/pkg/sandbox/escapetest"
	"github.com/toolfleet/toolfleet/pkg/sandbox/ns"
)

// TestProxy_IsTheOnlyWayOut: a listed host is reached through the proxy, and nothing else
// is, through the proxy or past it.
func TestProxy_IsTheOnlyWayOut(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	escapetest.InArms(t, true, testProxy)
}

func testProxy(t *testing.T) { //nolint:thelper // it is the test
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "a page") }))
	t.Cleanup(site.Close)
	listed := strings.TrimPrefix(site.URL, "http://")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "a secret") }))
	t.Cleanup(other.Close)
	unlisted := strings.TrimPrefix(other.URL, "http://")

	allow, err := egress.ParseAllow(listed)
	require.NoError(t, err)
	p, err := egress.New(egress.Options{Allow: allow, Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	require.NoError(t, err)
	served := make(chan error, 4)
	s := openWith(t, sandbox.Network{Mode: sandbox.NetworkProxy, Serve: func(ctx context.Context, l net.Listener) { served <- p.Serve(ctx, l) }})

	require.Contains(t, ask(t, s, "http://"+listed+"/"), "a page")
	require.Contains(t, ask(t, s, "http://"+unlisted+"/"), "403 Forbidden")
	require.Contains(t, ask(t, s, "http://"+unlisted+"/"), "--allow-net "+unlisted)
	require.Contains(t, ask(t, s, "http://169.254.169.254/latest/"), "403 Forbidden")
	require.Contains(t, sh(t, s, "env | grep -i -e _proxy | sort"), "https_proxy=http://127.0.0.1:3128\n")
	for _, direct := range []string{listed, unlisted, "1.1.1.1:80", "169.254.169.254:80"} {
		host, port, _ := net.SplitHostPort(direct)
		require.Contains(t, sh(t, s, fmt.Sprintf("exec 2>&1; (exec 3<>/dev/tcp/%s/%s) && echo connected || echo refused", host, port)), "refused", direct)
	}

	require.NoError(t, s.Close())
	select {
	case err := <-served:
		require.NoError(t, err)
	default:
		require.Fail(t, "the proxy is served after Close")
	}
}

// TestProxy_DeadMeansNothing: when nobody serves the proxy, nothing is reached.
func TestProxy_DeadMeansNothing(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		gone := make(chan struct{})
		s := openWith(t, sandbox.Network{Mode: sandbox.NetworkProxy, Serve: func(_ context.Context, l net.Listener) {
			_ = l.Close()
			close(gone)
		}})
		<-gone
		require.Contains(t, ask(t, s, "http://127.0.0.1/"), "Connection refused")
	})
}

func openWith(t *testing.T, network sandbox.Network) sandbox.Sandbox {
	t.Helper()
	workspace, scratch := t.TempDir(), t.TempDir()
	require.NoError(t, os.Chmod(workspace, 0o755))
	s, err := ns.New(nil).Open(t.Context(), sandbox.Spec{
		ID: "proxy", Workspace: workspace, Scratch: scratch, Env: map[string]string{"PATH": os.Getenv("PATH")},
		Limits: sandbox.Limits{Wall: 20 * time.Second}, Network: network,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func sh(t *testing.T, s sandbox.Sandbox, script string) string {
	t.Helper()
	result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"bash", "-c", script}})
	require.NoError(t, err)
	require.Equal(t, sandbox.ReasonExited, result.Reason)
	return string(result.Combined.Data)
}

// ask asks the proxy for an address.
func ask(t *testing.T, s sandbox.Sandbox, address string) string {
	t.Helper()
	return sh(t, s, fmt.Sprintf(`exec 2>&1; exec 3<>/dev/tcp/127.0.0.1/3128 && printf 'GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' >&3 && cat <&3`, address))
}
