package lane_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/limits"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A result says for how long its call waited, and what for.
func TestWaits_ResultsSayWhatACallWaitedFor(t *testing.T) {
	t.Parallel()
	const takes = 500 * time.Millisecond // far more than a busy machine adds
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
	}{
		"lane":  {slots: 4, first: newCall("s", exclusive("account/a")), other: newCall("s", exclusive("account/a"))},
		"limit": {slots: 4, rule: limits.Rule{Lane: "account/*", Concurrent: 1}, first: newCall("s", shared("account/a")), other: newCall("s", shared("account/a"))},
		"rate":  {slots: 4, rule: limits.Rule{Lane: "account/*", Rate: perSecond(2), Burst: 1}, first: newCall("s", shared("account/a")), other: newCall("s", shared("account/a"))},
		"after": {slots: 4, first: awaited, other: waits},
		"slot":  {slots: 1, first: newCall("s", exclusive("account/a")), other: newCall("s", exclusive("account/b"))},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			if c.rule.Lane != "" {
				f.setLimit(c.rule)
			}
			began := make(chan struct{}, 2)
			f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
				began <- struct{}{}
				time.Sleep(takes)
				return succeed(run)
			}), lane.Options{Slots: c.slots})
			p := f.publisher()
			put(t, p, c.first)
			<-began
			put(t, p, c.other)
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
