//go:build linux

package ns

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestProxy_ComesBackWithALostSandbox: the sandbox that is started again has a listener and a link
// of its own, and the old ones are not served any more.
func TestProxy_ComesBackWithALostSandbox(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan string, 4), make(chan string, 4)
	serve := func(ctx context.Context, what string) {
		begun <- what
		<-ctx.Done()
		ended <- what
	}
	both := func(from <-chan string) {
		require.ElementsMatch(t, []string{"proxy", "link"}, []string{<-from, <-from})
	}
	s, err := New(nil).open(t.Context(), isolation.Spec{
		ID: "lost", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
		Network: isolation.Network{
			Mode: isolation.NetworkProxy, Serve: func(ctx context.Context, _ net.Listener) { serve(ctx, "proxy") },
			ServeLink: func(ctx context.Context, _ io.ReadWriteCloser) { serve(ctx, "link") },
		},
	})
	require.NoError(t, err)
	both(begun)
	require.NoError(t, s.current.process.Kill())
	<-s.current.gone
	result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true"}})
	require.NoError(t, err)
	require.Zero(t, result.ExitCode)
	both(ended)
	both(begun)
	require.NoError(t, s.Close())
	both(ended)
}
