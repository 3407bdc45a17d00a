package core_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// afterLane is a lane of a random program: calls of several streams, which wait for calls of any.
type afterLane struct {
	*core.Schedule

	queue []*core.Entry // not read yet
}

// TestAfter_RandomProgramsEnd runs random programs of calls that wait for calls, on a worker with
// one slot and a small window. No call starts before what it waits for ended ok, nor out of its
// stream's order; and every call ends, although others wait for calls that fail, never come or wait
// in a cycle.
func TestAfter_RandomProgramsEnd(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		runAfterProgram(t, seed)
	}
}

const afterWindow = 3

func runAfterProgram(t *testing.T, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	lanes := []*afterLane{{Schedule: core.NewSchedule()}, {Schedule: core.NewSchedule()}}
	status := map[protocol.CallRef]protocol.Status{}
	ref := func(i int) protocol.CallRef {
		return protocol.CallRef{SessionID: "s", ID: protocol.CallID(fmt.Sprint(i))}
	}
	const calls = 12
	sound := seed%2 == 0 // nothing fails, and nothing waits for what waits for it
	streams, ranks := [calls]int{}, r.Perm(calls)
	for i := range calls {
		streams[i] = r.IntN(2 * len(lanes))
	}
	for i := range calls { // the order of a stream is one in which its calls can end
		for j := range i {
			if streams[i] == streams[j] && ranks[i] < ranks[j] {
				ranks[i], ranks[j] = ranks[j], ranks[i]
			}
		}
	}
	for i := range calls {
		at := streams[i] % len(lanes)
		c := &protocol.Call{
			ID: ref(i).ID, SessionID: "s", QueueTimeout: 1000,
			Resources: []protocol.Use{{Key: protocol.ResourceKey(fmt.Sprintf("lane/%d/%d", at, streams[i])), Access: protocol.Exclusive}},
		}
		for range r.IntN(3) {
			switch other := r.IntN(calls + 1); { // also a later one, and one that there is not
			case other == i, sound && (other == calls || ranks[other] > ranks[i]):
			default:
				c.After = append(c.After, ref(other))
			}
		}
		lanes[at].queue = append(lanes[at].queue, &core.Entry{Seq: uint64(i + 1), Call: c})
	}
	end := func(l *afterLane, e *core.Entry, s protocol.Status) {
		l.Finish(e)
		status[ref0(e)] = s
		for _, other := range lanes {
			other.Ended(ref0(e), s)
		}
	}
	for age, idle := time.Duration(0), 0; len(status) < calls; idle++ {
		require.Less(t, idle, 100, "seed %d: nothing happens", seed)
		for _, l := range lanes {
			for len(l.queue) > 0 && (l.Len() < afterWindow || l.Stuck()) {
				e := l.queue[0]
				l.queue = l.queue[1:]
				require.True(t, l.Add(e))
				for _, after := range e.Call.After { // as a look for what ended before
					if s, has := status[after]; has {
						l.Ended(after, s)
					}
				}
				idle = 0
			}
			for _, e := range append([]*core.Entry(nil), l.Entries()...) {
				if refusal := e.Refuse(age); refusal != nil && l.MayRefuse(e) {
					waits := len(e.Missing) > 0 || e.Unmet != nil // else it is behind one that waits
					require.Equal(t, waits, refusal.Error.Code == protocol.CodeAfterUnmet, "seed %d: %v", seed, refusal.Error)
					end(l, e, refusal.Status)
					idle = 0
				}
			}
			can := l.Startable()
			if len(can) == 0 {
				continue
			}
			e := can[r.IntN(len(can))]
			if refusal := e.Refuse(age); refusal != nil { // as [core.Entry.Begin] asks
				end(l, e, refusal.Status)
				idle = 0
				continue
			}
			for _, after := range e.Call.After {
				require.Equal(t, protocol.StatusOK, status[after], "seed %d: call %s starts before %s", seed, e.Call.ID, after)
			}
			for _, earlier := range l.Entries() {
				require.False(t, earlier.Seq < e.Seq && earlier.Call.ConflictsWith(e.Call), "seed %d: out of order", seed)
			}
			s := protocol.StatusOK
			if !sound && r.IntN(4) == 0 {
				s = protocol.StatusFailed
			}
			end(l, e, s)
			idle = 0
		}
		if idle > 0 { // only time helps
			require.False(t, sound, "seed %d: calls wait for ever", seed)
			require.Zero(t, age, "seed %d: the time of all calls is over", seed)
			age = time.Second
		}
	}
}

func ref0(e *core.Entry) protocol.CallRef {
	return protocol.CallRef{SessionID: e.Call.SessionID, ID: e.Call.ID}
}

// A call that another holder may have started is not reported as without effect.
func TestAfter_NeverSaysNoEffectOfWhatMayHaveRun(t *testing.T) {
	t.Parallel()
	e := &core.Entry{Call: &protocol.Call{After: []protocol.CallRef{{SessionID: "s", ID: "gone"}}}}
	e.MayHaveStarted = true
	s := core.NewSchedule()
	require.True(t, s.Add(e))
	require.Nil(t, e.Refuse(24*time.Hour-1))
	age, bounded := e.DueAfter()
	require.True(t, bounded)
	require.Equal(t, 24*time.Hour, age)
	require.Equal(t, protocol.StatusOutcomeUnknown, e.Refuse(age).Status)
	e.MayHaveStarted = false
	require.Equal(t, protocol.CodeAfterUnmet, e.Refuse(age).Error.Code)
}

// Law: tenants that wait get slots in proportion to their weights, within a tenth over a thousand
// grants, and none of them starves.
func TestFair_SharesAreTheWeights(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		weights := map[string]float64{}
		total := 0.0
		for _, name := range []string{"a", "b", "c", "d"}[:2+rng.IntN(3)] {
			weights[name] = float64(1 + rng.IntN(5))
			total += weights[name]
		}
		f := core.Fair[string]{Weight: func(t string) float64 { return weights[t] }}
		for range rng.IntN(500) { // a tenant alone gains no credit and loses none
			f.Grant("a")
		}
		got, last := map[string]int{}, map[string]int{}
		for n := range 1000 {
			first := ""
			for _, name := range sortedKeys(weights) {
				if first == "" || f.Before(name, first) {
					first = name
				}
			}
			f.Grant(first)
			got[first]++
			require.LessOrEqual(t, n-last[first], int(2*total)+2, "seed %d: %s starves", seed, first)
			last[first] = n
		}
		for name, weight := range weights {
			want := 1000 * weight / total
			require.InDelta(t, want, got[name], want/10+1, "seed %d: %s of %v", seed, name, weights)
		}
	}
}

// A call waits for what its lane waits for, from when no earlier call holds it up until it starts.
func TestWaitClock(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	const ms = time.Millisecond
	var c core.WaitClock
	first, second := &core.Entry{}, &core.Entry{}
	c.Start(first, at(0))
	require.Zero(t, first.Waited)
	c.Set(core.WaitsForSlot, at(10))
	c.Free(second, at(15))
	c.Set(core.WaitsForSlot, at(20))
	c.Set(core.WaitsForRate, at(30))
	c.Free(second, at(35)) // it was free before
	c.Set(core.WaitsForNothing, at(50))
	c.Start(second, at(60))
	require.Equal(t, core.Waited{core.WaitsForSlot: 15 * ms, core.WaitsForRate: 20 * ms}, second.Waited)
	require.Equal(t, at(15), second.FreeSince)
}
