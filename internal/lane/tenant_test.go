package lane_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ranBy counts the calls of each tenant in the order in which they ran.
type ranBy struct {
	mu    sync.Mutex
	order []*protocol.Call
	takes time.Duration
}

func (r *ranBy) Execute(ctx context.Context, run *lane.Run) protocol.Result {
	r.mu.Lock()
	r.order = append(r.order, run.Call)
	r.mu.Unlock()
	select {
	case <-time.After(r.takes):
	case <-ctx.Done():
	}
	return succeed(run)
}

func (r *ranBy) all() []*protocol.Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clip(r.order)
}

// before is how many calls started before one, after the first ones.
func (r *ranBy) before(call *protocol.Call, first int) int {
	return slices.IndexFunc(r.all(), func(c *protocol.Call) bool { return c.ID == call.ID }) - first
}

// flood puts calls of a tenant, each into a lane of its own or all into a few.
func flood(t *testing.T, p *lane.Publisher, tenant protocol.Tenant, calls, lanes int) []*protocol.Call {
	t.Helper()
	all := make([]*protocol.Call, calls)
	for i := range all {
		all[i] = newCall("s", exclusive(fmt.Sprintf("%s/%d", "lane-"+tenant, i%lanes)))
		all[i].Tenant = tenant
	}
	put(t, p, all...)
	return all
}

// Law: a tenant with many waiting calls, in many lanes or in few, delays a single call of another
// by little more than the length of one call.
func TestTenant_AFloodDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	for name, lanes := range map[string]int{"many lanes": 1000, "few lanes": 8} {
		for _, flooding := range []protocol.Tenant{"big", ""} {
			t.Run(fmt.Sprintf("%s of %q", name, flooding), func(t *testing.T) {
				t.Parallel()
				f := newFleet(t)
				r := &ranBy{takes: 20 * time.Millisecond}
				f.hold(hostFunc(r.Execute), lane.Options{Slots: 4})
				p := f.publisher()
				flood(t, p, flooding, 1000, lanes)
				require.Eventually(t, func() bool { return len(r.all()) > 20 }, patience, time.Millisecond)
				for i := range 3 {
					single := newCall("t", exclusive(fmt.Sprint("lane-small/", i)))
					single.Tenant = "small"
					put(t, p, single)
					ran := len(r.all())
					f.await(p, single)
					require.Less(t, r.before(single, ran), 60, "calls of the flood before it")
				}
			})
		}
	}
}

var floodCalls = flag.Int("flood", 0, "waiting calls of TestTenant_ASingleCallBehindAFlood, which then checks times, too")

// Law: a single call waits for the length of one running call and a moment, however many calls of
// another tenant wait. Times are checked on request only: a busy machine makes them longer.
func TestTenant_ASingleCallBehindAFlood(t *testing.T) {
	t.Parallel()
	const takes, moment, slots = 100 * time.Millisecond, 50 * time.Millisecond, 4
	calls := max(*floodCalls, 1000)
	f := newFleet(t)
	p := f.publisher()
	all := make([]*protocol.Call, calls)
	for i := range all {
		all[i] = newCall(protocol.SessionID(fmt.Sprint("s", i%100)), exclusive(fmt.Sprint("lane-big/", i%1000)))
		all[i].Tenant = "big"
	}
	putAtOnce(t, p, all)
	r := &ranBy{takes: takes}
	f.hold(hostFunc(r.Execute), lane.Options{Slots: slots})
	require.Eventually(t, func() bool { return len(r.all()) > slots }, patience, time.Millisecond)
	var waits []float64
	for i := range 10 {
		single := newCall("t", exclusive(fmt.Sprint("lane-small/", i)))
		single.Tenant = "small"
		put(t, p, single)
		ran := len(r.all())
		waits = append(waits, f.await(p, single).QueueMS)
		require.Less(t, r.before(single, ran), 8*slots, "calls before it")
	}
	t.Logf("%d calls wait; single calls wait for %.0f ms", calls, waits)
	if *floodCalls > 0 {
		require.LessOrEqual(t, slices.Max(waits), float64((takes + moment).Milliseconds()))
	}
}

// Law: calls of all tenants get their results, also those that share a lane, in the lane's order.
func TestTenant_ALaneOfSeveralKeepsItsOrder(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	r := &ranBy{}
	f.hold(hostFunc(r.Execute), lane.Options{Slots: 4})
	f.hold(hostFunc(r.Execute), lane.Options{Slots: 4})
	p := f.publisher()
	var calls []*protocol.Call
	for i := range 200 {
		c := newCall("s", exclusive("account/shared"))
		c.Tenant = []protocol.Tenant{"", "a", "b"}[i%3]
		c.Priority = []protocol.Priority{"", protocol.Batch, protocol.Interactive, protocol.Normal}[i%4]
		put(t, p, c)
		calls = append(calls, c)
	}
	for _, c := range calls {
		f.await(p, c)
	}
	for i, ran := range r.all() {
		require.Equal(t, calls[i].ID, ran.ID, i)
	}
	f.requireQuiet()
}

