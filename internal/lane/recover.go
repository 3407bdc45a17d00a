package lane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A ready message may vanish: somebody removes it, or a server that has lost it. While the calls stream was a work queue, from
// which servers remove what a consumer takes for settled, that happened where they were cut off from each other again and again. An empty ready message that is lost so is made up for by a kick. A call that is one
// is lost with it, unless whoever waits for it puts it once more. It may have been started by whoever had its lane, who need not
// know, so it is treated like a call of a worker that was lost: not before a lease is over, nor while somebody
// still holds the lane by that message; as a further attempt; and not at all if it must not start twice.
// It comes behind what was accepted in its lane meanwhile. A call in the mailbox is no consumer's.

// ErrVanished says that a call is gone with the ready message that it was, and is not put once more yet. Its lane should not be
// made ready before.
var ErrVanished = errors.New("the call is gone with its ready message")

// Recover is for whoever has waited for the result of a call and found none: should the call be its lane's ready message, and
// that be gone, it is put once more when a lease is over and nobody says that it runs. Until then, while it is asked again and again, the error is
// [ErrVanished]; others say that nothing is known.
func (p *Publisher) Recover(ctx context.Context, call *protocol.Call) error {
	ready, since := p.presence.carrier(call)
	if ready == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, store.OpTimeout)
	defer cancel()
	there, err := p.isStored(ctx, call)
	if err != nil {
		return err
	}
	gone := p.presence.missed(call, !there)
	if there || gone.IsZero() {
		return nil
	}
	lease, err := p.lease(ctx, call.Pool)
	if err != nil {
		return err
	}
	if time.Since(gone) < lease || isHeld(ctx, p.store, call.Pool, call.Lane(), ready) {
		return fmt.Errorf("call %s: %w", call.ID, ErrVanished)
	}
	again := *call
	again.Again = true
	again.IssuedAt = again.IssuedAt.Add(time.Since(since)) // its time goes on
	if err := p.put(ctx, Outgoing{Call: &again, Header: nats.Header{protocol.HeaderStarted: {"1"}}}, into{}); err != nil {
		return err
	}
	p.presence.carried(call, false)
	return nil
}

// isStored reports whether a call is its lane's ready message, or in the mailbox.
func (p *Publisher) isStored(ctx context.Context, call *protocol.Call) (bool, error) {
	fleet, hash := p.store.Fleet, call.Lane().Hash()
	ready, err := p.store.Next(ctx, fleet.ReadySubject(call.Pool, hash), 0)
	if err != nil || ready != nil && ready.Header.Get(protocol.HeaderCall) == string(call.ID) {
		return true, err
	}
	entry, err := p.store.Next(ctx, fleet.CallSubject(call.Pool, hash, call.ID), 0)
	return entry != nil, err
}

// lease is how long a pool's lanes are held without a renewal; 0 when nobody can hold one.
func (p *Publisher) lease(ctx context.Context, pool protocol.Pool) (time.Duration, error) {
	consumer, err := p.store.Consumer(ctx, pool)
	if err != nil || consumer == nil {
		return 0, err
	}
	return consumer.Config.AckWait, nil
}

// maxHolders bounds those who answer that they hold a lane: one, but for moments in which another one does not know yet that it lost it.
const maxHolders = 8

// isHeld asks whether somebody holds a lane by a ready message.
func isHeld(ctx context.Context, s *store.Store, pool protocol.Pool, lane protocol.Lane, ready uint64) bool {
	question := nats.NewMsg(s.Fleet.AskSubject(pool, lane.Hash()))
	_, err := s.Replies.Collect(ctx, store.ShortTimeout, question, maxHolders, func(msg *nats.Msg) bool {
		var a Answer
		err := json.Unmarshal(msg.Data, &a)
		return err == nil && slices.ContainsFunc(a.Lanes, func(l HeldLane) bool { return l.Ready == ready })
	})
	return err == nil
}
