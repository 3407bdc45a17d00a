//go:build linux

package deadman_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/deadman"
)

func newSwitch(t *testing.T) (*deadman.Switch, <-chan deadman.Deadline) {
	t.Helper()
	expired := make(chan deadman.Deadline, 1)
	s, err := deadman.New(func() { expired <- deadman.Now() })
	require.NoError(t, err)
	return s, expired
}

func TestSwitch_ExpiresAtItsDeadlineAndNotBefore(t *testing.T) {
	t.Parallel()
	s, expired := newSwitch(t)
	first := deadman.At(time.Now().Add(time.Hour))
	require.NoError(t, s.Extend(first))
	require.Empty(t, expired)
	end := deadman.At(time.Now().Add(50 * time.Millisecond))
	require.NoError(t, s.Extend(end))
	require.GreaterOrEqual(t, <-expired, end)
}

func TestSwitch_ExpiresAtOnceWhenItsDeadlineHasPassed(t *testing.T) {
	t.Parallel()
	for _, end := range []time.Time{{}, time.Now().Add(-time.Hour), time.Now()} {
		s, expired := newSwitch(t)
		require.NoError(t, s.Extend(deadman.At(end)))
		<-expired
	}
}

func TestAt_TheClockThatGetsThereFirstCounts(t *testing.T) {
	t.Parallel()
	now := time.Now()
	wall := now.Add(time.Hour).Round(0) // without the monotonic clock
	require.InDelta(t, int64(deadman.Now())+int64(time.Hour), int64(deadman.At(wall)), float64(time.Minute))
	require.InDelta(t, int64(deadman.Now())+int64(time.Hour), int64(deadman.At(now.Add(time.Hour))), float64(time.Minute))
}

func TestKeep_SendsWhatMovesUntilItIsStopped(t *testing.T) {
	t.Parallel()
	ends := make(chan time.Time, 3)
	begun := time.Now()
	last := begun
	for i := range 3 {
		ends <- begun.Add(time.Duration(i/2+1) * time.Hour) // the second one is the first one again
	}
	sent, stop, done := make(chan deadman.Deadline, 3), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		deadman.Keep(func() time.Time {
			select {
			case last = <-ends:
			default:
			}
			return last
		}, begun, stop, func(d deadman.Deadline) error { sent <- d; return nil })
	}()
	first, second := <-sent, <-sent
	require.InDelta(t, float64(time.Hour), float64(second-first), float64(time.Minute))
	close(stop)
	<-done
	require.Empty(t, sent)
}
