package lane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/signing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Errors that callers branch on.
var (
	// ErrFull says that the calls stream, the account or the server is at its limit: the call was
	// not enqueued.
	ErrFull = store.ErrFull
	// ErrTooLarge says that a payload is larger than 64 MiB.
	ErrTooLarge = natsio.ErrTooLarge
	// ErrFullAgain is ErrFull for a call that an earlier attempt may have enqueued: it may be
	// stored, or have its result.
	ErrFullAgain = errors.New("the fleet's queue is full, and may have the call already")
	// ErrNotSent says that a call was not enqueued, and never will be by this attempt: it did not
	// leave the process, or no server received it.
	ErrNotSent = errors.New("the call was not sent")
)

// Publisher enqueues calls. It is safe for concurrent use.
type Publisher struct {
	// Signer, if set, signs the calls; it is not changed while the publisher is used.
	Signer *signing.Signer

	store   *store.Store
	streams *natsio.Streams
	noRoom  atomic.Int64 // when a call was refused for lack of room, in nanoseconds since 1970
	clock   store.Clock
	synced  atomic.Int64 // when the clock was read, in nanoseconds since 1970

	lanes usedLanes
}

// poolLane is a lane in one of its pools: different workers may hold it in different pools.
type poolLane struct {
	pool protocol.Pool
	lane protocol.Lane
}

// NewPublisher opens the streams of a fleet, which must exist.
func NewPublisher(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet) (*Publisher, error) {
	s, err := store.Open(ctx, nc, fleet)
	if err != nil {
		return nil, err
	}
	p := &Publisher{store: s, streams: natsio.NewStreams(s.JS, s.Created())}
	p.lanes.makeReady = func(lane poolLane) { s.PublishReady(lane.pool, lane.lane) }
	return p, nil
}

// Outgoing is a call to enqueue, with headers such as its trace context.
type Outgoing struct {
	Call   *protocol.Call
	Header nats.Header
	// Followed says that, if the call is accepted, [Publisher.Ended] is called once: when the
	// caller has its result, or gives it up. That saves ready messages.
	Followed bool
}

// Ended says that an accepted call, which is followed, has its result or was given up.
func (p *Publisher) Ended(call *protocol.Call) { p.lanes.ended(laneOf(call)) }

// Enqueue enqueues calls and returns an error for each; nil means accepted: the call will get
// exactly one result. Calls of one lane are accepted in the given order. A payload that is too
// large for a message goes through the object store. [ErrFull], [ErrTooLarge], [natsio.ErrNoStream]
// and [ErrFullAgain] are final; otherwise Enqueue retries while the context lasts. The last error
// wraps [ErrNotSent] if the call was certainly not enqueued.
func (p *Publisher) Enqueue(ctx context.Context, calls []Outgoing) []error {
	faults := make([]error, len(calls))
	if len(calls) == 1 { // as it is for most steps
		p.enqueueLane(ctx, laneOf(calls[0].Call), calls, []int{0}, faults)
		return faults
	}
	byLane := map[poolLane][]int{}
	for i, out := range calls {
		lane := laneOf(out.Call)
		byLane[lane] = append(byLane[lane], i)
	}
	var group sync.WaitGroup
	for lane, indexes := range byLane {
		group.Go(func() { p.enqueueLane(ctx, lane, calls, indexes, faults) })
	}
	group.Wait()
	return faults
}

func laneOf(c *protocol.Call) poolLane { return poolLane{pool: c.Pool, lane: c.Lane()} }

// enqueueLane enqueues calls of one lane. The first may be the ready message itself, if the lane
// may be idle. That saves a write; a wrong guess costs one.
func (p *Publisher) enqueueLane(ctx context.Context, lane poolLane, calls []Outgoing, indexes []int, faults []error) {
	inline := wire.FlowOf(calls[indexes[0]].Call).IsDefault() && (!p.lanes.use(lane) || p.isFull()) // the last message that a full stream accepts must make its lane ready
	for _, i := range indexes {
		faults[i] = p.enqueue(ctx, calls[i], inline)
		switch {
		case errors.Is(faults[i], ErrFull) || errors.Is(faults[i], ErrFullAgain):
			p.noRoom.Store(time.Now().UnixNano())
		case faults[i] == nil:
			inline = false
			if calls[i].Followed {
				p.lanes.begun(lane)
			}
		}
	}
}

