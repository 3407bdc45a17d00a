package lane

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
)

// Law: what asks its context, or for the end of its lease, knows that the lease has ended before
// any timer of the process fires: also by a clock on which the process was stopped, or the machine.
func TestLeased_LooksAtTheClock(t *testing.T) {
	t.Parallel()
	suspended := time.Now().Add(-time.Minute).Round(0) // the monotonic clock stood still
	for name, renewed := range map[string]time.Time{"stopped": time.Now().Add(-time.Minute), "suspended": suspended} {
		for way, ask := range map[string]func(context.Context, *Run) bool{
			"Err": func(ctx context.Context, _ *Run) bool { return ctx.Err() != nil },
			"Done": func(ctx context.Context, _ *Run) bool {
				select {
				case <-ctx.Done():
					return true
				default:
					return false
				}
			},
			"LeaseEnd": func(ctx context.Context, run *Run) bool { return time.Now().After(run.LeaseEnd()) && ctx.Err() != nil },
		} {
			t.Run(name+"/"+way, func(t *testing.T) {
				t.Parallel()
				l := newIncarnation(t.Context(), 10*time.Second)
				l.timer.Stop() // it has not fired yet
				l.lease.Renew(time.Now())
				run := &Run{LeaseEnd: l.heldUntil}
				ctx, cancel := context.WithTimeout(l.ctx, time.Hour)
				defer cancel()
				ctx = run.Leased(ctx)
				other := run.Leased(t.Context())
				require.False(t, ask(ctx, run))
				require.NoError(t, other.Err())
				l.lease = core.Lease{Length: l.lease.Length}
				l.lease.Renew(renewed)
				require.True(t, ask(ctx, run))
				require.ErrorIs(t, context.Cause(ctx), ErrLost)
				require.Error(t, other.Err(), "a longer life ends as well")
				l.lease.Renew(time.Now()) // an answer that was late
				require.False(t, run.LeaseEnd().After(time.Now()), "what is lost does not return")
			})
		}
	}
}
