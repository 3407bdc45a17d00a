package lane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// window bounds the calls of a lane that are in hand; windowBytes their bodies.
	window      = 256
	windowBytes = 32 << 20
	// hintAfter is how long a lane waits before it listens for new entries:
	// most calls are over sooner, and listening has a price.
	hintAfter = 2 * time.Millisecond
	// lookPeriod is how often a held lane looks into its mailbox without a hint.
	lookPeriod = time.Second
	// quantum is how long a busy lane may keep a slot that others may want.
	quantum = time.Second
	// faultPause is the pause after an operation of the server failed.
	faultPause = 100 * time.Millisecond
)

// held is a lane while this process holds it. One goroutine (serve) owns it; calls run
// in goroutines of their own and report to it.
type held struct {
	holder    *Holder
	lane      protocol.Lane
	hash      protocol.LaneHash
	ready     uint64 // stream sequence of the ready message: with delivered, the term
	delivered uint64
	ack       string // reply subject of the ready message
	claimed   time.Time
	lease     lease

	ctx      context.Context //nolint:containedctx // the lifetime of the lease is the lane's own
	cancel   context.CancelCauseFunc
	starting context.Context //nolint:containedctx // ends when no call may start any more
	stop     context.CancelFunc
	gone     chan struct{} // closed when the lane may be claimed again here

	// Owned by serve.
	inline     *entry // the ready message's own call, until it is in the schedule
	pinned     bool   // the ready message carries a call that is not settled
	schedule   *schedule
	bytes      int
	mail       *mailbox
	active     int  // calls that run or wait for a slot
	free       int  // slots in hand that no call uses
	frequent   bool // used a moment ago
	hasSlot    bool // the claim came with a slot
	served     int  // calls settled
	caughtUp   bool // what is read from now on came after the claim
	marks      map[protocol.CallID][]uint64
	litter     []uint64 // marks that nobody needs any more
	handbacks  []uint64 // marks of this ready message's deliveries
	finished   chan finished
	idleSince  time.Time // when it had nothing to do; zero while it has
	forgotten  bool
	complained bool // about the trouble that lasts

	mu       sync.Mutex          // also guards cancelled and stop of entries
	removing map[uint64]struct{} // removals that are not confirmed
}

// finished reports the end of a call's goroutine.
type finished struct {
	entry   *entry
	slot    bool // brings its slot back
	settled bool // result stored, entry removed
}

// newHeld reads a ready message.
func newHeld(h *Holder, msg *nats.Msg, since time.Time) (*held, error) {
	meta, err := metadata(msg)
	if err != nil {
		return nil, err
	}
	l := &held{
		holder: h, ready: meta.Sequence.Stream, delivered: meta.NumDelivered, ack: msg.Reply,
		hash:    protocol.LaneHash(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:]),
		claimed: time.Now(), gone: make(chan struct{}), schedule: newSchedule(),
		marks: map[protocol.CallID][]uint64{}, removing: map[uint64]struct{}{}, finished: make(chan finished),
	}
	l.mail = newMailbox(h.store, h.options.Fleet, h.options.Pool, l.hash)
	l.lease.length, l.lease.since = h.lease, since
	if err := json.Unmarshal([]byte(`"`+msg.Header.Get(protocol.HeaderLane)+`"`), &l.lane); err != nil {
		return nil, fmt.Errorf("header %s: %w", protocol.HeaderLane, err)
	}
	if l.lane.Hash() != l.hash {
		return nil, fmt.Errorf("header %s %q does not match the subject", protocol.HeaderLane, l.lane)
	}
	if len(msg.Data) > 0 {
		if l.inline, err = l.entry(msg.Header, msg.Data); err != nil {
			return nil, err
		}
		l.inline.seq, l.inline.accepted, l.inline.inline = l.ready, meta.Timestamp, true
		l.pinned = true
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background()) //nolint:forbidigo // ends with the lease, not with a caller
	l.starting, l.stop = context.WithCancel(l.ctx)
	return l, nil
}

// entry decodes a call. One that cannot be decoded but can be answered is an entry with a fault.
func (l *held) entry(header nats.Header, body []byte) (*entry, error) {
	call, err := protocol.DecodeCall(body)
	if err == nil && call.Lane() != l.lane {
		err = fmt.Errorf("%w: it is of lane %s", protocol.ErrInvalidCall, call.Lane())
	}
	if err == nil {
		return &entry{call: call, header: header, size: len(body)}, nil
	}
	id, idErr := protocol.ParseCallID(header.Get(protocol.HeaderCall))
	session, sessionErr := protocol.ParseSessionID(header.Get(protocol.HeaderSession))
	if unanswerable := errors.Join(idErr, sessionErr); unanswerable != nil {
		return nil, errors.Join(err, unanswerable)
	}
	whole := protocol.Use{Key: protocol.ResourceKey(l.lane), Access: protocol.Exclusive}
	call = &protocol.Call{ID: id, SessionID: session, Pool: l.holder.options.Pool, Resources: []protocol.Use{whole}}
	return &entry{call: call, header: header, fault: err}, nil
}