func (p *Publisher) isFull() bool {
	return time.Since(time.Unix(0, p.noRoom.Load())) < fullFor
}

// enqueue enqueues one call: as the ready message itself if inline and the lane is idle, else into
// the mailbox.
func (p *Publisher) enqueue(ctx context.Context, out Outgoing, inline bool) error {
	if out.Call.Delay() > 0 {
		return p.enqueueLater(ctx, out)
	}
	call, msg, err := p.message(ctx, out)
	if err != nil {
		return failed(out.Call, err, out.Call.Again, true)
	}
	size := len(msg.Data) // it grows when markAgain marks the call
	if inline && wire.FlowOf(call).IsDefault() {
		done, err := p.publishInline(ctx, call, msg)
		if done || err != nil {
			return err
		}
	}
	return p.append(ctx, call, msg, size, out.Followed)
}

// message encodes a call for its mailbox. A payload that is too large for a message is stored
// separately; the returned call refers to it.
func (p *Publisher) message(ctx context.Context, out Outgoing) (*protocol.Call, *nats.Msg, error) {
	call := out.Call
	body, err := wire.EncodeCall(call)
	if err == nil && p.store.Blobs.TooLarge(body) {
		call, body, err = p.storePayload(ctx, call)
	}
	if err != nil {
		return nil, nil, err
	}
	lane := call.Lane()
	msg := &nats.Msg{Subject: wire.CallSubject(p.store.Fleet, call.Pool, wire.HashLane(lane), call.ID), Header: make(nats.Header, len(out.Header)+headers)}
	maps.Copy(msg.Header, out.Header)
	msg.Header.Set(wire.HeaderLane, wire.LaneHeader(lane))
	msg.Header.Set(wire.HeaderCall, string(call.ID))
	msg.Header.Set(wire.HeaderSession, string(call.SessionID))
	if flow := wire.FlowOf(call); !flow.IsDefault() {
		msg.Header.Set(wire.HeaderFlow, flow.Header())
	}
	msg.Data = body
	return call, msg, nil
}

const headers = 5

// sign signs a call right before it is sent.
func (p *Publisher) sign(msg *nats.Msg) error {
	if p.Signer == nil {
		return nil
	}
	signed, err := p.Signer.Sign(p.store.Fleet, msg.Data, time.Now())
	if err == nil {
		msg.Header.Set(wire.HeaderSigned, signed)
	}
	return err
}

// storePayload stores a call's payload in the object store, and returns the call that refers to it,
// with its body.
func (p *Publisher) storePayload(ctx context.Context, call *protocol.Call) (*protocol.Call, []byte, error) {
	raw, err := wire.EncodePayload(call.Payload)
	if err != nil {
		return nil, nil, err
	}
	stored, err := p.store.Blobs.Put(ctx, "call/"+string(call.SessionID), raw)
	if err != nil {
		return nil, nil, fmt.Errorf("payload of call %s: %w", call.ID, err)
	}
	need := NeedOf(call)
	stored.Of, stored.Model = need.Kind, need.Model
	small := *call
	small.Payload = stored
	body, err := wire.EncodeCall(&small)
	return &small, body, err
}

// publishInline publishes a call as the ready message itself. It reports false when the lane is
// ready or held.
func (p *Publisher) publishInline(ctx context.Context, call *protocol.Call, mailbox *nats.Msg) (done bool, err error) {
	if err := p.sign(mailbox); err != nil {
		return false, failed(call, err, call.Again, true)
	}
	msg := *mailbox
	msg.Subject = wire.ReadySubject(p.store.Fleet, call.Pool, wire.HashLane(call.Lane()))
	_, answer, err := p.store.Publish(ctx, &msg)
	switch {
	case err != nil && ctx.Err() != nil:
		return false, failed(call, err, call.Again, store.NotStored(err))
	case err != nil:
		// It may be stored. Trying the mailbox is safe, because the entry says that it may be.
		return false, p.markAgain(call, mailbox, err)
	case answer == store.Full:
		return false, failed(call, full(call.Again), true, false)
	}
	return answer == store.Accepted, nil
}

