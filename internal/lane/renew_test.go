package lane

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A lane is renewed before anything of it starts, unless its ready message surely is new.
func TestAssure_RenewsWhatMayBeOld(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	s, err := store.Open(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		age     time.Duration // by the server's clock as it is now
		renewed bool
	}{
		"new":                               {},
		"old":                               {time.Hour, true},
		"under a leader with its own clock": {-time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ack := f.NC.NewInbox()
			renewals, err := f.NC.Subscribe(ack, func(msg *nats.Msg) { _ = msg.Respond(nil) })
			require.NoError(t, err)
			l := &held{
				holder: &Holder{options: Options{}.withDefaults(), store: s}, ack: ack, claimed: time.Now(), stored: time.Now().Add(-test.age),
				ctx: t.Context(), lease: lease{length: time.Hour, since: time.Now()},
			}
			require.True(t, l.assure())
			delivered, err := renewals.Delivered()
			require.NoError(t, err)
			require.Equal(t, test.renewed, delivered > 0)
		})
	}
}
