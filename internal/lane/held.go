package lane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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
	inline    *entry // the ready message's own call, until it is in the schedule
	pinned    bool   // the ready message carries a call that is not settled
	schedule  *schedule
	bytes     int
	cursor    uint64 // next mailbox sequence to read
	exhausted bool   // the last look found nothing more
	active    int    // calls that run or wait for a slot
	free      int    // slots in hand that no call uses
	hasSlot   bool   // the claim came with a slot
	caughtUp  bool   // what is read from now on came after the claim
	marks     map[protocol.CallID][]uint64
	litter    []uint64 // marks that nobody needs any more
	handbacks []uint64 // marks of this ready message's deliveries
	finished  chan finished
	listening *nats.Subscription
	forgotten bool

	hint chan struct{}

	mu     sync.Mutex        // also guards cancelled and stop of entries
	hinted []protocol.CallID // calls that a hint asked to cancel
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
		marks: map[protocol.CallID][]uint64{}, finished: make(chan finished), hint: make(chan struct{}, 1),
	}
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
	defer l.unlisten()
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
		if err := l.feed(); err != nil {
			l.holder.options.Logger.WarnContext(l.ctx, "mailbox cannot be read", slog.String("lane", string(l.lane)), slog.Any("error", err))
			l.pause()
			continue
		}
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

// start starts what may run, with the slots in hand first.
func (l *held) start() {
	var ready []*entry
	if l.starting.Err() == nil && !l.yields() {
		ready = l.schedule.startable()
	}
	for _, e := range ready {
		e.mayHaveStarted = e.mayHaveStarted && l.startedBefore()
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
	if l.listening == nil {
		d = min(d, hintAfter)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case f := <-l.finished:
		l.finish(f)
	case <-l.hint:
		l.exhausted = false
		l.cancelHinted()
	case <-timer.C:
		l.exhausted = false
		l.listen()
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

// linger keeps an idle lane for a while. It reports true when there may be work again.
func (l *held) linger() bool {
	if !l.holder.mayLinger(l.lane) {
		return false
	}
	defer l.holder.lingered()
	l.listen()
	if found, err := l.look(l.cursor); err == nil && found { // it came before we listened
		l.exhausted = false
		return true
	}
	timer := time.NewTimer(l.holder.options.Linger)
	defer timer.Stop()
	select {
	case <-l.hint:
		l.exhausted = false
		return true
	case <-timer.C:
		return false
	case <-l.starting.Done():
		return l.ctx.Err() != nil
	}
}

// listen subscribes to hints: messages to the lane's mailbox on core NATS.
func (l *held) listen() {
	if l.listening != nil {
		return
	}
	fleet := l.holder.options.Fleet
	subscription, err := l.holder.store.nc.Subscribe(fleet.MailboxFilter(l.holder.options.Pool, l.hash), func(msg *nats.Msg) {
		if entry := fleet.ParseMailboxSubject(msg.Subject); entry.Kind == protocol.EntryCancel {
			l.mu.Lock()
			l.hinted = append(l.hinted, entry.CallID)
			l.mu.Unlock()
		}
		select {
		case l.hint <- struct{}{}:
		default:
		}
	})
	if err == nil { // else the periodic look has to do
		l.listening = subscription
	}
}

func (l *held) unlisten() {
	if l.listening != nil {
		_ = l.listening.Unsubscribe() // fails only when the connection is closed
		l.listening = nil
	}
}

// cancelHinted acts on requests to cancel before their turn in the mailbox comes.
func (l *held) cancelHinted() {
	l.mu.Lock()
	ids := l.hinted
	l.hinted = nil
	l.mu.Unlock()
	for _, id := range ids {
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

// pause waits a moment after a failure, or for the end of the lane.
func (l *held) pause() { wait(l.ctx, faultPause) }

// look reports whether the mailbox holds anything at or after seq.
func (l *held) look(seq uint64) (bool, error) {
	msg, err := l.holder.store.next(l.ctx, l.filter(), seq)
	return msg != nil, err
}

func (l *held) filter() string {
	return l.holder.options.Fleet.MailboxFilter(l.holder.options.Pool, l.hash)
}

// feed reads the mailbox into the schedule until it is empty or the window is full.
func (l *held) feed() error {
	if err := l.holder.store.remove(l.ctx, l.litter...); err != nil {
		return err
	}
	l.litter = l.litter[:0]
	for !l.exhausted && l.schedule.len() < window && l.bytes < windowBytes {
		msg, err := l.holder.store.next(l.ctx, l.filter(), l.cursor)
		if err != nil {
			return err
		}
		if l.inline != nil && (msg == nil || msg.Sequence > l.ready) {
			l.admit(l.inline)
			l.inline = nil
		}
		if msg == nil {
			l.exhausted = true
			break
		}
		l.cursor = msg.Sequence + 1
		if err := l.accept(msg); err != nil {
			return err
		}
	}
	l.caughtUp = true
	return nil
}

// accept takes one message of the mailbox.
func (l *held) accept(msg *jetstream.RawStreamMsg) error {
	what := l.holder.options.Fleet.ParseMailboxSubject(msg.Subject)
	switch what.Kind {
	case protocol.EntryCall:
		e, err := l.entry(msg.Header, msg.Data)
		if err != nil {
			return l.discard(msg, err)
		}
		e.seq, e.accepted = msg.Sequence, msg.Time
		if !l.admit(e) { // enqueued twice; the one in hand is the call
			return l.holder.store.remove(l.ctx, msg.Sequence)
		}
	case protocol.EntryHandback:
		if what.Ready != l.ready {
			return l.holder.store.remove(l.ctx, msg.Sequence)
		}
		l.handbacks = append(l.handbacks, msg.Sequence)
	case protocol.EntryCancel, protocol.EntryStart:
		e := l.schedule.find(what.CallID)
		if e == nil { // its call is settled
			return l.holder.store.remove(l.ctx, msg.Sequence)
		}
		l.marks[what.CallID] = append(l.marks[what.CallID], msg.Sequence)
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
func (l *held) discard(msg *jetstream.RawStreamMsg, why error) error {
	l.holder.options.Logger.ErrorContext(l.ctx, "mailbox entry removed",
		slog.String("lane", string(l.lane)), slog.String("subject", msg.Subject), slog.Any("error", why))
	return l.holder.store.remove(l.ctx, msg.Sequence)
}

// admit puts an entry into the schedule. Only an entry that was there at the claim
// and that nothing blocks can have been started by whoever held the lane before.
func (l *held) admit(e *entry) bool {
	if !l.schedule.add(e) {
		return false
	}
	l.bytes += e.size
	e.mayHaveStarted = e.blockers == 0 && l.delivered > 1 && !l.caughtUp
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
