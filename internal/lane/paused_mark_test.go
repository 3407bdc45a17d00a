package lane

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// fill gives a lane as many bytes in hand as it may have.
func (l *held) fill() {
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

	require.NoError(t, l.readMarks())
	require.False(t, l.marks.paused.Load(), "nothing says that it is worth a read")
	l.marks.asked.Store(true)
	require.NoError(t, l.readMarks())
	require.True(t, l.marks.paused.Load())

	l.marks.paused.Store(false)
	l.marks.read, l.mail.listed = time.Now(), true
	l.fill()
	require.NoError(t, l.readMarks())
	require.False(t, l.marks.paused.Load(), "it was read a moment ago")
	l.marks.read = time.Now().Add(-lookPeriod)
	require.NoError(t, l.readMarks())
	require.True(t, l.marks.paused.Load())

	require.NoError(t, s.Remove(t.Context(), mark))
	require.NoError(t, l.readMarks())
	require.False(t, l.marks.paused.Load(), "a paused lane reads it every time")
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
	require.NoError(t, l.readMarks())
	require.Contains(t, l.marks.early, protocol.CallID("c"))
}
