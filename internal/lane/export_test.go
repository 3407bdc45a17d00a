package lane

import (
	"context"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Wake publishes the ready message of a call's lane, as a publisher does behind each append, and
// waits until it is stored or refused.
func (p *Publisher) Wake(ctx context.Context, call *protocol.Call) error {
	msg := nats.NewMsg(wire.ReadySubject(p.store.Fleet, call.Pool, wire.HashLane(call.Lane())))
	msg.Header.Set(wire.HeaderLane, wire.LaneHeader(call.Lane()))
	_, _, err := p.store.Publish(ctx, msg)
	return err
}

// MakesReady is Wake that reports whether the ready message was missing.
func (p *Publisher) MakesReady(ctx context.Context, call *protocol.Call) (missing bool, err error) {
	return p.store.MakeReady(ctx, call.Pool, call.Lane())
}

// Drains reports whether the holder drains, and starts nothing more in any lane.
func (h *Holder) Drains() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.held {
		if l.starting.Err() == nil {
			return false
		}
	}
	return h.draining
}

// InLine reports whether each of these tenants waits for a slot of the holder.
func (h *Holder) InLine(tenants ...protocol.Tenant) bool {
	h.slots.mu.Lock()
	defer h.slots.mu.Unlock()
	return !slices.ContainsFunc(tenants, func(tenant protocol.Tenant) bool {
		return !slices.ContainsFunc(h.slots.waiting, func(w *slotWaiter) bool { return w.tenant == tenant })
	})
}

// HasLimit reports whether the rules that the holder has read limit a lane.
func (h *Holder) HasLimit(lane protocol.Lane) bool { return h.limits.Rules().Of(lane) != nil }

// Parked is how many of the held lanes wait without a goroutine.
func (h *Holder) Parked() (n int) {
	for _, l := range h.lanes() {
		l.parking.mu.Lock()
		if l.parking.parked {
			n++
		}
		l.parking.mu.Unlock()
	}
	return n
}

// WeightOf is the weight of a tenant by the rules that the holder has read.
func (h *Holder) WeightOf(tenant protocol.Tenant) int { return h.limits.Rules().Weight(tenant) }
