// Package operator looks at lanes from outside and interferes with them, as coordinator lane does:
// what waits, who holds a lane and what runs; pause, resume, wake, skip, kill. It reads the
// streams, asks the holders on core NATS, and says what it could not learn.
package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Errors of an [Operator].
var (
	// ErrNoLane says that a lane has nothing in its pool.
	ErrNoLane = codes.As(codes.ErrNotFound, errors.New("no such lane"))
	// ErrNoCall says that a lane does not have a call, or has its result already.
	ErrNoCall = codes.As(codes.ErrNotFound, errors.New("no such call"))
	// ErrNothingRuns says that no call of a lane runs, according to its holder.
	ErrNothingRuns = codes.As(codes.ErrNotFound, errors.New("nothing runs"))
)

// Operator looks at lanes and interferes with them. It needs no worker: its marks are in the calls
// stream. It requests the holders of lanes on core NATS, and shows a holder that does not answer as
// lost. It is safe for concurrent use.
type Operator struct {
	store *store.Store
	clock store.Clock
}

// New opens the streams of a fleet, which must exist.
func New(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet) (*Operator, error) {
	s, err := store.Open(ctx, nc, fleet)
	if err != nil {
		return nil, err
	}
	return &Operator{store: s}, nil
}

const (
	// confirmWait is how long a holder may take to see that its lane is paused.
	confirmWait = 3 * time.Second
	// confirmPause is the time between two questions about it.
	confirmPause = 50 * time.Millisecond
)

// Pause stops the start of a lane's calls until [Operator.Resume]; running calls continue. It is
// durable and may come before the lane's first call. Calls are accepted and wait; the lane's holder
// answers cancelled and expired ones within a second. confirmed means that no call starts any more;
// it is false if the holder did not answer within 3 s. If the calls stream has no room for the
// mark, the error is [ErrFull].
func (o *Operator) Pause(ctx context.Context, pool protocol.Pool, lane protocol.Lane) (confirmed bool, err error) {
	if err := o.store.Mark(ctx, wire.PauseSubject(o.store.Fleet, pool, wire.HashLane(lane)), lane); err != nil {
		return false, fmt.Errorf("pause lane %s: %w", lane, err)
	}
	return o.isPaused(ctx, pool, lane), nil
}

// isPaused waits until no call of a lane with a pause mark starts any more; it reports
// false when the holder does not say so in time.
func (o *Operator) isPaused(ctx context.Context, pool protocol.Pool, lane protocol.Lane) bool {
	ctx, cancel := context.WithTimeout(ctx, confirmWait)
	defer cancel()
	return pause.Until(ctx, confirmPause, func() bool {
		claim, err := o.store.Claim(ctx, pool, wire.HashLane(lane))
		if err == nil && (claim == nil || claim.Incarnation == "") {
			return true // no worker holds it, and the next one reads the mark first
		}
		holder := o.holder(ctx, pool, wire.HashLane(lane), claim)
		return holder != nil && holder.Paused
	})
}

// Resume ends a pause. It reports false when the lane was not paused.
func (o *Operator) Resume(ctx context.Context, pool protocol.Pool, lane protocol.Lane) (bool, error) {
	mark, err := o.store.Next(ctx, wire.PauseSubject(o.store.Fleet, pool, wire.HashLane(lane)), 0)
	if err == nil && mark != nil {
		err = o.store.Remove(ctx, mark.Sequence)
	}
	if err != nil {
		return false, fmt.Errorf("resume lane %s: %w", lane, err)
	}
	waiting, err := o.store.Next(ctx, wire.MailboxFilter(o.store.Fleet, pool, wire.HashLane(lane)), 0)
	if err == nil && waiting != nil {
		_, err = o.store.MakeReady(ctx, pool, lane)
	}
	if err != nil {
		return mark != nil, fmt.Errorf("resume lane %s: %w", lane, err)
	}
	o.notifyHolder(pool, lane)
	return mark != nil, nil
}

