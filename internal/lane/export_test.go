package lane

import (
	"context"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Wake makes the lane of a call ready, as a publisher does behind each append.
func (p *Publisher) Wake(ctx context.Context, call *protocol.Call) error {
	_, err := p.store.MakeReady(ctx, call.Pool, call.Lane())
	return err
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
