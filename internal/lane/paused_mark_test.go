package lane

import (
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// fill gives a lane as many bytes in hand as it may have.
func (l *heldLane) fill() {
	l.schedule.Add(&core.Entry{Call: &protocol.Call{ID: "full"}, Size: windowBytes})
}

// A pause mark whose telling was lost, as may happen between several servers, is found
// when somebody asks about the lane, and when the window has been full for a while.
func TestReadMarks_FindsAMarkThatWasNotTold(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	l := newLaneOf(t, s)
	require.True(t, l.mail.listen())
	mark, _, err := s.Publish(t.Context(), nats.NewMsg(wire.PauseSubject(s.Fleet, protocol.DefaultPool, l.hash)))
	require.NoError(t, err)

	require.NoError(t, l.readControl())
	require.False(t, l.control.paused.Load(), "nothing says that it is worth a read")
	l.control.queried.Store(true)
	require.NoError(t, l.readControl())
	require.True(t, l.control.paused.Load())

	l.control.paused.Store(false)
	l.control.readAt, l.mail.listed = time.Now(), true
	l.fill()
	require.NoError(t, l.readControl())
	require.False(t, l.control.paused.Load(), "it was read a moment ago")
	l.control.readAt = time.Now().Add(-readPeriod)
	require.NoError(t, l.readControl())
	require.True(t, l.control.paused.Load())

	require.NoError(t, s.Remove(t.Context(), mark))
	require.NoError(t, l.readControl())
	require.False(t, l.control.paused.Load(), "a paused lane reads it every time")
}

// A request to cancel that was stored beyond what the holder has in hand, and before it listened,
// was not told.
func TestReadMarks_ACancelBeforeTheHolderListens(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	l := newLaneOf(t, s)
	_, _, err := s.Publish(t.Context(), nats.NewMsg(wire.CancelSubject(s.Fleet, protocol.DefaultPool, l.hash, "c")))
	require.NoError(t, err)
	require.True(t, l.mail.listen())
	l.fill()
	require.NoError(t, l.readControl())
	require.Contains(t, l.control.cancelledUnread, protocol.CallID("c"))
}

// A holder of many lanes reads ten mailboxes a second without a hint, so lanes that wait cost
// nothing each; and it lists the pause marks of all of them together.
func TestPause_LanesThatWaitAreNotReadOneByOne(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	l := newLaneOf(t, s)
	h := l.holder
	h.held = map[wire.LaneHash]*heldLane{l.hash: l}
	require.Equal(t, readPeriod, h.readPeriod())
	mark, _, err := s.Publish(t.Context(), nats.NewMsg(wire.PauseSubject(s.Fleet, protocol.DefaultPool, l.hash)))
	require.NoError(t, err)
	h.checkPauses(t.Context())
	require.True(t, l.control.queried.Swap(false), "the operator was lost before it asked the holder")
	l.control.paused.Store(true)
	h.checkPauses(t.Context())
	require.False(t, l.control.queried.Load(), "it knows the mark")
	require.NoError(t, s.Remove(t.Context(), mark))
	h.checkPauses(t.Context())
	require.True(t, l.control.queried.Load())

	for i := range 4999 {
		h.held[wire.LaneHash(strconv.Itoa(i))] = l
	}
	require.Equal(t, 500*time.Second, h.readPeriod())
}
