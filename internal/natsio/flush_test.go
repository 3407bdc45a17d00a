package natsio_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// Nothing is kept for a connection that is lost, so nobody waits for it to come back: not for an
// hour.
func TestFlush_LostConnection(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	nc, link := f.ConnectVia()
	require.NoError(t, natsio.Flush(t.Context(), nc, time.Hour))
	lost := nc.StatusChanged(nats.RECONNECTING)
	link.Cut()
	<-lost
	require.ErrorIs(t, natsio.Flush(t.Context(), nc, time.Hour), nats.ErrDisconnected)
	nc.Close()
	require.ErrorIs(t, natsio.Flush(t.Context(), nc, time.Hour), nats.ErrDisconnected)
}
