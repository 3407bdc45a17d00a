package longlived_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/worker/longlived"
)

var errTest = errors.New("test")

// until runs a life whose resident returns when its context ends, and returns that context's cause.
func until(l *longlived.Lifetime) (cause error) {
	l.Run(func(ctx context.Context) {
		<-ctx.Done()
		cause = context.Cause(ctx)
	})
	return cause
}

func TestLife_OutlivesItsCallAndEndsForAReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		call, cancel := context.WithCancel(t.Context())
		l := longlived.NewLifetime(call, 0, nil)
		causes := make(chan error, 1)
		go func() { causes <- until(l) }()
		cancel()
		synctest.Wait()
		require.True(t, l.IsRunning())
		l.Stop(0, errTest)
		require.False(t, l.IsRunning())
		require.ErrorIs(t, <-causes, errTest)
		l.End(nil) // once more is no error
	})
}

func TestLife_EndsAtItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		require.ErrorIs(t, until(longlived.NewLifetime(t.Context(), time.Minute, errTest)), errTest)
		require.Equal(t, time.Minute, time.Since(begun))
	})
}

func TestLife_StopWaitsForTheGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		stubborn, quick := longlived.NewLifetime(t.Context(), 0, nil), longlived.NewLifetime(t.Context(), 0, nil)
		go stubborn.Run(func(ctx context.Context) { <-ctx.Done() })
		go quick.Run(func(context.Context) { time.Sleep(time.Second) })
		quick.Stop(time.Minute, nil)
		require.Equal(t, time.Second, time.Since(begun), "it ended by itself")
		stubborn.Stop(time.Minute, nil)
		require.Equal(t, time.Second+time.Minute, time.Since(begun))
	})
}

func TestLife_NilIsOver(t *testing.T) {
	t.Parallel()
	var l *longlived.Lifetime
	l.End(nil)
	l.Stop(time.Minute, nil)
	require.False(t, l.IsRunning())
}

func TestTail_HasTheEnd(t *testing.T) {
	t.Parallel()
	tail := longlived.Tail{Keep: 4}
	for _, piece := range []string{"ab", "cdefg", "h", "ijklmnopqr"} {
		tail.Write([]byte(piece))
	}
	require.EqualValues(t, 18, tail.Total())
	for _, c := range []struct {
		offset, limit, at int64
		want              string
	}{
		{0, 100, 14, "opqr"}, {15, 2, 15, "pq"}, {-3, 100, 15, "pqr"}, {-100, 1, 14, "o"}, {99, 1, 18, ""},
	} {
		data, at := tail.Read(c.offset, c.limit)
		require.Equal(t, c.want, string(data))
		require.Equal(t, c.at, at)
	}
}
