package start_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
)

func newWatchdog(t *testing.T) (*start.Watchdog, <-chan start.Deadline) {
	t.Helper()
	expired := make(chan start.Deadline, 1)
	s, err := start.NewWatchdog(func() { expired <- start.Now() })
	require.NoError(t, err)
	return s, expired
}

func TestWatchdog_ExpiresAtItsDeadlineAndNotBefore(t *testing.T) {
	t.Parallel()
	s, expired := newWatchdog(t)
	first := start.DeadlineAt(time.Now().Add(time.Hour))
	require.NoError(t, s.Extend(first))
	require.Empty(t, expired)
	end := start.DeadlineAt(time.Now().Add(50 * time.Millisecond))
	require.NoError(t, s.Extend(end))
	require.GreaterOrEqual(t, <-expired, end)
}

func TestWatchdog_ExpiresAtOnceWhenItsDeadlineHasPassed(t *testing.T) {
	t.Parallel()
	for _, end := range []time.Time{{}, time.Now().Add(-time.Hour), time.Now()} {
		s, expired := newWatchdog(t)
		require.NoError(t, s.Extend(start.DeadlineAt(end)))
		<-expired
	}
}

func TestDeadlineAt_TheClockThatGetsThereFirstCounts(t *testing.T) {
	t.Parallel()
	now := time.Now()
	wall := now.Add(time.Hour).Round(0) // without the monotonic clock
	require.InDelta(t, int64(start.Now())+int64(time.Hour), int64(start.DeadlineAt(wall)), float64(time.Minute))
	require.InDelta(t, int64(start.Now())+int64(time.Hour), int64(start.DeadlineAt(now.Add(time.Hour))), float64(time.Minute))
}

func TestSendDeadlines_SendsWhatMovesUntilItIsStopped(t *testing.T) {
	t.Parallel()
	ends := make(chan time.Time, 3)
	begun := time.Now()
	last := begun
	for i := range 3 {
		ends <- begun.Add(time.Duration(i/2+1) * time.Hour) // the second one is the first one again
	}
	sent, stop, done := make(chan start.Deadline, 3), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		start.SendDeadlines(func() time.Time {
			select {
			case last = <-ends:
			default:
			}
			return last
		}, begun, stop, func(d start.Deadline) error { sent <- d; return nil })
	}()
	first, second := <-sent, <-sent
	require.InDelta(t, float64(time.Hour), float64(second-first), float64(time.Minute))
	close(stop)
	<-done
	require.Empty(t, sent)
}