// Law: among calls of a tenant that wait, interactive ones start first and batch ones last.
func TestTenant_Priorities(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	var calls []*protocol.Call
	for i := range 30 {
		c := newCall("s", exclusive(fmt.Sprint("account/", i)))
		c.Tenant, c.Priority = "a", []protocol.Priority{protocol.Batch, protocol.Normal, protocol.Interactive}[i/10]
		put(t, p, c)
		calls = append(calls, c)
	}
	r := &ranBy{takes: 5 * time.Millisecond}
	f.hold(hostFunc(r.Execute), lane.Options{Slots: 1})
	for _, c := range calls {
		f.await(p, c)
	}
	sum := map[protocol.Priority]int{}
	for i, c := range r.all() {
		sum[c.Priority] += i
	}
	require.Less(t, sum[protocol.Interactive], sum[protocol.Normal])
	require.Less(t, sum[protocol.Normal], sum[protocol.Batch])
}

// Law: a session with many lanes delays one of the same tenant little, unless both are of one
// share.
func TestTenant_ASessionWithManyLanesDelaysNoOther(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	r := &ranBy{takes: 10 * time.Millisecond}
	f.hold(hostFunc(r.Execute), lane.Options{Slots: 2})
	p := f.publisher()
	many := flood(t, p, "acme", 400, 400)
	require.Eventually(t, func() bool { return len(r.all()) > 20 }, patience, time.Millisecond)
	sharing := func(session protocol.SessionID) uint8 {
		return wire.FlowOf(&protocol.Call{Tenant: "acme", SessionID: session}).Share
	}
	other := protocol.SessionID("t")
	for i := 0; sharing(other) == sharing(many[0].SessionID); i++ {
		other = protocol.SessionID(fmt.Sprint("t", i))
	}
	before := 0
	for i := range 3 {
		single := newCall(other, exclusive(fmt.Sprint("lane-other/", i)))
		single.Tenant = "acme"
		put(t, p, single)
		ran := len(r.all())
		f.await(p, single)
		before += max(r.before(single, ran), 0)
	}
	require.Less(t, before, 100, "calls of the other session before them")
}

// Law: two tenants that wait get slots by their weights, within a tenth. A call ends only when both
// are in line, as they are where calls take longer than a round trip.
func TestTenant_SharesAreTheWeights(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Tenant: "big", Weight: 3})
	p := f.publisher()
	flood(t, p, "big", 200, 200)
	flood(t, p, "small", 200, 200)
	var holder atomic.Pointer[lane.Holder]
	inLine := func() bool { h := holder.Load(); return h != nil && h.WeightOf("big") == 3 && h.InLine("big", "small") }
	r := &ranBy{}
	held := f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		for len(r.all()) < 190 && !inLine() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return r.Execute(ctx, run)
	}), lane.Options{Slots: 1})
	holder.Store(held.Holder)
	require.Eventually(t, func() bool { return len(r.all()) >= 190 }, patience, time.Millisecond)
	got := map[protocol.Tenant]int{}
	for _, c := range r.all()[30:190] {
		got[c.Tenant]++
	}
	require.InDelta(t, 120, got["big"], 12, got)
}

// busyWithALaneInLine starts a worker whose slot runs a call of a tenant until end is closed, and
// makes another lane wait in line for that slot.
func (f *fleet) busyWithALaneInLine(p *lane.Publisher, lease time.Duration) (busy *holder, long, waits *protocol.Call, end chan struct{}) {
	f.t.Helper()
	end = make(chan struct{})
	busy = f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		select {
		case <-end:
		case <-ctx.Done():
		}
		return succeed(run)
	}), lane.Options{Slots: 1, AckWait: lease})
	long = newCall("s", exclusive("lane-big/0"))
	long.Tenant = "big"
	put(f.t, p, long)
	require.Eventually(f.t, func() bool { _, used, _ := busy.Load(); return used == 1 }, patience, time.Millisecond)
	waits = newCall("t", exclusive("account/waits"))
	put(f.t, p, waits)
	require.Eventually(f.t, func() bool { return busy.InLine(wire.DefaultTenant) }, patience, time.Millisecond)
	return busy, long, waits, end
}

// Law: a lane that waits in line at a busy worker, because tenants share its slots, is run by
// another worker that has a slot.
func TestTenant_ABusyWorkerKeepsNoLaneFromAnIdleOne(t *testing.T) {
	t.Parallel()
	const lease = 10 * patience // a worker may keep the lane for a third of it
	f := newFleet(t)
	p := f.publisher()
	_, long, waits, end := f.busyWithALaneInLine(p, lease)
	r := &ranBy{}
	f.hold(hostFunc(r.Execute), lane.Options{Slots: 1, AckWait: lease})
	f.await(p, waits)
	require.Len(t, r.all(), 1)
	close(end)
	f.await(p, long)
	f.requireQuiet()
}

// Law: a lane that only a busy worker can run keeps its position in line there: workers that hand
// it back get it more and more seldom.
func TestTenant_ALaneThatOthersHandBackStaysInLine(t *testing.T) {
	t.Parallel()
	const lease = 10 * patience
	f := newFleet(t)
	p := f.publisher()
	busy, long, waits, end := f.busyWithALaneInLine(p, lease)
	unfit := hostFunc(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	var handedBack atomic.Int64
	unfit.canRun = func(n lane.Requirements) bool {
		if n.Kind != "" {
			handedBack.Add(1)
		}
		return n.Kind == ""
	}
	f.hold(unfit, lane.Options{Slots: 1, AckWait: lease})
	began := time.Now()
	require.Eventually(t, func() bool {
		if !busy.InLine(wire.DefaultTenant) {
			began = time.Now()
		}
		return handedBack.Load() > 0 && time.Since(began) > 3*time.Second // a worker offers it for the first time after one
	}, patience, 10*time.Millisecond)
	close(end)
	f.await(p, waits)
	f.await(p, long)
	f.requireQuiet()
}
