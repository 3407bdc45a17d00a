//go:build linux

package wire_test

import (
	"io"
	"sync"
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

// TestLook_ReturnsWhatIsThereOrComesMeanwhile: and does not wait for anything else.
func TestLook_ReturnsWhatIsThereOrComesMeanwhile(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	m, err := theirs.Look(time.Nanosecond)
	require.NoError(t, err)
	require.Nil(t, m)
	require.NoError(t, ours.Send(1, wire.KindFiles, make([]byte, 200_000))) // in several frames
	m, err = theirs.Look(time.Hour)
	require.NoError(t, err)
	require.Equal(t, uint64(1), m.ID)
	looked := make(chan uint64)
	go func() {
		m, err := theirs.Look(time.Hour)
		if err != nil {
			t.Errorf("look: %v", err)
			m = &wire.Message{}
		}
		looked <- m.ID
	}()
	require.NoError(t, ours.Send(2, wire.KindSignal, nil))
	require.Equal(t, uint64(2), <-looked)
	require.NoError(t, ours.Close())
	_, err = theirs.Look(time.Hour)
	require.ErrorIs(t, err, io.EOF)
}

// TestLook_BesideReceiveEachMessageIsReturnedOnce: whoever gets it, and however many frames it has.
func TestLook_BesideReceiveEachMessageIsReturnedOnce(t *testing.T) {
	t.Parallel()
	const messages = 500
	theirs, ours := pair(t) // Receive waits as that of a worker
	returned := make(chan uint64, 2*messages)
	var all sync.WaitGroup
	all.Go(func() {
		for m, err := ours.Receive(); err == nil; m, err = ours.Receive() {
			returned <- m.ID
		}
	})
	for range 2 {
		all.Go(func() {
			for m, err := ours.Look(time.Hour); err == nil; m, err = ours.Look(time.Hour) {
				returned <- m.ID
			}
		})
	}
	body := make([]byte, 100_000)
	for id := range messages {
		require.NoError(t, theirs.Send(uint64(id), wire.KindFiles, body[:id*len(body)/messages]))
	}
	require.NoError(t, theirs.Close())
	all.Wait()
	close(returned)
	count := map[uint64]int{}
	for id := range returned {
		count[id]++
	}
	require.Len(t, count, messages)
	for id, times := range count {
		require.Equal(t, 1, times, id)
	}
}
