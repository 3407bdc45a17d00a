package lane_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func (f *fleet) limits() *limits.Store {
	f.t.Helper()
	store, err := limits.Open(f.t.Context(), f.js, factFleet)
	require.NoError(f.t, err)
	return store
}

func (f *fleet) setLimit(rule limits.Rule) {
	f.t.Helper()
	require.NoError(f.t, f.limits().Set(f.t.Context(), rule))
}

func perSecond(n int) string { return fmt.Sprintf("%d/s", n) }

// starts records between which moments the limiter counted the start of each call of a lane, on any
// holder: it counts between Admit and Execute.
type starts struct {
	lane protocol.Lane

	mu              sync.Mutex
	admitted, begun []time.Time
}

// host is a host whose starts are recorded.
func (s *starts) host() testHost {
	note := func(at *[]time.Time, run *lane.Run) {
		if run.Call.Lane() == s.lane {
			s.mu.Lock()
			defer s.mu.Unlock()
			*at = append(*at, time.Now())
		}
	}
	host := hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		note(&s.begun, run)
		return succeed(run)
	})
	host.onAdmit = func(run *lane.Run) { note(&s.admitted, run) }
	return host
}

func (s *starts) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.begun)
}

// requireRate checks every period against burst + rate * its length, and returns the longest one. A
// slow machine makes the periods longer, never shorter.
func (s *starts) requireRate(t *testing.T, rate float64, burst int) time.Duration {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.admitted, time.Time.Compare)
	slices.SortFunc(s.begun, time.Time.Compare)
	const slack = 1.0 // a holder that follows another one knows the server's clock to some 100 ms
	for i := range s.admitted {
		for j := i; j < len(s.begun); j++ {
			w := s.begun[j].Sub(s.admitted[i])
			require.LessOrEqual(t, float64(j-i+1), float64(burst)+rate*w.Seconds()+slack, "starts %d to %d in %s", i, j, w)
		}
	}
	return s.begun[len(s.begun)-1].Sub(s.admitted[0])
}

// sharedCalls are calls of one lane that do not conflict.
func sharedCalls(n int, lane string) []*protocol.Call {
	calls := make([]*protocol.Call, n)
	for i := range calls {
		calls[i] = newCall("s", shared(lane))
	}
	return calls
}

// Law: no more calls of a lane run at once than its limit allows, and the limit holds for each lane
// by itself.
func TestLimit_NeverMoreAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Lane: "account/*", Concurrent: 3})
	var running, most [3]atomic.Int32
	var reached [3]chan struct{} // calls end when as many run at once as may, and without a rule one more
	for i := range reached {
		reached[i] = make(chan struct{})
	}
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		i := run.Call.Turn
		now := running[i].Add(1)
		for before := most[i].Load(); now > before; before = most[i].Load() {
			if most[i].CompareAndSwap(before, now) && (now == 3 && i < 2 || now == 4) {
				close(reached[i])
			}
		}
		select {
		case <-reached[i]:
		case <-ctx.Done():
		}
		time.Sleep(2 * time.Millisecond)
		running[i].Add(-1)
		return succeed(run)
	}), lane.Options{Slots: 32})
	p := f.publisher()
	var all []*protocol.Call
	for i, name := range []string{"account/a", "account/b", "other/c"} {
		calls := sharedCalls(60, name)
		for _, c := range calls {
			c.Turn = i
		}
		all = append(all, calls...)
	}
	put(t, p, all...)
	for _, c := range all {
		require.Equal(t, protocol.StatusOK, f.await(p, c).Status)
	}
	require.EqualValues(t, 3, most[0].Load(), "account/a")
	require.EqualValues(t, 3, most[1].Load(), "account/b")
	require.Greater(t, most[2].Load(), int32(3), "other/c has no rule")
}

// Law: no period has more starts than the rate and the burst allow, and the rate is reached. A slot
// is not used while the rate is waited for.
func TestLimit_Rate(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Lane: "account/*", Rate: perSecond(50), Burst: 5})
	seen := starts{lane: "account/a"}
	f.hold(seen.host(), lane.Options{Slots: 1})
	p := f.publisher()
	calls, other := sharedCalls(60, "account/a"), newCall("s", exclusive("other/x"))
	put(t, p, calls...)
	put(t, p, other)
	f.await(p, other)
	require.Less(t, seen.len(), len(calls), "the only slot is free for others")
	for _, c := range calls {
		f.await(p, c)
	}
	require.Less(t, seen.requireRate(t, 50, 5), time.Minute)
}

