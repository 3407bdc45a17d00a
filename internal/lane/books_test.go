package lane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is older than a consumer that was made again may have been handed out by the one before.
func TestBooks_AConsumerThatIsMadeAgain(t *testing.T) {
	t.Parallel()
	var b books
	now := time.Now()
	require.False(t, b.remade("first", now))
	require.False(t, b.remade("first", now))
	require.Equal(t, doubtNothing, b.doubtConsumer(now.Add(-time.Hour)), "it waited for a worker")
	require.True(t, b.remade(gone, now.Add(time.Minute)))
	require.True(t, b.remade("first", now.Add(2*time.Minute)), "of a backup")
	require.Equal(t, doubtStarted, b.doubtConsumer(now.Add(2*time.Minute-1)))
	require.Equal(t, doubtNothing, b.doubtConsumer(now.Add(2*time.Minute)))
}

// What a server has stored before this process met it may have been handed out before its last start.
func TestBooks_AServerThatIsMet(t *testing.T) {
	t.Parallel()
	var b books
	now := time.Now()
	require.Equal(t, doubtStarted, b.doubt("first", now), "not met yet")
	b.meet("first", now)
	b.meet("first", now.Add(time.Hour))
	b.meet("", now.Add(time.Hour))
	require.Equal(t, doubtSettled, b.doubt("first", now.Add(-1)), "the process is new")
	require.Equal(t, doubtNothing, b.doubt("first", now))
	require.Equal(t, doubtNothing, b.doubt("", now), "the connection is lost")
	require.Equal(t, doubtStarted, b.doubt("second", now.Add(time.Hour)))
	b.meet("second", now.Add(time.Minute))
	require.Equal(t, doubtStarted, b.doubt("second", now.Add(time.Minute-1)), "it was killed while this process held lanes")
	require.Equal(t, doubtNothing, b.doubt("second", now.Add(time.Minute)))
}
