package lane

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A pause mark whose telling was lost, as may happen between several servers, is found
// when somebody asks about the lane, and when the window has been full for a while.
func TestReadMarks_FindsAMarkThatWasNotTold(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(t.Context(), embedded.Options{Data: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	nc, err := natsio.Connect(t.Context(), "", natsio.ConnectOptions{Options: server.Options()})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
	s, err := store.Open(t.Context(), nc, protocol.DefaultFleet)
	require.NoError(t, err)
	l := &held{
		holder: &Holder{options: Options{}.withDefaults(), store: s},
		lane:   "account/a", hash: protocol.Lane("account/a").Hash(), ctx: t.Context(), schedule: core.NewSchedule(),
	}
	l.mail = newMailbox(s, protocol.DefaultFleet, protocol.DefaultPool, l.hash)
	require.True(t, l.mail.listen())
	t.Cleanup(l.mail.close)
	mark, _, err := s.Publish(t.Context(), nats.NewMsg(protocol.DefaultFleet.PauseSubject(protocol.DefaultPool, l.hash)))
	require.NoError(t, err)

	require.NoError(t, l.readMarks())
	require.False(t, l.oversight.paused.Load(), "nothing says that it is worth a read")
	l.oversight.asked.Store(true)
	require.NoError(t, l.readMarks())
	require.True(t, l.oversight.paused.Load())

	l.oversight.paused.Store(false)
	l.oversight.read, l.mail.listed = time.Now(), true
	l.bytes = windowBytes
	require.NoError(t, l.readMarks())
	require.False(t, l.oversight.paused.Load(), "it was read a moment ago")
	l.oversight.read = time.Now().Add(-lookPeriod)
	require.NoError(t, l.readMarks())
	require.True(t, l.oversight.paused.Load())

	require.NoError(t, s.Remove(t.Context(), mark))
	require.NoError(t, l.readMarks())
	require.False(t, l.oversight.paused.Load(), "a paused lane reads it every time")
}

// A request to cancel that was stored beyond what the holder has in hand, and before it listened,
// was not told.
func TestReadMarks_ACancelBeforeTheHolderListens(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	s, err := store.Open(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	l := &held{
		holder: &Holder{options: Options{}.withDefaults(), store: s},
		lane:   "account/a", hash: protocol.Lane("account/a").Hash(), ctx: t.Context(), schedule: core.NewSchedule(),
	}
	l.mail = newMailbox(s, protocol.DefaultFleet, protocol.DefaultPool, l.hash)
	t.Cleanup(l.mail.close)
	_, _, err = s.Publish(t.Context(), nats.NewMsg(protocol.DefaultFleet.CancelSubject(protocol.DefaultPool, l.hash, "c")))
	require.NoError(t, err)
	require.True(t, l.mail.listen())
	l.bytes = windowBytes
	require.NoError(t, l.readMarks())
	require.Contains(t, l.oversight.early, protocol.CallID("c"))
}
