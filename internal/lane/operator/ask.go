package operator

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane"
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

// holding is a held lane as its holder described it.
type holding struct {
	lane.HeldLane

	worker protocol.WorkerID
}

// holdings are held lanes. When two workers claim the same one, the later claim counts.
type holdings map[protocol.LaneHash]*holding

func (h holdings) add(a *lane.Answer) {
	for _, tells := range a.Lanes {
		hash := tells.Lane.Hash()
		before := h[hash]
		if before == nil && len(h) >= askLanes {
			continue
		}
		if before == nil || before.Ready < tells.Ready || before.Ready == tells.Ready && before.Delivery < tells.Delivery {
			h[hash] = &holding{HeldLane: tells, worker: a.WorkerID}
		}
	}
}

// of returns who holds the lane with the given ready message; nil when nobody says so.
func (h holdings) of(lane protocol.LaneHash, ready *jetstream.RawStreamMsg) *holding {
	if told := h[lane]; told != nil && ready != nil && told.Ready == ready.Sequence {
		return told
	}
	return nil
}

// ask collects answers to a question until there are enough, nobody answers any
// more, or the window ends. An error says that nothing could be asked.
func (o *Operator) ask(ctx context.Context, subject string, enough func(holdings) bool) (holdings, error) {
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
	if err := nc.PublishRequest(subject, inbox, nil); err != nil {
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

// holder returns who holds a lane with the given ready message; nil when nobody says so.
func (o *Operator) holder(ctx context.Context, pool protocol.Pool, lane protocol.LaneHash, ready *jetstream.RawStreamMsg) *holding {
	if ready == nil {
		return nil
	}
	// What was answered before an error counts.
	found, _ := o.ask(ctx, o.store.Fleet.AskSubject(pool, lane), func(h holdings) bool { return h.of(lane, ready) != nil })
	return found.of(lane, ready)
}

// delivered reports whether a ready message was ever handed to a worker.
func (o *Operator) delivered(ctx context.Context, pool protocol.Pool, ready *jetstream.RawStreamMsg) (bool, error) {
	if ready == nil {
		return false, nil
	}
	last, err := o.lastDelivered(ctx, pool)
	return ready.Sequence <= last, err
}

// lastDelivered is the sequence up to which ready messages of a pool were handed to
// workers, at least once; 0 when the pool has never had one.
func (o *Operator) lastDelivered(ctx context.Context, pool protocol.Pool) (uint64, error) {
	consumer, err := o.store.Consumer(ctx, pool)
	if err != nil || consumer == nil {
		return 0, err
	}
	return consumer.Delivered.Stream, nil
}
