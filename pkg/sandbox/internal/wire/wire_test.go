//go:build linux

package wire_test

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// pair returns the two ends of a connection.
func pair(t *testing.T) (ours, theirs *wire.Conn) {
	t.Helper()
	ours, file, err := wire.Pair()
	require.NoError(t, err)
	fd, err := unix.Dup(int(file.Fd()))
	require.NoError(t, err)
	require.NoError(t, file.Close())
	theirs, err = wire.Open(fd)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ours.Close() })
	return ours, theirs
}

func TestConn_TheLastWordOfOneThatDidNotListenIsHeard(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	require.NoError(t, ours.Send(1, wire.KindConfig, wire.Config{}))
	require.NoError(t, theirs.Send(0, wire.KindFailed, wire.Failed{Step: "a step"}))
	require.NoError(t, theirs.Close()) // without having read
	m, err := ours.Receive()
	require.NoError(t, err)
	var failed wire.Failed
	require.NoError(t, m.Decode(&failed))
	require.Equal(t, "a step", failed.Step)
	_, err = ours.Receive()
	require.ErrorIs(t, err, io.EOF)
}

// TestReceive_SpinsForATimeAndSleepsThen: a message is received whether it is there, comes meanwhile, or comes later.
func TestReceive_SpinsForATimeAndSleepsThen(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	for i, spin := range []time.Duration{0, time.Nanosecond, time.Hour, time.Nanosecond} {
		theirs.Spin(spin)
		received := make(chan uint64)
		go func() {
			m, err := theirs.Receive()
			if err != nil {
				t.Errorf("receive: %v", err)
				m = &wire.Message{}
			}
			received <- m.ID
		}()
		require.NoError(t, ours.Send(uint64(i+1), wire.KindKillAll, nil))
		require.Equal(t, uint64(i+1), <-received)
	}
	theirs.Spin(time.Nanosecond)
	require.NoError(t, ours.Close())
	_, err := theirs.Receive()
	require.ErrorIs(t, err, io.EOF)
}
