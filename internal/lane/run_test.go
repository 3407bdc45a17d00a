package lane_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestRun_LeaseEndMovesWithRenewals, and lies ahead for as long as the lane is held.
func TestRun_LeaseEndMovesWithRenewals(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.ensurePool(briefLease)
	moved := make(chan time.Duration, 1)
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		first := run.LeaseEnd()
		for ctx.Err() == nil && !run.LeaseEnd().After(first) {
			<-time.After(time.Millisecond)
		}
		moved <- time.Until(run.LeaseEnd())
		return succeed(run)
	}), lane.Options{})
	put(t, p, newCall("s", exclusive("account/acme")))
	left := <-moved
	require.Positive(t, left)
	require.Less(t, left, briefLease)
}

// TestRun_FenceGrowsWithEachHolder: after a worker was lost, and after one has let the lane go.
func TestRun_FenceGrowsWithEachHolder(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	fences := make(chan uint64, 1)
	tells := hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		fences <- run.Fence
		if run.Attempt == 1 && run.Call.Tool == "lost" {
			<-ctx.Done()
		}
		return succeed(run)
	})
	call := func(tool string) *protocol.Call {
		c := newCall("s", exclusive("account/acme"))
		c.Tool = tool
		put(t, p, c)
		return c
	}
	f.ensurePool(briefLease)
	frozen := f.connect()
	h, err := lane.NewHolder(t.Context(), frozen, tells, lane.Options{Worker: "lost", Logger: f.logger})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	lost := make(chan error, 1)
	go func() { lost <- h.Run(ctx, ctx) }()
	again := call("lost")
	first := <-fences
	frozen.Close()
	second := f.hold(tells, lane.Options{Worker: "second"})
	after := <-fences
	require.Greater(t, after, first)
	f.await(p, again)
	second.stop()
	f.hold(tells, lane.Options{Worker: "third"})
	last := call("next")
	require.Greater(t, <-fences, after)
	f.await(p, last)
	stop()
	require.NoError(t, <-lost)
}

// Operators see what a lane's next call waits for, and a result says for how long, and what for.
func TestWaits_ResultsSayWhatACallWaitedFor(t *testing.T) {
	t.Parallel()
	const takes = 2 * time.Second
	at := func(w *protocol.Waits) map[string]float64 {
		return map[string]float64{"slot": w.SlotMS, "lane": w.LaneMS, "after": w.AfterMS, "limit": w.LimitMS, "rate": w.RateMS}
	}
	awaited := newCall("s", exclusive("account/a"))
	waits := newCall("s", exclusive("account/b"))
	waits.After = []protocol.CallRef{{SessionID: awaited.SessionID, ID: awaited.ID}}
	for want, c := range map[string]struct {
		rule  limits.Rule
		slots int
		first *protocol.Call
		other *protocol.Call
		shown string // by an operator
	}{
		"lane":  {slots: 4, first: newCall("s", exclusive("account/a")), other: newCall("s", exclusive("account/a")), shown: "an earlier call of the lane, which runs"},
		"limit": {slots: 4, rule: limits.Rule{Lane: "account/*", Concurrent: 1}, first: newCall("s", shared("account/a")), other: newCall("s", shared("account/a")), shown: "limit account/*: concurrent 1"},
		"rate":  {slots: 4, rule: limits.Rule{Lane: "account/*", Rate: limits.Rate{N: 1, Per: time.Hour}, Burst: 1}, first: newCall("s", shared("account/a")), other: newCall("s", shared("account/a")), shown: "limit account/*: rate 1/h"},
		"after": {slots: 4, first: awaited, other: waits, shown: "call s/"},
		"slot":  {slots: 1, first: newCall("s", exclusive("account/a")), other: newCall("s", exclusive("account/b")), shown: "a worker: none has claimed the lane"},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			if c.rule.Lane != "" {
				f.setLimit(c.rule)
			}
			began, end := make(chan struct{}, 2), make(chan struct{})
			f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
				began <- struct{}{}
				<-end
				return succeed(run)
			}), lane.Options{Slots: c.slots})
			p := f.publisher()
			put(t, p, c.first)
			<-began
			sent := time.Now()
			put(t, p, c.other)
			require.Eventually(t, func() bool { // lane show says so
				view, err := f.operator().Show(t.Context(), protocol.DefaultPool, c.other.Lane(), 0)
				return err == nil && strings.HasPrefix(view.WaitsFor, c.shown)
			}, patience, 10*time.Millisecond, c.shown)
			time.Sleep(max(takes, 2*time.Since(sent))) // longer than all else takes, however slow the machine is
			close(end)
			if c.rule.Rate.N > 0 {
				f.setLimit(limits.Rule{Lane: c.rule.Lane, Rate: perSecond(1000)})
			}
			r := f.await(p, c.other)
			require.Greater(t, at(&r.Waits)[want], 10.0, "%+v of %+v", r.Waits, r)
			for why, ms := range at(&r.Waits) {
				if why != want {
					require.Less(t, ms, at(&r.Waits)[want], "%s: %+v", why, r.Waits)
				}
			}
		})
	}
}
