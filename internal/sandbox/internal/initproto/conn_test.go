//go:build linux

package initproto_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initproto"
)

// pair returns the two ends of a connection.
func pair(t *testing.T) (ours, theirs *initproto.Conn) {
	t.Helper()
	ours, file, err := initproto.Pair()
	require.NoError(t, err)
	fd, err := unix.Dup(int(file.Fd()))
	require.NoError(t, err)
	require.NoError(t, file.Close())
	theirs, err = initproto.Open(fd)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ours.Close() })
	return ours, theirs
}

func TestConn_TheLastWordOfOneThatDidNotListenIsHeard(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	require.NoError(t, ours.Send(1, initproto.KindConfig, initproto.Config{}))
	require.NoError(t, theirs.Send(0, initproto.KindFailed, initproto.Failed{Step: "a step"}))
	require.NoError(t, theirs.Close()) // without having read
	m, err := ours.Receive()
	require.NoError(t, err)
	var failed initproto.Failed
	require.NoError(t, m.Decode(&failed))
	require.Equal(t, "a step", failed.Step)
	_, err = ours.Receive()
	require.ErrorIs(t, err, io.EOF)
}
