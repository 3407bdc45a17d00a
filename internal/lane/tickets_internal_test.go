package lane

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// noop is a host whose calls do nothing.
type noop struct{ DefaultHost }

func (noop) Execute(_ context.Context, run *Run) protocol.Result {
	return wire.NewResult(run.Call, protocol.StatusOK, nil)
}

func (noop) Release(protocol.Lane) {}

// A ready message that a publisher made, and that is delivered while a ticket of its lane is being
// taken, is held as soon as that has ended, and not after a lease.
func TestTickets_AReadyMessageDoesNotWaitForALease(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	h, err := NewHolder(t.Context(), f.Connect(), noop{}, Options{Fleet: f.Name, Pool: protocol.DefaultPool, Worker: "w", Slots: 4, AckWait: 10 * time.Minute, Logger: f.Logger})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, context.WithoutCancel(ctx)) }()
	p, err := NewPublisher(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	call := &protocol.Call{
		ID: "c", SessionID: "s", Tool: "noop", Pool: protocol.DefaultPool, Resources: []protocol.Use{{Key: "sandbox/s", Access: protocol.Exclusive}},
		Delivery: protocol.Idempotent, IssuedAt: time.Now().UTC(), Payload: wire.Noop{},
	}
	hash := wire.HashLane(call.Lane())
	h.tickets.beginClaim(hash)
	require.NoError(t, p.Enqueue(t.Context(), []Outgoing{{Call: call}})[0])
	require.Eventually(t, func() bool {
		h.tickets.mu.Lock()
		defer h.tickets.mu.Unlock()
		return h.tickets.claiming[hash] != nil
	}, time.Minute, time.Millisecond)
	h.tickets.endClaim(hash) // another worker was faster, or the lane was ready
	require.Eventually(t, func() bool {
		r, err := p.Result(t.Context(), "s", "c")
		return err == nil && r != nil
	}, 2*time.Minute, time.Millisecond)
	stop()
	require.NoError(t, <-done)
}
