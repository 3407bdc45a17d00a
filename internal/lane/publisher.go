package lane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Publisher enqueues calls. It is safe for concurrent use.
type Publisher struct {
	store *store

	mu         sync.Mutex
	unfinished map[protocol.Lane]int // own calls that have no result yet
}

// NewPublisher opens the streams of a fleet, which must exist.
func NewPublisher(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet) (*Publisher, error) {
	s, err := openStore(ctx, nc, fleet)
	if err != nil {
		return nil, err
	}
	return &Publisher{store: s, unfinished: map[protocol.Lane]int{}}, nil
}

// Outgoing is a call to enqueue, with headers such as its trace context.
type Outgoing struct {
	Call   *protocol.Call
	Header nats.Header
}

// Put enqueues calls and returns an error for each; nil means accepted: the call
// will get exactly one result. Calls of one lane are accepted in the order given.
// Errors are [ErrFull] and [ErrTooLarge], which are final, or that of the
// context; short of these Put tries for as long as the context lasts. Whoever has
// put a call tells the publisher by [Publisher.Finished] when its result is known.
func (p *Publisher) Put(ctx context.Context, calls []Outgoing) []error {
	faults := make([]error, len(calls))
	byLane := map[protocol.Lane][]int{}
	for i, out := range calls {
		lane := out.Call.Lane()
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
func (p *Publisher) Finished(lane protocol.Lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unfinished[lane]--; p.unfinished[lane] <= 0 {
		delete(p.unfinished, lane)
	}
}

func (p *Publisher) begin(lane protocol.Lane, n int) (hadUnfinished bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	had := p.unfinished[lane] > 0
	p.unfinished[lane] += n
	return had
}

// putLane enqueues the calls of one lane in their order.
func (p *Publisher) putLane(ctx context.Context, lane protocol.Lane, calls []Outgoing, indexes []int, faults []error) {
	busy := p.begin(lane, len(indexes))
	defer func() {
		for _, i := range indexes {
			if faults[i] != nil {
				p.Finished(lane)
			}
		}
	}()
	bodies := make(map[int]*nats.Msg, len(indexes))
	sendable := indexes[:0:0]
	for _, i := range indexes {
		if bodies[i], faults[i] = p.message(calls[i]); faults[i] == nil {
			sendable = append(sendable, i)
		}
	}
	if len(sendable) > 0 && !busy {
		first := sendable[0]
		done, err := p.putInline(ctx, calls[first].Call, bodies[first])
		if done || err != nil {
			faults[first] = err
			sendable = sendable[1:]
		}
	}
	if len(sendable) == 0 {
		return
	}
	if p.append(ctx, calls, sendable, bodies, faults) {
		p.makeReady(ctx, calls[sendable[0]].Call)
	}
}

// message encodes a call for its mailbox.
func (p *Publisher) message(out Outgoing) (*nats.Msg, error) {
	body, err := protocol.EncodeCall(out.Call)
	if err != nil {
		return nil, err
	}
	if limit := p.store.nc.MaxPayload() - messageOverhead; int64(len(body)) > limit {
		return nil, fmt.Errorf("call %s has %d bytes, a message may have %d: %w", out.Call.ID, len(body), limit, ErrTooLarge)
	}
	lane := out.Call.Lane()
	msg := nats.NewMsg(p.store.fleet.CallSubject(out.Call.Pool, lane.Hash(), out.Call.ID))
	maps.Copy(msg.Header, out.Header)
	msg.Header.Set(protocol.HeaderLane, headerSafe(string(lane)))
	msg.Header.Set(protocol.HeaderCall, string(out.Call.ID))
	msg.Header.Set(protocol.HeaderSession, string(out.Call.SessionID))
	msg.Data = body
	return msg, nil
}

// putInline offers a call as the ready message itself. It reports false when the lane is ready or held.
func (p *Publisher) putInline(ctx context.Context, call *protocol.Call, mailbox *nats.Msg) (done bool, err error) {
	msg := *mailbox
	msg.Subject = p.store.fleet.ReadySubject(call.Pool, call.Lane().Hash())
	_, answer, err := p.store.publish(ctx, &msg)
	switch {
	case err != nil && ctx.Err() != nil:
		return false, fmt.Errorf("publish call %s: %w", call.ID, err)
	case err != nil:
		// Whether it was stored is not known. The mailbox is safe to try: its entry says so.
		return false, p.markAgain(call, mailbox)
	case answer == full:
		return false, fmt.Errorf("publish call %s: %w", call.ID, ErrFull)
	}
	return answer == accepted, nil
}

// markAgain re-encodes a call that may be in the stream already.
func (p *Publisher) markAgain(call *protocol.Call, msg *nats.Msg) error {
	again := *call
	again.Again = true
	body, err := protocol.EncodeCall(&again)
	if err != nil {
		return err
	}
	msg.Data = body
	return nil
}

// append adds calls to the mailbox one after another, which keeps their order
// whatever fails in between, and reports whether any was accepted.
func (p *Publisher) append(ctx context.Context, calls []Outgoing, indexes []int, bodies map[int]*nats.Msg, faults []error) bool {
	appended := false
	for _, i := range indexes {
		call := calls[i].Call
		answer, err := p.appendOne(ctx, call, bodies[i])
		switch {
		case err != nil:
			faults[i] = fmt.Errorf("publish call %s: %w", call.ID, err)
		case answer == full:
			faults[i] = fmt.Errorf("publish call %s: %w", call.ID, ErrFull)
		default: // stored now, or it was there already: accepted
			appended = true
		}
	}
	return appended
}

// appendOne tries until the server has answered or the context ends.
func (p *Publisher) appendOne(ctx context.Context, call *protocol.Call, msg *nats.Msg) (refused, error) {
	for retryWait := retryFirst; ; retryWait = min(2*retryWait, retryLast) {
		_, answer, err := p.store.publish(ctx, msg)
		if err == nil || !retryable(err) || !wait(ctx, retryWait) {
			return answer, err
		}
		if err := p.markAgain(call, msg); err != nil {
			return accepted, err
		}
	}
}

// makeReady publishes the empty ready message behind an append. When it cannot,
// the kicks of whoever waits will.
func (p *Publisher) makeReady(ctx context.Context, call *protocol.Call) {
	for retryWait := retryFirst; ; retryWait = min(2*retryWait, retryLast) {
		err := p.store.publishReady(ctx, call.Pool, call.Lane())
		if err == nil || errors.Is(err, ErrFull) || !wait(ctx, retryWait) {
			return
		}
	}
}

// Kick makes the lane of a call ready, in case nobody else did. It is refused, and
// harmless, when all is well.
func (p *Publisher) Kick(ctx context.Context, call *protocol.Call) error {
	return p.store.publishReady(ctx, call.Pool, call.Lane())
}

// Cancel asks for a call to end as cancelled. The request is durable: once Cancel
// returns nil, a call that waits will not start, and one that runs will be killed,
// unless it ends before. The result tells which.
func (p *Publisher) Cancel(ctx context.Context, call *protocol.Call) error {
	lane := call.Lane()
	msg := nats.NewMsg(p.store.fleet.CancelSubject(call.Pool, lane.Hash(), call.ID))
	msg.Header.Set(protocol.HeaderLane, headerSafe(string(lane)))
	if _, answer, err := p.store.publish(ctx, msg); err != nil {
		return fmt.Errorf("cancel call %s: %w", call.ID, err)
	} else if answer == full {
		return fmt.Errorf("cancel call %s: %w", call.ID, ErrFull)
	}
	return p.store.publishReady(ctx, call.Pool, lane)
}

// Result returns the stored result of a call; nil when there is none yet.
func (p *Publisher) Result(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	return p.store.result(ctx, session, call)
}

const (
	retryFirst = 20 * time.Millisecond
	retryLast  = time.Second
)

// retryable reports whether an error leaves open what happened; an answer of the server does not.
func retryable(err error) bool {
	if api, answered := errors.AsType[*jetstream.APIError](err); answered {
		return api.Code == 503 && api.ErrorCode != codeStoreFailed
	}
	return err != nil
}

// wait waits for d; it reports false when the context ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
