package lane

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A ready message is left out only while an earlier call has no result, and no longer than owedFor
// without one.
func TestUsedLanes_AReadyMessageIsOwed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		made := 0
		u, a := readyCache{makeReady: func(poolLane) { made++ }}, poolLane{lane: "a"}
		requireMade := func(n int, why string) {
			synctest.Wait()
			u.mu.Lock()
			defer u.mu.Unlock()
			require.Equal(t, n, made, why)
		}
		require.False(t, u.use(a))
		u.onAppended(a, true)
		u.onAccepted(a)
		requireMade(1, "no earlier call")
		time.Sleep(time.Hour)
		require.True(t, u.use(a), "its call has no result")
		u.onAppended(a, true)
		u.onAccepted(a)
		requireMade(1, "it waits for a result")
		for range 10 { // calls end all the time
			time.Sleep(deferReadyFor / 2)
			u.onAppended(a, true)
			u.onAccepted(a)
			u.onEnded(a, wire.Seen{})
		}
		requireMade(1, "calls end")
		u.onAppended(a, false)
		requireMade(2, "nobody would say when it ends")
		time.Sleep(2 * deferReadyFor)
		requireMade(3, "none ends")
		u.onAppended(a, true)
		u.onAccepted(a)
		for range 3 {
			u.onEnded(a, wire.Seen{})
		}
		time.Sleep(time.Hour)
		requireMade(3, "all have ended")
		require.Empty(t, u.deferred)
		require.False(t, u.use(a))
		require.False(t, u.use(poolLane{lane: "b"}))
	})
}

// A lane whose last calls were appended one after the other is kept, unless its ready message had
// to be published after all.
func TestUsedLanes_ALaneThatIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		made := 0
		u, a := readyCache{makeReady: func(poolLane) { made++ }}, poolLane{lane: "a"}
		one := func(takes time.Duration) {
			u.use(a)
			u.onAppended(a, true)
			u.onAccepted(a)
			time.Sleep(takes)
			u.onEnded(a, wire.Seen{})
			synctest.Wait()
		}
		for range 3 * retainedAfter {
			one(deferReadyFor / 2)
		}
		require.Equal(t, retainedAfter+1, made, "it is kept")
		one(2 * deferReadyFor)
		require.Equal(t, retainedAfter+2, made, "it did not end soon")
		one(deferReadyFor / 2)
		require.Equal(t, retainedAfter+3, made)
		time.Sleep(retainTime)
		for range 2 * retainedAfter {
			one(deferReadyFor / 2)
		}
		require.Equal(t, 2*retainedAfter+4, made, "it was not used for a while")
		require.Empty(t, u.deferred)
	})
}

func TestUsedLanes_AreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := readyCache{makeReady: func(poolLane) {}}
		lane := func(i int) poolLane { return poolLane{lane: protocol.Lane(rune(i))} }
		for i := range 4 * maxUsed {
			u.use(lane(i))
			if i%8 == 0 {
				u.onAccepted(lane(i))
			}
			if i%64 == 0 { // each wait of the simulated time takes long itself
				time.Sleep(retainTime)
			}
		}
		require.LessOrEqual(t, len(u.lanes), 2*maxUsed)
		require.True(t, u.use(lane(0)), "its call is open")
	})
}

// A holder that forgets calls says up to which sequence.
func TestSettledCalls_SayWhatTheyForget(t *testing.T) {
	t.Parallel()
	var s settledCalls
	for n := range uint64(3*maxSettled + 1) {
		id := func(n uint64) protocol.CallID { return protocol.CallID(strconv.FormatUint(n, 10)) }
		s.add(id(n), n^1) // not in the order of their sequences
		for _, known := range []uint64{0, n / 2, n} {
			require.True(t, s.has(id(known)) || known^1 <= s.forgotten, "%d after %d: all to %d may be forgotten", known, n, s.forgotten)
		}
	}
	require.Equal(t, uint64(2*maxSettled-1), s.forgotten)
	require.False(t, s.has("0"))
}
