package operator

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// askWindow bounds the time for which answers of holders are collected, askQuiet
	// the time without one.
	askWindow = 2 * time.Second
	askQuiet  = 300 * time.Millisecond
	// askLanes bounds the lanes of which answers are kept.
	askLanes = 1 << 17
)

type holding struct {
	lane.HeldLane

	worker protocol.WorkerID
}

// holdings are held lanes. When two workers claim the same one, the later claim counts.
type holdings map[wire.LaneHash]*holding

func (h holdings) add(a *lane.Answer) {
	for _, tells := range a.Lanes {
		hash := wire.HashLane(tells.Lane)
		before := h[hash]
		if before == nil && len(h) >= askLanes {
			continue
		}
		if before == nil || before.Epoch < tells.Epoch {
			h[hash] = &holding{HeldLane: tells, worker: a.WorkerID}
		}
	}
}

// of returns the report of the lane's holder with the given claim; nil without one.
func (h holdings) of(lane wire.LaneHash, claim *store.StoredClaim) *holding {
	if found := h[lane]; found != nil && claim != nil && found.Epoch == claim.Epoch {
		return found
	}
	return nil
}

// askAbout asks all holders of a pool about some lanes. See [Operator.ask].
func (o *Operator) askAbout(ctx context.Context, pool protocol.Pool, lanes []wire.LaneHash, enough func(holdings) bool) (holdings, error) {
	if len(lanes) == 0 {
		return nil, nil
	}
	body, err := json.Marshal(lane.Question{Lanes: lanes})
	if err != nil {
		return nil, err
	}
	return o.ask(ctx, wire.AskAllSubject(o.store.Fleet, pool), body, enough)
}

// ask collects answers to a question until there are enough, nobody answers any
// more, or the window ends. An error says that nothing could be asked.
func (o *Operator) ask(ctx context.Context, subject string, body []byte, enough func(holdings) bool) (holdings, error) {
	found := holdings{}
	ctx, cancel := context.WithTimeout(ctx, askWindow)
	defer cancel()
	nc := o.store.NC
	inbox := nc.NewInbox()
	subscription, err := nc.SubscribeSync(inbox)
	if err != nil {
		return found, err
	}
	defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	if err := nc.PublishRequest(subject, inbox, body); err != nil {
		return found, err
	}
	for !enough(found) {
		quiet, cancel := context.WithTimeout(ctx, askQuiet)
		msg, err := subscription.NextMsgWithContext(quiet)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders) {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		var a lane.Answer
		if json.Unmarshal(msg.Data, &a) == nil && a.Type == lane.TypeAnswer {
			found.add(&a)
		}
	}
	return found, nil
}

// holder returns the report of a lane's holder with the given claim; nil without one.
func (o *Operator) holder(
	ctx context.Context, pool protocol.Pool, lane wire.LaneHash, claim *store.StoredClaim,
) *holding {
	if claim == nil {
		return nil
	}
	// What was answered before an error counts.
	found, _ := o.ask(ctx, wire.AskSubject(o.store.Fleet, pool, lane), nil, func(h holdings) bool { return h.of(lane, claim) != nil })
	return found.of(lane, claim)
}
