package lane

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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

// mute is a stream whose leader does not say how it is, after a while.
type mute struct {
	jetstream.Stream
	answers chan struct{}
}

var errMute = errors.New("no answer")

func (m *mute) Info(context.Context, ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	<-m.answers
	return nil, errMute
}

// A server that is slow to answer something else is no reason for a lease to end.
func TestKeepLeases_WaitsForNoAnswer(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	s, err := store.Open(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	h, err := NewHolder(t.Context(), f.Connect(), nil, Options{})
	require.NoError(t, err)
	answers := make(chan struct{}, 1)
	answers <- struct{}{} // to the first question
	s.Calls = &mute{Stream: s.Calls, answers: answers}
	h.alarms = newAlarms(s, protocol.DefaultPool)
	ack := f.NC.NewInbox()
	renewals, err := f.NC.SubscribeSync(ack)
	require.NoError(t, err)
	require.NoError(t, f.NC.Flush())
	h.held["a"] = &held{holder: h, hash: "a", ack: ack, ctx: t.Context(), stop: func() {}, lease: lease{length: h.Lease(), since: time.Now()}}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, t.Context()) }()
	for range 2 { // nobody answers the first one
		_, err = renewals.NextMsg(h.Lease())
		require.NoError(t, err)
	}
	stop()
	close(answers)
	require.NoError(t, <-done)
}
