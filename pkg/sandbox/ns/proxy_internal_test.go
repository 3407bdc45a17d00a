//go:build linux

package ns

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestProxy_ComesBackWithALostSandbox: the sandbox that is started again has a listener of
// its own, and the old one is not served any more.
func TestProxy_ComesBackWithALostSandbox(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}, 2), make(chan struct{}, 2)
	s, err := New(nil).open(t.Context(), sandbox.Spec{
		ID: "lost", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
		Network: sandbox.Network{Mode: sandbox.NetworkProxy, Serve: func(ctx context.Context, _ net.Listener) {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
		}},
	})
	require.NoError(t, err)
	<-begun
	require.NoError(t, s.current.process.Kill())
	<-s.current.gone
	result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true"}})
	require.NoError(t, err)
	require.Zero(t, result.ExitCode)
	<-ended
	<-begun
	require.NoError(t, s.Close())
	<-ended
}