// Wake publishes a lane's ready message if it is missing, and reports whether it was
// missing. A lane that has nothing is [ErrNoLane].
func (o *Operator) Wake(ctx context.Context, pool protocol.Pool, lane protocol.Lane) (made bool, err error) {
	if err := o.require(ctx, pool, lane); err != nil {
		return false, fmt.Errorf("wake: %w", err)
	}
	if made, err = o.store.MakeReady(ctx, pool, lane); err != nil {
		return false, fmt.Errorf("wake lane %s: %w", lane, err)
	}
	o.notifyHolder(pool, lane)
	return made, nil
}

// Skip has a call end as cancelled: without being run when it waits, killed when
// it runs. It is durable; without a worker the call ends when there is one. A call that the lane
// does not have, or that has its result, is [ErrNoCall].
func (o *Operator) Skip(ctx context.Context, pool protocol.Pool, lane protocol.Lane, call protocol.CallID) error {
	if err := o.require(ctx, pool, lane); err != nil {
		return fmt.Errorf("skip: %w", err)
	}
	if err := o.requireCall(ctx, pool, lane, call); err != nil {
		return fmt.Errorf("skip: %w", err)
	}
	return o.cancel(ctx, pool, lane, call)
}

// Kill cancels what runs in a lane now, and returns it. The calls behind it start
// next, unless the lane is paused. When nothing runs the error is [ErrNothingRuns].
func (o *Operator) Kill(ctx context.Context, pool protocol.Pool, lane protocol.Lane) ([]lane.RunningCall, error) {
	if err := o.require(ctx, pool, lane); err != nil {
		return nil, fmt.Errorf("kill: %w", err)
	}
	claim, err := o.store.Claim(ctx, pool, wire.HashLane(lane))
	if err != nil {
		return nil, fmt.Errorf("kill: %w", err)
	}
	holder := o.holder(ctx, pool, wire.HashLane(lane), claim)
	switch {
	case holder == nil:
		return nil, fmt.Errorf("kill: lane %s: %w as far as is known, because no worker says that it holds it; skip ends a single call",
			lane, ErrNothingRuns)
	case len(holder.Running) == 0:
		return nil, fmt.Errorf("kill: lane %s: %w; worker %s holds it; skip ends a call that waits", lane, ErrNothingRuns, holder.worker)
	}
	for _, run := range holder.Running {
		if err := o.cancel(ctx, pool, lane, run.CallID); err != nil {
			return nil, err
		}
	}
	return holder.Running, nil
}

func (o *Operator) cancel(ctx context.Context, pool protocol.Pool, lane protocol.Lane, id protocol.CallID) error {
	waiting, err := o.store.Next(ctx, wire.LaterSubject(o.store.Fleet, pool, wire.HashLane(lane), id), 0)
	switch {
	case err != nil:
	case waiting != nil:
		err = o.store.CancelLater(ctx, pool, lane, id)
	default:
		err = o.store.Cancel(ctx, pool, lane, id)
	}
	o.notifyHolder(pool, lane)
	return err
}

// notifyHolder makes the lane's holder read its mailbox now; without it, it does so within a
// second.
func (o *Operator) notifyHolder(pool protocol.Pool, lane protocol.Lane) {
	_ = o.store.NC.Publish(wire.AskSubject(o.store.Fleet, pool, wire.HashLane(lane)), nil)
}

func (o *Operator) require(ctx context.Context, pool protocol.Pool, lane protocol.Lane) error {
	msg, err := o.store.Ready(ctx, pool, wire.HashLane(lane))
	if err == nil && msg == nil {
		msg, err = o.store.Next(ctx, wire.MailboxFilter(o.store.Fleet, pool, wire.HashLane(lane)), 0)
	}
	if err == nil && msg == nil {
		msg, err = o.store.Next(ctx, wire.LaterSubject(o.store.Fleet, pool, wire.HashLane(lane), ">"), 0)
	}
	if err != nil {
		return fmt.Errorf("lane %s: %w", lane, err)
	}
	if msg == nil {
		return noLane(pool, lane)
	}
	return nil
}

