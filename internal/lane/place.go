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
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// offerPeriod is after how long a lane that was handed back is delivered again.
const offerPeriod = time.Second

// Need is the requirements of a call. The workers of a pool may differ in their handlers, the
// isolation level of their sandboxes, and the models of their turns. A holder that meets a call
// which it cannot run starts the other calls that may start, and hands the lane back; that counts
// as no start. It publishes the requirements on core NATS, and a holder that meets them claims the
// lane at once. If no worker does, the consumer delivers the lane again after offerPeriod.
type Need = report.Need

// NeedOf returns the requirements of a call.
func NeedOf(c *protocol.Call) Need {
	n := Need{Level: c.MinLevel}
	switch p := c.Payload.(type) {
	case nil:
	case protocol.UnknownPayload:
		n.Kind, n.Handler = p.Name, true
	case wire.DialogOpen:
		n.Kind, n.Handler = p.Tool, true
	case wire.Stored:
		_, err := wire.ParseUserKind(string(p.Of))
		n.Kind, n.Handler, n.Model = p.Of, err == nil, p.Model
	case wire.TurnRun:
		n.Kind, n.Model = wire.KindOf(p), p.Model
	default:
		n.Kind = wire.KindOf(p)
	}
	return n
}

// canRun reports whether a call is run here. Any worker answers a call that cannot be decoded or
// must not start again, and a lane that must stay here is not handed back.
func (l *heldLane) canRun(e *core.Entry) bool {
	if _, answer := e.NextStart(); e.Invalid != nil || answer != nil {
		return true
	}
	return l.holder.host.CanRun(NeedOf(e.Call)) || l.holder.host.MustHold(l.lane)
}

// skipSettled finishes a call that cannot run here but has its result already, and reports whether
// it had. Otherwise it notes the requirements of the call.
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

// onOffer claims a lane that another worker cannot go on with, or that should be here, if a slot is
// free.
func (h *Holder) onOffer(ctx context.Context, hash wire.LaneHash, msg *nats.Msg) {
	var need Need
	err := json.Unmarshal(msg.Data, &need)
	if err != nil || need.Disk != "" && need.Disk != h.options.Disk || need.Disk == "" && !h.host.CanRun(need) {
		return
	}
	if !h.slots.tryAcquire() {
		respondRefused(need, msg)
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
		respondRefused(need, msg)
		return
	}
	ready.asked = msg.Reply
	h.beginHold(ready) //nolint:contextcheck // the lane has its own
}

// preferFor is how long a lane waits for the preferred worker.
const preferFor = 75 * time.Millisecond

// Answers of a preferred worker.
const (
	answerClaimed = "taken" // the lane is claimed
	answerRefused = "refused"
)

// leavesToPreferred reports whether the preferred worker has claimed a lane. That worker has what
// the lane needs, such as its workspace. If it has not claimed the lane after preferFor, because it
// is busy or lost, this worker claims it.
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

// notifyClaimed tells the worker that offered a lane that it is claimed.
func (h *Holder) notifyClaimed(r *readyMessage) {
	if r.asked != "" {
		_ = h.store.NC.Publish(r.asked, []byte(answerClaimed)) // if it is lost, the worker reads the claim
	}
}

// respondRefused tells the worker that offered a lane that it is not claimed.
func respondRefused(n Need, msg *nats.Msg) {
	if n.Disk != "" {
		_ = msg.Respond([]byte(answerRefused)) // if it is lost, the worker waits for preferFor
	}
}
