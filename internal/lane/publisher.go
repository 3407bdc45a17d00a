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
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Errors that callers branch on.
var (
	// ErrFull says that the fleet takes no more, because the calls stream, the account or the
	// server is at its limit: nothing was enqueued.
	ErrFull = store.ErrFull
	// ErrTooLarge says that a payload is larger than the fleet keeps: over 64 MiB.
	ErrTooLarge = natsio.ErrTooLarge
	// ErrFullAgain says that the fleet takes no more, of a call that may have been enqueued before:
	// it may be there, or have its result.
	ErrFullAgain = errors.New("the fleet's queue is full, and may have the call already")
	// ErrNotSent says that a call was not enqueued, and never will be by this attempt: it did not
	// leave the process, or nobody took it.
	ErrNotSent = errors.New("the call was not sent")
)

// Publisher enqueues calls. It is safe for concurrent use.
type Publisher struct {
	store    *store.Store
	inFlight *inFlight
	noRoom   atomic.Int64 // when a call was refused for lack of room, in nanoseconds since 1970
	streams  *natsio.Streams
}

// NewPublisher opens the streams of a fleet, which must exist.
func NewPublisher(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet) (*Publisher, error) {
	s, err := store.Open(ctx, nc, fleet)
	if err != nil {
		return nil, err
	}
	p := &Publisher{store: s, streams: natsio.NewStreams(s.JS, s.Created())}
	p.inFlight = newInFlight(func(c *protocol.Call) bool { //nolint:contextcheck // it runs long after the caller
		ctx, cancel := context.WithTimeout(context.Background(), store.OpTimeout) //nolint:forbidigo // a timer has no caller
		defer cancel()
		made, _ := s.MakeReady(ctx, c.Pool, c.Lane()) // the caretaker comes after it
		return made
	})
	return p, nil
}

// Outgoing is a call to enqueue, with headers such as its trace context.
type Outgoing struct {
	Call   *protocol.Call
	Header nats.Header
}

// Put enqueues calls and returns an error for each; nil means accepted: the call will get exactly
// one result. Calls of one lane are accepted in the order given. A payload that no message can
// carry goes through the object store. Errors are [ErrFull], [ErrTooLarge] (over 64 MiB) and
// [natsio.ErrNoStream], which are final, [ErrFullAgain], or what went wrong when the context ended; short
// of these Put tries for as long as the context lasts. The last one wraps [ErrNotSent] if the call
// was surely not enqueued. Whoever has put a call tells the publisher by [Publisher.Finished] when
// its result is known.
func (p *Publisher) Put(ctx context.Context, calls []Outgoing) []error {
	faults := make([]error, len(calls))
	if len(calls) == 1 { // as it is for most steps
		p.putLane(ctx, poolLaneOf(calls[0].Call), calls, []int{0}, faults)
		return faults
	}
	byLane := map[poolLane][]int{}
	for i, out := range calls {
		lane := poolLaneOf(out.Call)
		byLane[lane] = append(byLane[lane], i)
	}
	var group sync.WaitGroup
	for lane, indexes := range byLane {
		group.Go(func() { p.putLane(ctx, lane, calls, indexes, faults) })
	}
	group.Wait()
	return faults
}

// Finished tells that a call which was put has its result, or is given up.
func (p *Publisher) Finished(call *protocol.Call) { p.inFlight.finished(poolLaneOf(call), call.ID) }

func (p *Publisher) putLane(ctx context.Context, lane poolLane, calls []Outgoing, indexes []int, faults []error) {
	ids := make([]protocol.CallID, len(indexes))
	for n, i := range indexes {
		ids[n] = calls[i].Call.ID
	}
	busy, held := p.inFlight.begin(lane, ids)
	how := into{inline: !busy && !held, held: held}
	if p.lacksRoom() { // what takes the last place must make its lane ready: without room, nobody else can
		how = into{inline: true}
	}
	for _, i := range indexes {
		call := calls[i].Call
		if faults[i] = p.put(ctx, calls[i], how); faults[i] != nil {
			p.inFlight.finished(lane, call.ID)
			if errors.Is(faults[i], ErrFull) || errors.Is(faults[i], ErrFullAgain) {
				p.noRoom.Store(time.Now().UnixNano())
			}
			continue
		}
		how.inline = false
	}
}

