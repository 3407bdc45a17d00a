package lane

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// The workers of a pool may differ in their handlers, in how much their sandboxes isolate, and in
// the models of the turns that they run. A holder that meets a call which it does not take starts
// what else may start, and hands the lane back; no start is counted. It says on core NATS what the
// call needs, and a holder that has it takes the lane at once. Nobody may have it yet: the pool's
// consumer delivers the lane again after offerPeriod, and so on.

// offerPeriod is after how long a lane is delivered again that was handed back.
const offerPeriod = time.Second

// Need is what a call needs of the worker that runs it.
type Need struct {
	// Kind is that of the payload, or of the handler that runs it, if Handler says so.
	Kind    protocol.Kind `json:"kind"`
	Handler bool          `json:"handler,omitempty"`
	// Level is the least level of the sandbox; "" is any.
	Level string `json:"level,omitempty"`
	// Model is the one that a turn names; "" is any.
	Model string `json:"model,omitempty"`
	// Disk is that of the only worker that is asked, and answers; "" asks whoever has the rest.
	Disk string `json:"disk,omitempty"`
}

// NeedOf returns what a call needs.
func NeedOf(c *protocol.Call) Need {
	n := Need{Level: c.MinLevel}
	switch p := c.Payload.(type) {
	case nil:
	case protocol.UnknownPayload:
		n.Kind, n.Handler = p.Name, true
	case protocol.DialogOpen:
		n.Kind, n.Handler = p.Tool, true
	case protocol.Stored:
		_, err := wire.ParseUserKind(string(p.Of))
		n.Kind, n.Handler, n.Model = p.Of, err == nil, p.Model
	case protocol.TurnRun:
		n.Kind, n.Model = wire.KindOf(p), p.Model
	default:
		n.Kind = wire.KindOf(p)
	}
	return n
}

// canRun reports whether a call is run here: one that cannot be read, or must not be started again,
// is answered by anybody, and a lane that has to be kept here is not handed back.
func (l *heldLane) canRun(e *core.Entry) bool {
	if _, answer := e.NextStart(); e.Invalid != nil || answer != nil {
		return true
	}
	return l.holder.host.CanRun(NeedOf(e.Call)) || l.holder.host.MustHold(l.lane)
}

// skipSettled notes a call that is not taken and has its result: as its holder left it, such as the
// one that is the ready message. Of any other it notes what this worker lacks.
func (l *heldLane) skipSettled(e *core.Entry) bool {
	known, err := l.isSettled(e)
	if err == nil && known {
		l.onAlreadySettled(e)
		l.finishEntry(e)
		return true
	}
	need := NeedOf(e.Call)
	l.unmet = &need
	return false
}

func (l *heldLane) offer(ctx context.Context) error {
	s := l.holder.store
	body, err := json.Marshal(l.unmet)
	if err != nil {
		return fmt.Errorf("offer lane: %w", err)
	}
	err = s.RedeliverAfter(ctx, l.holder.options.Pool, offerPeriod, l.ready.seq)
	_ = s.NC.Publish(wire.AskSubject(s.Fleet, l.holder.options.Pool, l.hash), body) // without a connection it is delivered later
	return err
}

// onOffer takes a lane that another worker cannot go on with, or that had better be here, if there
// is room.
func (h *Holder) onOffer(ctx context.Context, hash wire.LaneHash, msg *nats.Msg) {
	var need Need
	err := json.Unmarshal(msg.Data, &need)
	if err != nil || need.Disk != "" && need.Disk != h.options.Disk || need.Disk == "" && !h.host.CanRun(need) {
		return
	}
	if !h.slots.tryAcquire() {
		need.respondRefused(msg)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, store.ShortTimeout)
	defer cancel()
	ready, err := h.storedReady(ctx, hash)
	h.mu.Lock()
	living := h.incarnation != nil
	h.mu.Unlock()
	if err != nil || ready == nil || !living {
		h.slots.release()
		need.respondRefused(msg)
		return
	}
	ready.asked = msg.Reply
	h.beginHold(ready) //nolint:contextcheck // the lane has its own
}

// A lane goes back to the worker that has what it needs, such as its workspace, while that has a
// free slot. Any other one that is given the lane asks for it, and goes on itself when the lane is
// not claimed after a moment: nobody waits for a worker that is busy or lost.

// preferFor is how long a lane waits for the worker that is preferred.
const preferFor = 75 * time.Millisecond

// What a worker that is preferred answers.
const (
	answerClaimed = "taken" // the lane is claimed
	answerRefused = "refused"
)

// leavesToRequired reports whether a lane is left to the only worker that can run its calls, which
// lives. That one takes the lane if it has a slot, and is asked again whenever the lane is
// delivered.
func (h *Holder) leavesToRequired(l *heldLane) bool {
	disk := h.host.RequiredDisk(l.ctx, l.lane)
	if disk == "" || disk == h.options.Disk || !h.peers.mayHaveDisk(l.ctx, disk) {
		return false
	}
	body, err := json.Marshal(Need{Disk: disk})
	if err == nil {
		_ = h.store.NC.Publish(wire.AskSubject(h.store.Fleet, h.options.Pool, l.hash), body) // without a connection it is delivered later
	}
	return true
}

// leavesToPreferred reports whether the worker that is preferred has claimed a lane.
func (h *Holder) leavesToPreferred(l *heldLane) bool {
	if l.ready.ack == "" || l.ready.deliveries > 1 || !h.peers.hasOthers(h.options.Worker) {
		return false
	}
	ctx, cancel := context.WithTimeout(l.ctx, preferFor)
	defer cancel()
	preferred := h.host.PreferredDisk(ctx, l.lane)
	if preferred == "" || preferred == h.options.Disk || !h.peers.hasDisk(preferred) {
		return false
	}
	body, err := json.Marshal(Need{Disk: preferred})
	if err != nil {
		return false
	}
	answer, err := h.store.NC.RequestWithContext(ctx, wire.AskSubject(h.store.Fleet, h.options.Pool, l.hash), body)
	return err == nil && string(answer.Data) == answerClaimed
}

// notifyClaimed tells the worker that asked for it that a lane is claimed.
func (h *Holder) notifyClaimed(r *readyMessage) {
	if r.asked != "" {
		_ = h.store.NC.Publish(r.asked, []byte(answerClaimed)) // else it finds the claim
	}
}

// respondRefused tells the worker that asked for it that a lane is not claimed.
func (n Need) respondRefused(msg *nats.Msg) {
	if n.Disk != "" {
		_ = msg.Respond([]byte(answerRefused)) // else it waits for a moment
	}
}
