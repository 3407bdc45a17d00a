package worker

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestPlace_AFleetThatDoesNotAnswerIsAskedAgain(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	nc, link := f.ConnectVia()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	places, err := js.KeyValue(t.Context(), f.Name.PlacesBucket())
	require.NoError(t, err)
	s, err := newSandboxes(Options{Data: t.TempDir()}, places)
	require.NoError(t, err)
	link.Cut()
	require.Eventually(t, func() bool { return !nc.IsConnected() }, 20*time.Second, time.Millisecond)
	ended, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.Error(t, s.claimPlace(ended, "sandbox/one", t.TempDir()))

	claimed := make(chan error, 1)
	go func() { claimed <- s.claimPlace(t.Context(), "sandbox/one", t.TempDir()) }()
	link.Mend()
	require.NoError(t, <-claimed)
	place, err := places.Get(t.Context(), string(protocol.Lane("sandbox/one").Hash()))
	require.NoError(t, err)
	require.Equal(t, s.dataID, string(place.Value()))

	nc.Close()
	require.ErrorIs(t, s.claimPlace(t.Context(), "sandbox/two", t.TempDir()), nats.ErrConnectionClosed)
}
