package lane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
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