func noLane(pool protocol.Pool, lane protocol.Lane) error {
	return fmt.Errorf("%w: %s has nothing in pool %s; lane ls --pool POOL shows the lanes of a pool that have", ErrNoLane, lane, pool)
}

// requireCall makes sure that a lane has a call, in its mailbox or as its ready message, and that
// it has no result.
func (o *Operator) requireCall(ctx context.Context, pool protocol.Pool, lane protocol.Lane, id protocol.CallID) error {
	msg, err := o.store.Next(ctx, wire.CallSubject(o.store.Fleet, pool, wire.HashLane(lane), id), 0)
	if err == nil && msg == nil {
		msg, err = o.store.Next(ctx, wire.LaterSubject(o.store.Fleet, pool, wire.HashLane(lane), id), 0)
	}
	if err == nil && msg == nil {
		if msg, err = o.store.Ready(ctx, pool, wire.HashLane(lane)); msg != nil && refOf(msg).ID != id {
			msg = nil
		}
	}
	unfinished := false
	if err == nil && msg != nil {
		var ended map[protocol.CallRef]protocol.Status
		ended, err = o.endedOf(ctx, []*jetstream.RawStreamMsg{msg})
		unfinished = len(ended) == 0
	}
	switch {
	case err != nil:
		return fmt.Errorf("call %s of lane %s: %w", id, lane, err)
	case !unfinished:
		return fmt.Errorf("%w: lane %s of pool %s has no unfinished call %s; lane show shows those that it has", ErrNoCall, lane, pool, id)
	}
	return nil
}

const (
	// queryWindow bounds the time for which answers of holders are collected, queryQuiet
	// the time without one.
	queryWindow = 2 * time.Second
	queryQuiet  = 300 * time.Millisecond
	// maxReports bounds the lanes whose answers are stored.
	maxReports = 1 << 17
)

type holding struct {
	lane.HeldLane

	worker protocol.WorkerID
}

// holdings are held lanes. When two workers claim the same one, the later claim counts.
type holdings map[wire.LaneHash]*holding

func (h holdings) add(a *lane.Report) {
	for _, held := range a.Lanes {
		hash := wire.HashLane(held.Lane)
		before := h[hash]
		if before == nil && len(h) >= maxReports {
			continue
		}
		if before == nil || before.Epoch < held.Epoch {
			h[hash] = &holding{HeldLane: held, worker: a.WorkerID}
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

// queryLanes asks all holders of a pool about some lanes. See [Operator.query].
func (o *Operator) queryLanes(ctx context.Context, pool protocol.Pool, lanes []wire.LaneHash, enough func(holdings) bool) (holdings, error) {
	if len(lanes) == 0 {
		return nil, nil
	}
	body, err := json.Marshal(lane.Query{Lanes: lanes})
	if err != nil {
		return nil, err
	}
	return o.query(ctx, wire.AskAllSubject(o.store.Fleet, pool), body, enough)
}

// query collects answers to a question until there are enough, no more arrive, or the window ends.
// An error says that nothing could be asked.
func (o *Operator) query(ctx context.Context, subject string, body []byte, enough func(holdings) bool) (holdings, error) {
	found := holdings{}
	ctx, cancel := context.WithTimeout(ctx, queryWindow)
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
		quiet, cancel := context.WithTimeout(ctx, queryQuiet)
		msg, err := subscription.NextMsgWithContext(quiet)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders) {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		var a lane.Report
		if json.Unmarshal(msg.Data, &a) == nil && a.Type == lane.TypeReport {
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
	found, _ := o.query(ctx, wire.AskSubject(o.store.Fleet, pool, lane), nil, func(h holdings) bool { return h.of(lane, claim) != nil })
	return found.of(lane, claim)
}