// Law: what was spent of a rate is known to the next holder, also when the lane was idle and
// released in between, and when its holder was stopped.
func TestLimit_TheRateOutlivesItsHolders(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Lane: "account/*", Rate: "60/min", Burst: 3})
	seen := starts{lane: "account/a"}
	h := f.hold(seen.host(), lane.Options{Slots: 4})
	p := f.publisher()
	for range 3 {
		c := newCall("s", exclusive("account/a"))
		put(t, p, c)
		f.await(p, c)
		f.requireQuiet()
	}
	h.stop()
	f.hold(seen.host(), lane.Options{Slots: 4})
	calls := sharedCalls(2, "account/a")
	put(t, p, calls...)
	for _, c := range calls {
		f.await(p, c)
	}
	seen.requireRate(t, 1, 3)
}

// Law: a lost holder never makes a lane faster: its successor begins with an empty bucket.
func TestLimit_ALostHolderMakesNothingFaster(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Lane: "account/*", Rate: perSecond(2), Burst: 10})
	p := f.publisher()
	first := newCall("s", exclusive("account/a"))
	f.ensurePool(briefLease)
	put(t, p, first)
	f.loseAt(briefLease)
	calls := append(sharedCalls(4, "account/a"), first)
	put(t, p, calls[:4]...) // before the claim, so that each is in the lane as long as that
	f.hold(succeeds, lane.Options{Slots: 4, AckWait: briefLease})
	sinceClaim := make([]float64, len(calls)) // by the limiter's clock
	for i, c := range calls {
		sinceClaim[i] = f.await(p, c).LaneMS
	}
	slices.Sort(sinceClaim)
	for i, ms := range sinceClaim {
		require.Greater(t, ms, 500*float64(i+1)-1, "a token is added each 500 ms: %.0f", sinceClaim)
	}
}

// Law: a change of rules is in force for lanes that are held, and a rule that is removed holds
// nothing back.
func TestLimit_ChangesApplyToHeldLanes(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Lane: "account/*", Rate: "1/h"})
	ran := make(chan protocol.CallID, 16)
	f.hold(tells(ran), lane.Options{Slots: 4})
	p := f.publisher()
	calls := sharedCalls(4, "account/a")
	put(t, p, calls...)
	<-ran
	require.Eventually(t, func() bool {
		return f.waitsFor("account/a") == "limit account/*: rate 1/h"
	}, patience, 10*time.Millisecond)
	o, err := operator.New(t.Context(), f.nc, factFleet)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the holder may be slow to answer
		view, err := o.Show(t.Context(), protocol.DefaultPool, "account/a", 0)
		return err == nil && view.WaitsFor == "limit account/*: rate 1/h"
	}, patience, 100*time.Millisecond)
	require.NoError(t, f.limits().Remove(t.Context(), limits.Rule{Lane: "account/*"}))
	for _, c := range calls {
		f.await(p, c)
	}
}

// waitsFor is what the holder of a lane says that its calls wait for.
func (f *fleet) waitsFor(l protocol.Lane) string {
	f.t.Helper()
	reply, err := f.nc.Request(wire.AskSubject(factFleet, protocol.DefaultPool, wire.HashLane(l)), nil, time.Second)
	if err != nil {
		return fmt.Sprint(err)
	}
	return answerOf(f.t, reply.Data).WaitsFor
}

func answerOf(t *testing.T, body []byte) (held lane.HeldLane) {
	t.Helper()
	var answer lane.Report
	require.NoError(t, json.Unmarshal(body, &answer))
	if len(answer.Lanes) == 1 {
		held = answer.Lanes[0]
	}
	return held
}

// A rate that is removed and set again counts what was started before.
func TestLimit_ARateThatIsSetAgainDoesNotBeginFull(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	rule := limits.Rule{Lane: "account/*", Rate: "1/h", Burst: 1}
	f.setLimit(rule)
	var holding atomic.Bool
	began, release := make(chan struct{}, 3), make(chan struct{})
	defer close(release)
	h := f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		began <- struct{}{}
		if holding.CompareAndSwap(false, true) {
			<-release
		}
		return succeed(run)
	}), lane.Options{Slots: 4})
	p := f.publisher()
	put(t, p, newCall("s", shared("account/a"))) // keeps the lane held
	<-began
	require.NoError(t, f.limits().Remove(t.Context(), rule))
	put(t, p, newCall("s", shared("account/a")))
	<-began // there is no rule
	f.setLimit(rule)
	require.Eventually(t, func() bool { return h.HasLimit("account/a") }, patience, time.Millisecond)
	waitsFor := func() string {
		list, err := f.operator().List(t.Context(), protocol.DefaultPool, 0)
		require.NoError(t, err)
		for _, l := range list.Lanes {
			return l.WaitsFor
		}
		return ""
	}
	put(t, p, newCall("s", shared("account/a")))
	require.Eventually(t, func() bool { return waitsFor() != "" }, patience, 20*time.Millisecond)
	require.Contains(t, waitsFor(), "rate")
}