// abort ends the lane at once, from any goroutine: what runs is killed.
func (l *held) abort(cause error) { l.cancel(cause) }

// succeed makes way for a later claim of the lane by this process, from any goroutine.
func (l *held) succeed(ready uint64) {
	if ready == l.ready { // the same ready message once more: the lease has ended
		l.abort(ErrLost)
		return
	}
	l.drain() // another one: this lane is just being released
}

// drain lets what runs finish and starts nothing more, from any goroutine.
func (l *held) drain() { l.stop() }

// serve holds the lane until it is idle, handed back or lost.
func (l *held) serve() {
	defer l.cancel(nil)
	defer l.stop()
	defer l.mail.close()
	if !l.hasSlot {
		l.handback()
		return
	}
	l.free = 1
	defer func() {
		for range l.free {
			l.holder.slots.release()
		}
	}()
	for l.ctx.Err() == nil {
		if l.usedOnce() {
			if l.leave() {
				return
			}
			continue
		}
		if err := l.feed(); err != nil {
			l.complain("mailbox cannot be read", err)
			l.pause()
			continue
		}
		l.complained = false
		l.start()
		if l.active > 0 {
			l.wait(lookPeriod)
			continue
		}
		if l.starting.Err() == nil && l.schedule.len() == 0 && l.linger() {
			continue
		}
		if l.leave() {
			return
		}
	}
	for l.active > 0 { // the context has ended: they are being killed
		l.finish(<-l.finished)
	}
	if errors.Is(context.Cause(l.ctx), ErrDraining) && l.lease.trusted(time.Now()) {
		l.nak() // what was killed may start elsewhere at once, as a further attempt
	}
}

// usedOnce reports whether the lane had one call and is likely to have no more:
// then it is released without another look into the mailbox before.
func (l *held) usedOnce() bool {
	return l.served == 1 && !l.frequent && l.caughtUp && l.active == 0 && l.schedule.len() == 0 &&
		(l.holder.options.Linger <= 0 || !l.holder.options.Lingers(l.lane))
}

// start starts what may run, with the slots in hand first.
func (l *held) start() {
	var ready []*entry
	if l.starting.Err() == nil && !l.yields() {
		ready = l.schedule.startable()
	}
	if len(ready) > 0 {
		l.idleSince = time.Time{}
	}
	for _, e := range ready {
		e.mayHaveStarted = e.mayHaveStarted && l.startedBefore()
		e.maySettled = e.maySettled && l.startedBefore()
		slot := l.free > 0
		if slot {
			l.free--
		}
		l.active++
		go l.run(e, slot)
	}
	for ; l.free > 0; l.free-- {
		l.holder.slots.release()
	}
}

// yields reports whether a busy lane should go to the end of the line, because
// it had its share of the slots and others may wait.
func (l *held) yields() bool {
	if l.active > 0 || l.schedule.len() == 0 || time.Since(l.claimed) < quantum {
		return false
	}
	if l.holder.slots.available() > 0 {
		return false
	}
	l.stop()
	return true
}

// run takes a call from its start to its end and reports.
func (l *held) run(e *entry, slot bool) {
	if !slot {
		if l.holder.slots.acquire(l.starting) != nil {
			l.finished <- finished{entry: e}
			return
		}
	}
	settled := l.attempt(e)
	l.finished <- finished{entry: e, slot: true, settled: settled}
}

// finish books the end of a call.
func (l *held) finish(f finished) {
	l.active--
	if f.slot {
		l.free++
	}
	if !f.settled {
		f.entry.running = false
		return
	}
	l.served++
	l.schedule.finish(f.entry)
	l.bytes -= f.entry.size
	l.litter = append(l.litter, l.marks[f.entry.call.ID]...)
	delete(l.marks, f.entry.call.ID)
	if f.entry.inline {
		l.pinned = false
	}
}

// wait waits for something to happen, at most for d.
func (l *held) wait(d time.Duration) {
	if l.mail.subscription == nil {
		d = min(d, hintAfter)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case f := <-l.finished:
		l.finish(f)
	case <-l.mail.wake:
		l.cancelTold()
	case <-timer.C:
		l.mail.refresh()
		l.mail.listen()
	case <-l.ctx.Done():
		return
	}
	for { // whatever else has finished meanwhile
		select {
		case f := <-l.finished:
			l.finish(f)
		default:
			return
		}
	}
}

// linger keeps an idle lane for a while: long when its sandbox is to stay warm,
// a moment when the lane is used again and again. It reports true when there may
// be work again.
func (l *held) linger() bool {
	d := l.holder.options.Linger
	if l.holder.mayLinger(l.lane) {
		defer l.holder.lingered()
	} else if d = holdTime; !l.frequent && l.served < 2 {
		return false
	}
	if l.mail.subscription == nil { // entries may have come before it listens
		l.mail.listen()
		return true
	}
	if l.idleSince.IsZero() {
		l.idleSince = time.Now()
	}
	timer := time.NewTimer(max(0, min(d-time.Since(l.idleSince), lookPeriod)))
	defer timer.Stop()
	select {
	case <-l.mail.wake:
		l.cancelTold()
		return true
	case <-timer.C:
		l.mail.refresh() // should something not have been told
		return time.Since(l.idleSince) < d
	case <-l.starting.Done():
		return l.ctx.Err() != nil
	}
}

