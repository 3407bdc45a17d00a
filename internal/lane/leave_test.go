package lane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A lane that is handed back keeps its ready message, also when that is a call which has its result by now. Its next holder must
// not be told that nothing of it is settled.
func TestHandback_HidesNoSettledReadyMessage(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	s, err := store.Open(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	for name, test := range map[string]struct{ carries, pinned, marked bool }{
		"no call":        {marked: true},
		"not settled":    {carries: true, pinned: true, marked: true},
		"settled by now": {carries: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &held{
				holder: &Holder{options: Options{}.withDefaults(), store: s}, carries: test.carries, pinned: test.pinned,
				lane: "account/a", hash: protocol.Lane(name).Hash(), ready: 1, delivered: 1, ack: "ack",
				ctx: t.Context(), schedule: newSchedule(), lease: lease{length: time.Hour, since: time.Now()},
			}
			require.True(t, l.handback())
			mark, err := s.Next(t.Context(), protocol.DefaultFleet.MailboxFilter(protocol.DefaultPool, l.hash), 0)
			require.NoError(t, err)
			require.Equal(t, test.marked, mark != nil)
		})
	}
}

// Servers take what ends a lease from whoever had it before. What is sent near its end, and is late, would end the next one's.
func TestLeave_NothingIsSentNearTheEndOfALease(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	s, err := store.Open(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	t.Cleanup(s.Replies.Close)
	for name, test := range map[string]struct {
		leave func(*held) bool
		sent  string
	}{
		"released":    {(*held).release, ""}, // an acknowledgement
		"handed back": {(*held).handback, jetstreamNak},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ack := f.NC.NewInbox()
			sent, err := f.NC.SubscribeSync(ack)
			require.NoError(t, err)
			const length = time.Hour
			l := &held{
				holder: &Holder{options: Options{}.withDefaults(), store: s, recent: map[protocol.LaneHash]time.Time{}},
				ack:    ack, ctx: t.Context(), starting: t.Context(), schedule: newSchedule(), gone: make(chan struct{}), untold: func() {},
				hash: protocol.Lane(name).Hash(), lease: lease{length: length, since: time.Now().Add(-length * 7 / 10)},
			}
			l.mail = newMailbox(s, protocol.DefaultFleet, protocol.DefaultPool, l.hash)
			l.nak()
			left := make(chan bool)
			go func() { left <- test.leave(l) }()
			pause.For(t.Context(), 2*faultPause)
			require.NoError(t, f.NC.Flush())
			pending, _, err := sent.Pending()
			require.NoError(t, err)
			require.Zero(t, pending)

			l.lease.confirm(time.Now(), "")
			last, err := sent.NextMsgWithContext(t.Context())
			require.NoError(t, err)
			require.Equal(t, test.sent, string(last.Data))
			if last.Reply != "" {
				require.NoError(t, last.Respond(nil))
			}
			require.True(t, <-left)
		})
	}
}
