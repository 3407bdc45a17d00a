package lane

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"
)

// A lane goes back to the worker that has what it needs, such as its workspace, while that has a
// free slot. Any other one that is given the lane asks for it, and goes on itself when the lane is
// not claimed after a moment: nobody waits for a worker that is busy or lost.

// preferFor is how long a lane waits for the worker that is preferred.
const preferFor = 75 * time.Millisecond

// What a worker that is preferred answers.
const (
	taken   = "taken" // the lane is claimed
	refused = "refused"
)

// bound reports whether a lane is left to the only worker that can run its calls, which lives. That
// one takes the lane if it has a slot, and is asked again whenever the lane is delivered.
func (h *Holder) bound(l *held) bool {
	disk := h.options.Binds(l.ctx, l.lane)
	if disk == "" || disk == h.options.Disk || !h.peers.surelyHas(l.ctx, disk) {
		return false
	}
	body, err := json.Marshal(Need{Disk: disk})
	if err == nil {
		_ = h.store.NC.Publish(h.store.Fleet.AskSubject(h.options.Pool, l.hash), body) // without a connection it is delivered later
	}
	return true
}

// leaves reports whether the worker that is preferred has claimed a lane.
func (h *Holder) leaves(l *held) bool {
	if l.ready.ack == "" || l.ready.deliveries > 1 || !h.peers.others(h.options.Worker) {
		return false
	}
	ctx, cancel := context.WithTimeout(l.ctx, preferFor)
	defer cancel()
	preferred := h.options.Prefers(ctx, l.lane)
	if preferred == "" || preferred == h.options.Disk || !h.peers.anyHas(preferred) {
		return false
	}
	body, err := json.Marshal(Need{Disk: preferred})
	if err != nil {
		return false
	}
	answer, err := h.store.NC.RequestWithContext(ctx, h.store.Fleet.AskSubject(h.options.Pool, l.hash), body)
	return err == nil && string(answer.Data) == taken
}

// tellTaken tells the worker that asked for it that a lane is claimed.
func (h *Holder) tellTaken(r *readyMessage) {
	if r.asked != "" {
		_ = h.store.NC.Publish(r.asked, []byte(taken)) // else it finds the claim
	}
}

// refuse tells the worker that asked for it that a lane is not claimed.
func (n Need) refuse(msg *nats.Msg) {
	if n.Disk != "" {
		_ = msg.Respond([]byte(refused)) // else it waits for a moment
	}
}
