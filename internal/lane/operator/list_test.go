package operator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestLook_TheOldestIsFirst also when this machine takes all calls for ones of the future, because
// it measured the server's clock while it was slow, so that none has an age.
func TestLook_TheOldestIsFirst(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	o, err := New(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	p, err := lane.NewPublisher(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	want := []protocol.Lane{"account/d", "account/c", "account/b", "account/a"}
	for _, name := range want[:3] {
		call := &protocol.Call{
			ID: wire.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool,
			Resources: []protocol.Use{{Key: protocol.ResourceKey(name), Access: protocol.Exclusive}},
			Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: wire.Noop{},
		}
		require.NoError(t, p.Enqueue(t.Context(), []lane.Outgoing{{Call: call}})[0])
	}
	_, err = o.Pause(t.Context(), protocol.DefaultPool, want[3]) // it has no call
	require.NoError(t, err)

	found, _, err := o.survey(t.Context(), protocol.DefaultPool, "*")
	require.NoError(t, err)
	lanes, err := o.readStates(t.Context(), protocol.DefaultPool, found, time.Now().Add(-time.Hour))
	require.NoError(t, err)
	var names []protocol.Lane
	for _, status := range lanes {
		require.Zero(t, status.OldestMS)
		names = append(names, status.Lane)
	}
	require.Equal(t, want, names)
}
