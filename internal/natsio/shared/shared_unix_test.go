//go:build unix

package shared_test

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/shared"
)

// A first connection ends with its context also where the server says nothing.
func TestDial_EndsWithItsContext(t *testing.T) {
	t.Setenv(shared.IdleVariable, "1m")
	s := serverIn(t, serve)
	require.NoError(t, s.Reach(t.Context()))
	process, err := os.FindProcess(serverOf(t, s.Dir))
	require.NoError(t, err)
	require.NoError(t, process.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = connect(ctx, s)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), 3*time.Second, "without it: 5 s")
}
