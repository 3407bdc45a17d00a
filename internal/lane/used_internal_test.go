package lane

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A ready message is left out only while an earlier call has no result, and no longer than owedFor
// without one.
func TestUsedLanes_AReadyMessageIsOwed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		made := map[protocol.Lane]int{}
		u := usedLanes{makeReady: func(l poolLane) { made[l.lane]++ }}
		a, b := poolLane{lane: "a"}, poolLane{lane: "b"}
		require.False(t, u.use(a))
		u.appended(a, true)
		u.begun(a)
		require.Equal(t, 1, made["a"], "no earlier call")
		time.Sleep(time.Hour)
		require.True(t, u.use(a), "its call has no result")
		u.appended(a, true)
		u.begun(a)
		require.Equal(t, 1, made["a"])
		for range 10 { // calls end all the time
			time.Sleep(owedFor / 2)
			u.appended(a, true)
			u.begun(a)
			u.ended(a)
		}
		synctest.Wait()
		require.Equal(t, 1, made["a"])
		u.appended(a, false)
		require.Equal(t, 2, made["a"], "nobody would say when it ends")
		time.Sleep(2 * owedFor)
		synctest.Wait()
		require.Equal(t, 3, made["a"], "none ends")
		u.appended(a, true)
		u.begun(a)
		for range 3 {
			u.ended(a)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 3, made["a"], "all have ended")
		require.Empty(t, u.owing)
		require.False(t, u.use(a))
		require.False(t, u.use(b))
	})
}

// A lane whose last calls were appended one after the other is kept, unless its ready message had
// to be published after all.
func TestUsedLanes_ALaneThatIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		made := 0
		u, a := usedLanes{makeReady: func(poolLane) { made++ }}, poolLane{lane: "a"}
		one := func(takes time.Duration) {
			u.use(a)
			u.appended(a, true)
			u.begun(a)
			time.Sleep(takes)
			u.ended(a)
			synctest.Wait()
		}
		for range 3 * keptAfter {
			one(owedFor / 2)
		}
		require.Equal(t, keptAfter+1, made)
		one(2 * owedFor)
		require.Equal(t, keptAfter+2, made, "it did not end soon")
		one(owedFor / 2)
		require.Equal(t, keptAfter+3, made)
		time.Sleep(keepTime)
		for range 2 * keptAfter {
			one(owedFor / 2)
		}
		require.Equal(t, 2*keptAfter+4, made, "it was not used for a while")
		require.Empty(t, u.owing)
	})
}

func TestUsedLanes_AreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := usedLanes{makeReady: func(poolLane) {}}
		lane := func(i int) poolLane { return poolLane{lane: protocol.Lane(rune(i))} }
		for i := range 4 * maxUsed {
			u.use(lane(i))
			if i%8 == 0 {
				u.begun(lane(i))
			}
			time.Sleep(keepTime)
		}
		require.LessOrEqual(t, len(u.lanes), 2*maxUsed)
		require.True(t, u.use(lane(0)), "its call is open")
	})
}
