package lane

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// present is a inFlight whose clock is that of the test's bubble.
type present struct {
	*inFlight

	madeUp  chan protocol.CallID
	missing bool // what whoever makes up finds
}

func newPresent() *present {
	p := &present{madeUp: make(chan protocol.CallID, 4)}
	p.inFlight = newInFlight(func(c *protocol.Call) bool {
		p.madeUp <- c.ID
		return p.missing
	})
	return p
}

func presentCall(id protocol.CallID) *protocol.Call {
	return &protocol.Call{ID: id, Resources: []protocol.Use{{Key: "account/a", Access: protocol.Exclusive}}}
}

// run has a call begin, be accepted and end after d; it reports what is known of the lane at its
// begin.
func (p *present) run(id protocol.CallID, seq uint64, d time.Duration) (held bool) {
	call := presentCall(id)
	_, held = p.begin(poolLaneOf(call), []protocol.CallID{id})
	p.accepted(call, seq)
	time.Sleep(d) // of the bubble
	p.finished(poolLaneOf(call), id)
	return held
}

func TestInFlight_CountsOnAHolderThatHadTwoCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPresent()
		require.False(t, p.run("one", 1, time.Millisecond))
		require.False(t, p.run("two", 2, time.Millisecond), "the holder of a single call does not stay")
		require.True(t, p.run("three", 3, time.Millisecond))
		time.Sleep(heldFor)
		require.False(t, p.run("four", 4, time.Millisecond))
		require.True(t, p.run("five", 5, time.Millisecond))
		time.Sleep(frequent)
		require.False(t, p.run("six", 6, time.Millisecond))
		require.False(t, p.run("seven", 7, time.Millisecond), "after a long pause it begins anew")
	})
}

func TestInFlight_ACallThatIsAcceptedBehindOneThatJustEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPresent()
		one, two, three := presentCall("one"), presentCall("two"), presentCall("three")
		p.begin(poolLaneOf(one), []protocol.CallID{"one", "two"})
		p.accepted(one, 1)
		p.accepted(two, 3)
		busy, held := p.begin(poolLaneOf(three), []protocol.CallID{"three"})
		require.True(t, busy)
		require.False(t, held)
		p.finished(poolLaneOf(one), "one")
		require.False(t, p.accepted(three, 2), "a later call does not count, and one alone keeps no holder")
		p.finished(poolLaneOf(two), "two")
		require.True(t, p.accepted(three, 2))
		time.Sleep(heldFor)
		require.False(t, p.accepted(three, 2))
	})
}

func TestInFlight_MakesUpAfterAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPresent()
		call := presentCall("call")
		p.begin(poolLaneOf(call), []protocol.CallID{"call"})
		p.later(call)
		time.Sleep(makeUpAfter - time.Millisecond)
		synctest.Wait()
		require.Empty(t, p.madeUp)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		require.Len(t, p.madeUp, 1)
	})
}

func TestInFlight_DoubtsAHolderOnlyWhenAReadyMessageWasMissing(t *testing.T) {
	t.Parallel()
	for name, missing := range map[string]bool{"it was there": false, "it was missing": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPresent()
				p.missing = missing
				p.run("one", 1, time.Millisecond)
				p.run("two", 2, time.Millisecond)
				late := presentCall("late")
				p.begin(poolLaneOf(late), []protocol.CallID{"late"})
				p.later(late)
				time.Sleep(makeUpAfter)
				synctest.Wait()
				require.Len(t, p.madeUp, 1)
				p.finished(poolLaneOf(late), "late")
				p.run("three", 3, time.Millisecond)
				require.Equal(t, !missing, p.run("four", 4, time.Millisecond))
				time.Sleep(distrust)
				p.run("five", 5, time.Millisecond)
				p.run("six", 6, time.Millisecond)
				require.True(t, p.run("seven", 7, time.Millisecond))
			})
		})
	}
}

// The ready message of a lane is that of all calls which wait in it.
func TestInFlight_MakesUpOnceForAllCallsOfALane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPresent()
		calls := make([]*protocol.Call, 1000)
		for i := range calls {
			calls[i] = presentCall(protocol.CallID(strconv.Itoa(i)))
			p.begin(poolLaneOf(calls[i]), []protocol.CallID{calls[i].ID})
			p.accepted(calls[i], uint64(i)+1)
			p.later(calls[i])
		}
		for _, call := range calls[:10] { // the holder is at work
			time.Sleep(makeUpAfter / 2)
			p.finished(poolLaneOf(call), call.ID)
		}
		require.Empty(t, p.madeUp)
		time.Sleep(2 * makeUpAfter)
		require.Len(t, p.madeUp, 1)
		p.later(calls[100])
		for _, call := range calls {
			p.finished(poolLaneOf(call), call.ID)
		}
		time.Sleep(2 * makeUpAfter)
		require.Len(t, p.madeUp, 1, "none waits any more")
	})
}