func (p *Publisher) lacksRoom() bool {
	return time.Since(time.Unix(0, p.noRoom.Load())) < fullFor
}

// into says what is known of the lane that a call goes into.
type into struct {
	inline bool // it may be idle
	held   bool // its holder is likely to be still there
}

// put enqueues one call: as the ready message itself if the lane may be and is idle, else into the
// mailbox.
func (p *Publisher) put(ctx context.Context, out Outgoing, how into) error {
	call, msg, err := p.message(ctx, out)
	if err != nil {
		return failed(out.Call, err, out.Call.Again, true)
	}
	size := len(msg.Data) // it grows when the call is marked as one that may be there already
	if how.inline {
		done, err := p.putInline(ctx, call, msg)
		if done || err != nil {
			return err
		}
	}
	return p.append(ctx, call, msg, size, how.held)
}

// message encodes a call for its mailbox. The payload of one that no message can
// carry is stored apart; the call that is returned says where.
func (p *Publisher) message(ctx context.Context, out Outgoing) (*protocol.Call, *nats.Msg, error) {
	call := out.Call
	body, err := protocol.EncodeCall(call)
	if err == nil && p.store.Blobs.TooLarge(body) {
		call, body, err = p.storePayload(ctx, call)
	}
	if err != nil {
		return nil, nil, err
	}
	lane := call.Lane()
	msg := &nats.Msg{Subject: p.store.Fleet.CallSubject(call.Pool, lane.Hash(), call.ID), Header: make(nats.Header, len(out.Header)+headers)}
	maps.Copy(msg.Header, out.Header)
	msg.Header.Set(protocol.HeaderLane, store.HeaderSafe(string(lane)))
	msg.Header.Set(protocol.HeaderCall, string(call.ID))
	msg.Header.Set(protocol.HeaderSession, string(call.SessionID))
	msg.Data = body
	return call, msg, nil
}

const headers = 3

// storePayload puts a call's payload into the object store, and returns the call
// and the body that stand for it.
func (p *Publisher) storePayload(ctx context.Context, call *protocol.Call) (*protocol.Call, []byte, error) {
	raw, err := protocol.EncodePayload(call.Payload)
	if err != nil {
		return nil, nil, err
	}
	stored, err := p.store.Blobs.Put(ctx, "call/"+string(call.SessionID), raw)
	if err != nil {
		return nil, nil, fmt.Errorf("payload of call %s: %w", call.ID, err)
	}
	stored.Of = NeedOf(call).Kind
	small := *call
	small.Payload = stored
	body, err := protocol.EncodeCall(&small)
	return &small, body, err
}

// putInline offers a call as the ready message itself. It reports false when the lane is ready or
// held.
func (p *Publisher) putInline(ctx context.Context, call *protocol.Call, mailbox *nats.Msg) (done bool, err error) {
	msg := *mailbox
	msg.Subject = p.store.Fleet.ReadySubject(call.Pool, call.Lane().Hash())
	seq, answer, err := p.store.Publish(ctx, &msg)
	switch {
	case err != nil && ctx.Err() != nil:
		return false, failed(call, err, call.Again, store.NotStored(err))
	case err != nil:
		// Whether it was stored may not be known. The mailbox is safe to try: its entry says so.
		return false, p.markAgain(call, mailbox, err)
	case answer == store.Full:
		return false, failed(call, full(call.Again), true, false)
	}
	if answer == store.Accepted {
		p.inFlight.accepted(call, seq)
	}
	return answer == store.Accepted, nil
}