// failed is the error of a call that was not accepted. before says that earlier attempts may have
// enqueued it, unsent that this one did not.
func failed(call *protocol.Call, err error, before, unsent bool) error {
	if !before && unsent {
		err = fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return fmt.Errorf("publish call %s: %w", call.ID, err)
}

// markAgain re-encodes a call as one that may be stored already, unless the error of the last
// attempt excludes that.
func (p *Publisher) markAgain(call *protocol.Call, msg *nats.Msg, fault error) error {
	if store.NotStored(fault) {
		return nil
	}
	again := *call
	again.Again = true
	body, err := wire.EncodeCall(&again)
	if err != nil {
		return err
	}
	msg.Data = body
	return nil
}

// append adds a call to its mailbox, and makes the lane ready.
func (p *Publisher) append(ctx context.Context, call *protocol.Call, msg *nats.Msg, size int, followed bool) error {
	answer, err := p.appendOne(ctx, call, msg)
	again := call.Again || len(msg.Data) != size
	switch {
	case err != nil:
		return failed(call, err, again, store.NotStored(err))
	case answer == store.Full:
		return failed(call, full(again), true, false)
	}
	if flow := wire.FlowOf(call); !flow.IsDefault() {
		p.store.PublishTicket(call.Pool, call.Lane(), flow)
		return nil
	}
	p.lanes.appended(laneOf(call), followed)
	return nil
}

// full is the error of a full stream; again says that the call may have been stored before.
func full(again bool) error {
	if again {
		return ErrFullAgain
	}
	return ErrFull
}

func (p *Publisher) appendOne(ctx context.Context, call *protocol.Call, msg *nats.Msg) (store.Answer, error) {
	for retryWait := retryFirst; ; retryWait = min(2*retryWait, retryLast) {
		if err := p.sign(msg); err != nil {
			return store.Accepted, err
		}
		_, answer, err := p.store.PublishOnce(ctx, wire.CallsStream(p.store.Fleet), msg)
		if errors.Is(err, nats.ErrNoResponders) {
			if gone := p.streams.Check(ctx); gone != nil {
				return answer, fmt.Errorf("%w: %w", gone, err)
			}
		}
		if err == nil || !store.Retryable(err) || !pause.For(ctx, retryWait) {
			return answer, err
		}
		if err := p.markAgain(call, msg, err); err != nil {
			return store.Accepted, err
		}
	}
}

// enqueueLater stores a call that waits for its time. Whoever moves it into its lane may do so
// again after a crash, so the call says that it may have been enqueued before.
func (p *Publisher) enqueueLater(ctx context.Context, out Outgoing) error {
	before := out.Call.Again
	again := *out.Call
	again.Again = true
	if err := p.roomForLater(ctx); err != nil {
		return failed(&again, err, before, true)
	}
	call, msg, err := p.message(ctx, Outgoing{Call: &again, Header: out.Header})
	if err != nil {
		return failed(&again, err, before, true)
	}
	msg.Subject = wire.LaterSubject(p.store.Fleet, call.Pool, wire.HashLane(call.Lane()), call.ID)
	answer, err := p.appendOne(ctx, call, msg)
	switch {
	case err != nil:
		return failed(call, err, before, store.NotStored(err))
	case answer == store.Full:
		return failed(call, full(before), true, false)
	}
	return nil
}

// roomForLater returns [ErrFull] when nine tenths of the calls stream are full: a call is moved
// into its lane by one more message, for which a stream full of waiting calls has no room.
func (p *Publisher) roomForLater(ctx context.Context) error {
	info, err := p.store.Calls.Info(ctx)
	if err != nil {
		return err
	}
	c, s := info.Config, info.State
	if c.MaxMsgs > 0 && s.Msgs >= uint64(c.MaxMsgs/10*9) || c.MaxBytes > 0 && s.Bytes >= uint64(c.MaxBytes/10*9) { //nolint:gosec // positive
		return ErrFull
	}
	return nil
}

// Cancel requests that a call ends as cancelled. The request is durable: once Cancel returns nil, a
// waiting call will not start, and a running one will be killed, unless it ends first; the result
// tells which. The lane's holder is notified at once. If the notification is lost, as it may be in
// a cluster, the holder reads the request within a second, or 30 if it holds many lanes, and kills
// what it started meanwhile. A call that waits for its time is cancelled within seconds; it may
// start, and is then killed, if its time comes meanwhile.
func (p *Publisher) Cancel(ctx context.Context, call *protocol.Call) error {
	if call.Delay() > 0 {
		if err := p.store.CancelLater(ctx, call.Pool, call.Lane(), call.ID); err != nil {
			return err
		}
	}
	return p.store.Cancel(ctx, call.Pool, call.Lane(), call.ID)
}

// Result returns the stored result of a call; nil when there is none yet. With an error, a non-nil
// result has a value that cannot be loaded.
func (p *Publisher) Result(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	return p.store.Result(ctx, session, call)
}

// Streams checks whether the streams of calls and results exist, at most once a second for all
// callers. The error wraps [natsio.ErrNoStream] when one is missing.
func (p *Publisher) Streams(ctx context.Context) error { return p.streams.Check(ctx) }

// Lost reports whether a call that was accepted at a time, and has no result, was deleted with a
// stream that has been created anew since.
func (p *Publisher) Lost(ctx context.Context, call *protocol.Call, since time.Time) bool {
	if !since.Before(p.streams.Remade()) {
		return false
	}
	if there, err := p.isStored(ctx, call); there || err != nil {
		return false
	}
	r, err := p.store.Result(ctx, call.SessionID, call.ID) // a result is stored before its call is deleted
	return err == nil && r == nil
}

// Owner is the worker that has claimed a lane, as its heartbeat shows it.
type Owner struct {
	Worker protocol.WorkerID
	Beat   uint64        // of the heartbeat; each renewal changes it
	Silent time.Duration // since the last renewal
	Left   time.Duration // of the lease; 0 when it has ended
}

// Late reports whether a renewal is overdue. Workers renew within a third of a lease, see Due and
// Period of core.Lease.
func (o *Owner) Late() bool { return o.Left == 0 || o.Silent > (o.Silent+o.Left)*2/5 }

// Owner returns the worker that has claimed a call's lane; nil when none has. It needs
// [natsio.OwnerRights].
func (p *Publisher) Owner(ctx context.Context, call *protocol.Call) (*Owner, error) {
	claim, err := p.store.Claim(ctx, call.Pool, wire.HashLane(call.Lane()))
	if err != nil || claim == nil || claim.Life == "" {
		return nil, err
	}
	beat, err := p.store.Heartbeat(ctx, call.Pool, claim.Life)
	if err != nil || beat == nil {
		return nil, err
	}
	owner := &Owner{Worker: claim.WorkerID, Beat: beat.Seq}
	if beat.Expired {
		return owner, nil
	}
	if time.Since(time.Unix(0, p.synced.Load())) > syncEvery {
		if err := p.clock.Sync(ctx, p.store.Calls); err != nil {
			return nil, err
		}
		p.synced.Store(time.Now().UnixNano())
	}
	owner.Silent = p.clock.Age(beat.At)
	owner.Left = max(beat.Lease()-owner.Silent, 0)
	return owner, nil
}

func (p *Publisher) isStored(ctx context.Context, call *protocol.Call) (bool, error) {
	fleet, hash := p.store.Fleet, wire.HashLane(call.Lane())
	ready, err := p.store.Ready(ctx, call.Pool, hash)
	if err != nil || ready != nil && ready.Header.Get(wire.HeaderCall) == string(call.ID) {
		return true, err
	}
	if call.Delay() > 0 { // it is there before, or in the mailbox after
		if entry, err := p.store.Next(ctx, wire.LaterSubject(fleet, call.Pool, hash, call.ID), 0); err != nil || entry != nil {
			return true, err
		}
	}
	entry, err := p.store.Next(ctx, wire.CallSubject(fleet, call.Pool, hash, call.ID), 0)
	return entry != nil, err
}

const (
	// fullFor is how long a stream counts as full after it refused a call.
	fullFor = time.Second
	// syncEvery is how long one reading of the server's clock is used.
	syncEvery  = 10 * time.Second
	retryFirst = 20 * time.Millisecond
	retryLast  = time.Second
)