// cancelTold acts on requests to cancel before their turn in the mailbox comes.
func (l *held) cancelTold() {
	for _, id := range l.mail.takeCancels() {
		l.cancelCall(id)
	}
}

// cancelCall cancels a call in hand.
func (l *held) cancelCall(id protocol.CallID) {
	e := l.schedule.find(id)
	if e == nil && l.inline != nil && l.inline.call.ID == id {
		e = l.inline
	}
	if e == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.cancelled = true
	if e.stop != nil {
		e.stop(ErrCancelled)
	}
}

// unconfirmed books a removal that was sent, from any goroutine.
func (l *held) unconfirmed(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removing[seq] = struct{}{}
}

// confirmed books the answer to a removal, from any goroutine.
func (l *held) confirmed(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.removing, seq)
}

// toRemove is everything that must be gone before the lane is released.
func (l *held) toRemove() []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Concat(l.litter, l.handbacks, slices.Collect(maps.Keys(l.removing)))
}

// complain logs trouble once until it is over.
func (l *held) complain(msg string, err error) {
	if !l.complained {
		l.complained = true
		l.warn(msg, err)
	}
}

// pause waits a moment after a failure, or for the end of the lane.
func (l *held) pause() { wait(l.ctx, faultPause) }

// feed reads the mailbox into the schedule until it is empty or the window is full.
func (l *held) feed() error {
	if err := l.holder.store.remove(l.ctx, l.litter...); err != nil {
		return err
	}
	l.litter = l.litter[:0]
	for l.schedule.len() < window && l.bytes < windowBytes {
		letter, err := l.mail.next(l.ctx)
		if err != nil {
			return err
		}
		if l.inline != nil && (letter == nil || letter.seq > l.ready) {
			l.admit(l.inline)
			l.inline = nil
		}
		if letter == nil {
			break
		}
		if err := l.accept(letter); err != nil {
			return err
		}
	}
	l.caughtUp = true
	return nil
}

// accept takes one message of the mailbox.
func (l *held) accept(msg *letter) error {
	what := l.holder.options.Fleet.ParseMailboxSubject(msg.subject)
	switch what.Kind {
	case protocol.EntryCall:
		e, err := l.entry(msg.header, msg.body)
		if err != nil {
			return l.discard(msg, err)
		}
		e.seq, e.accepted = msg.seq, msg.stored
		if !l.admit(e) { // enqueued twice; the one in hand is the call
			return l.holder.store.remove(l.ctx, msg.seq)
		}
	case protocol.EntryHandback:
		if what.Ready != l.ready {
			return l.holder.store.remove(l.ctx, msg.seq)
		}
		l.handbacks = append(l.handbacks, msg.seq)
	case protocol.EntryCancel, protocol.EntryStart:
		e := l.schedule.find(what.CallID)
		if e == nil { // its call is settled
			return l.holder.store.remove(l.ctx, msg.seq)
		}
		l.marks[what.CallID] = append(l.marks[what.CallID], msg.seq)
		if what.Kind == protocol.EntryCancel {
			l.cancelCall(what.CallID)
		} else if !e.running {
			e.starts = max(e.starts, what.Start)
		}
	case protocol.EntryUnknown:
		return l.discard(msg, errUnknownEntry)
	}
	return nil
}

var errUnknownEntry = errors.New("unknown kind of mailbox entry")

// discard removes a message that can neither be run nor answered.
func (l *held) discard(msg *letter, why error) error {
	l.holder.options.Logger.ErrorContext(l.ctx, "mailbox entry removed",
		slog.String("lane", string(l.lane)), slog.String("subject", msg.subject), slog.Any("error", why))
	return l.holder.store.remove(l.ctx, msg.seq)
}

// admit puts an entry into the schedule. Only an entry that was there at the claim
// can have been settled or started by whoever held the lane before; started only
// if every call before it that it conflicts with turns out to have its result.
func (l *held) admit(e *entry) bool {
	if !l.schedule.add(e) {
		return false
	}
	l.bytes += e.size
	e.maySettled = l.delivered > 1 && !l.caughtUp
	e.mayHaveStarted = e.maySettled // until a call before it turns out to have had no result
	return true
}

// alive reports whether the lane is still surely ours; when it is not, it is given up.
func (l *held) alive() bool {
	if l.ctx.Err() == nil && !l.lease.trusted(time.Now()) {
		l.abort(ErrLost)
	}
	return l.ctx.Err() == nil
}

// startedBefore reports whether an earlier delivery of the ready message may have started calls:
// deliveries that were handed back did not.
func (l *held) startedBefore() bool { return l.delivered-1 > uint64(len(l.handbacks)) }