// failed is the error of a call that was not accepted. before says that earlier attempts may have
// been, and unsent that this one was not.
func failed(call *protocol.Call, err error, before, unsent bool) error {
	if !before && unsent {
		err = fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return fmt.Errorf("publish call %s: %w", call.ID, err)
}

// markAgain re-encodes a call that may be in the stream already, as far as the error of an attempt
// tells.
func (p *Publisher) markAgain(call *protocol.Call, msg *nats.Msg, fault error) error {
	if store.NotStored(fault) {
		return nil
	}
	again := *call
	again.Again = true
	body, err := protocol.EncodeCall(&again)
	if err != nil {
		return err
	}
	msg.Data = body
	return nil
}

// append adds a call to its mailbox and sees to it that the lane is ready.
func (p *Publisher) append(ctx context.Context, call *protocol.Call, msg *nats.Msg, size int, held bool) error {
	seq, answer, err := p.appendOne(ctx, call, msg)
	again := call.Again || len(msg.Data) != size
	switch {
	case err != nil:
		return failed(call, err, again, store.NotStored(err))
	case answer == store.Full:
		return failed(call, full(again), true, false)
	}
	// Stored now, or it was there already: accepted.
	// One that was published before may have run already, and nobody may be left who looks
	// into the mailbox: what was stored the second time must be taken out again.
	if !again && (answer == store.Accepted && p.inFlight.accepted(call, seq) || held) {
		p.inFlight.later(call)
		return nil
	}
	p.makeReady(ctx, call)
	return nil
}

// full is the error of a full stream; again says that it may have taken the call before.
func full(again bool) error {
	if again {
		return ErrFullAgain
	}
	return ErrFull
}

func (p *Publisher) appendOne(ctx context.Context, call *protocol.Call, msg *nats.Msg) (uint64, store.Answer, error) {
	for retryWait := retryFirst; ; retryWait = min(2*retryWait, retryLast) {
		seq, answer, err := p.store.PublishOnce(ctx, p.store.Fleet.CallsStream(), msg)
		if errors.Is(err, nats.ErrNoResponders) {
			if gone := p.streams.Check(ctx); gone != nil {
				return seq, answer, fmt.Errorf("%w: %w", gone, err)
			}
		}
		if err == nil || !store.Retryable(err) || !pause.For(ctx, retryWait) {
			return seq, answer, err
		}
		if err := p.markAgain(call, msg, err); err != nil {
			return 0, store.Accepted, err
		}
	}
}

// makeReady publishes the empty ready message behind an append. When it cannot, the caretaker does.
func (p *Publisher) makeReady(ctx context.Context, call *protocol.Call) {
	for retryWait := retryFirst; ; retryWait = min(2*retryWait, retryLast) {
		_, err := p.store.MakeReady(ctx, call.Pool, call.Lane())
		if err == nil || errors.Is(err, ErrFull) || !pause.For(ctx, retryWait) {
			return
		}
	}
}

// Cancel asks for a call to end as cancelled. The request is durable: once Cancel returns nil, a
// call that waits will not start, and one that runs will be killed, unless it ends before. The
// result tells which. Whoever holds the lane hears of it at once; should the news get lost, as it
// may in a cluster, it looks into the mailbox within a second, or 30 where it holds many lanes, and
// what it starts until then is killed.
func (p *Publisher) Cancel(ctx context.Context, call *protocol.Call) error {
	return p.store.Cancel(ctx, call.Pool, call.Lane(), call.ID)
}

// Result returns the stored result of a call; nil when there is none yet. A result beside an error
// has a value that cannot be had.
func (p *Publisher) Result(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	return p.store.Result(ctx, session, call)
}

// Streams asks whether the streams of calls and results are there, once a second at most, whoever
// asks. The error wraps [natsio.ErrNoStream] when one is gone.
func (p *Publisher) Streams(ctx context.Context) error { return p.streams.Check(ctx) }

// Lost reports whether a call that was accepted at a time, and has no result, is gone with a stream
// that was deleted and made again.
func (p *Publisher) Lost(ctx context.Context, call *protocol.Call, since time.Time) bool {
	if !since.Before(p.streams.Remade()) {
		return false
	}
	if there, err := p.isStored(ctx, call); there || err != nil {
		return false
	}
	r, err := p.store.Result(ctx, call.SessionID, call.ID) // the result comes before its call goes
	return err == nil && r == nil
}

func (p *Publisher) isStored(ctx context.Context, call *protocol.Call) (bool, error) {
	fleet, hash := p.store.Fleet, call.Lane().Hash()
	ready, err := p.store.Ready(ctx, call.Pool, hash)
	if err != nil || ready != nil && ready.Header.Get(protocol.HeaderCall) == string(call.ID) {
		return true, err
	}
	entry, err := p.store.Next(ctx, fleet.CallSubject(call.Pool, hash, call.ID), 0)
	return entry != nil, err
}

const (
	// fullFor is how long a stream that had no room for a call is taken for full.
	fullFor    = time.Second
	retryFirst = 20 * time.Millisecond
	retryLast  = time.Second
)
