package lane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// window bounds the calls of a lane that are in hand; windowBytes their bodies.
	window      = 256
	windowBytes = 32 << 20
	// hintAfter is how long a lane waits before it listens for new entries:
	// most calls are over sooner, and listening has a price.
	hintAfter = 2 * time.Millisecond
	// firstHintAfter is the same for the only call of a lane that was idle before:
	// most such lanes have no second one while it runs.
	firstHintAfter = 20 * time.Millisecond
	// listensAfter is after how many calls a lane listens although it never had to wait so long.
	listensAfter = 8
	// lookPeriod is how often a held lane looks into its mailbox without a hint, at most: where
	// many lanes are held, they look less often, so that all together make no more
	// than about a hundred looks a second; or ten, on a server that tells everything.
	lookPeriod    = time.Second
	lookPeriodMax = 30 * time.Second
	looksTold     = 100 * time.Millisecond
	looksHinted   = 10 * time.Millisecond
	// quantum is how long a busy lane may keep a slot that others may want.
	quantum = time.Second
	// giveWay is how long a lane that is never idle then leaves free slots to others.
	giveWay = 20 * time.Millisecond
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
	doubt     doubt     // of delivered
	ack       string    // reply subject of the ready message
	stored    time.Time // the ready message, by the server's clock
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
	stock      *stock // in a cluster, from the first look on
	floor      uint64 // sequence of the mark of this claim, if it has one
	active     int    // calls that run
	free       int    // slots in hand that no call uses
	frequent   bool   // used a moment ago
	hasSlot    bool   // the claim came with a slot
	wanting    bool   // stands in line for a slot
	granted    chan bool
	share      time.Time // when the lane's share of the slots began
	givingWay  time.Time // until then free slots are left to others
	served     int       // calls settled
	caughtUp   bool      // what is read from now on came after the claim
	marks      map[protocol.CallID][]uint64
	litter     []uint64  // messages that nobody needs any more
	thrown     time.Time // when removals were last sent that nobody answers; zero when there are none
	handbacks  []uint64  // marks of this ready message's deliveries
	finished   chan finished
	idleSince  time.Time // when it had nothing to do; zero while it has
	forgotten  bool
	complained bool   // about the trouble that lasts
	reconnects uint64 // of the connection, at the claim

	oversight oversight

	mu sync.Mutex // guards cancelled and stop of entries, and what oversight counts
}

// finished reports the end of a call's goroutine, which brings its slot back.
type finished struct {
	entry   *entry
	settled bool // its result is stored
}

// newHeld reads a ready message.
func newHeld(h *Holder, msg *nats.Msg, since time.Time) (*held, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, err
	}
	l := &held{
		holder: h, ready: meta.Sequence.Stream, delivered: meta.NumDelivered, ack: msg.Reply,
		hash:    protocol.LaneHash(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:]),
		claimed: time.Now(), gone: make(chan struct{}), schedule: newSchedule(),
		marks: map[protocol.CallID][]uint64{}, finished: make(chan finished), granted: make(chan bool, 1),
	}
	l.mail = newMailbox(h.store, h.options.Fleet, h.options.Pool, l.hash)
	l.lease.length, l.lease.since = h.lease, since
	l.lease.shared, l.lease.last = h.store.Clustered(), since
	l.stored = meta.Timestamp
	l.reconnects = h.store.NC.Stats().Reconnects
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
	if !h.store.Clustered() { // a cluster writes deliveries down before it makes them
		l.doubt = h.books.doubt(h.clock.Age(meta.Timestamp), time.Now())
	}
	return l, nil
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
	l.free, l.share = 1, time.Now() // the claim may be older
	defer l.returnSlots()
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
		l.throwAway() // what was refused
		if l.active > 0 || l.wanting || l.schedule.len() > 0 && time.Now().Before(l.givingWay) {
			l.wait(l.holder.lookPeriod())
			continue
		}
		if l.staysPaused() {
			l.waitPaused()
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
	l.throwAway()
	if errors.Is(context.Cause(l.ctx), ErrDraining) && l.lease.trusted(time.Now()) {
		l.holder.executor.Release(l.lane)
		l.nak() // what was killed may start elsewhere at once, as a further attempt
	}
}

// usedOnce reports whether the lane had one call and is likely to have no more:
// then it is released without another look into the mailbox before.
func (l *held) usedOnce() bool {
	return l.served == 1 && !l.frequent && l.caughtUp && l.active == 0 && l.schedule.len() == 0 &&
		(l.holder.options.Linger <= 0 || !l.holder.options.Lingers(l.lane)) && !l.holder.options.Keeps(l.lane)
}

// finish books the end of a call.
func (l *held) finish(f finished) {
	l.active--
	l.free++
	if !f.settled {
		f.entry.running = false
		return
	}
	l.book(f.entry)
}

// book takes a settled call out of what is in hand.
func (l *held) book(e *entry) {
	l.served++
	l.schedule.finish(e)
	l.bytes -= e.size
	l.litter = append(l.litter, e.ownMarks...)
	for _, seq := range l.marks[e.call.ID] {
		if !slices.Contains(e.ownMarks, seq) {
			l.litter = append(l.litter, seq)
		}
	}
	delete(l.marks, e.call.ID)
	if e.inline {
		l.pinned = false
	} else {
		l.litter = append(l.litter, e.seq)
	}
}

// wait waits for something to happen, at most for d.
func (l *held) wait(d time.Duration) {
	if l.mail.subscription == nil {
		if l.served >= listensAfter && l.mail.listen() {
			return // what was stored before has to be read
		}
		d = min(d, l.hintAfter())
	}
	if left := time.Until(l.givingWay); left > 0 {
		d = min(d, left)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case f := <-l.finished:
		l.finish(f)
	case granted := <-l.granted:
		l.wanting = false
		if granted {
			l.free++
		}
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

// hintAfter is how long the lane waits before it listens.
func (l *held) hintAfter() time.Duration {
	if l.served == 0 && !l.frequent && l.schedule.len() == 1 {
		return firstHintAfter
	}
	return hintAfter
}

// linger keeps an idle lane for a while: long when its sandbox is to stay warm,
// a moment when the lane is used again and again. It reports true when there may
// be work again.
func (l *held) linger() bool {
	d := l.holder.options.Linger
	if l.holder.options.Keeps(l.lane) {
		d, l.idleSince = 2*lookPeriodMax, time.Time{} // asked again before that
	} else if l.holder.mayLinger(l.lane) {
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
	timer := time.NewTimer(max(0, min(d-time.Since(l.idleSince), l.holder.lookPeriod())))
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

// complain logs trouble once until it is over.
func (l *held) complain(msg string, err error) {
	if !l.complained {
		l.complained = true
		l.warn(msg, err)
	}
}

func (l *held) warn(msg string, err error) {
	l.holder.options.Logger.WarnContext(l.ctx, msg, slog.String("lane", string(l.lane)), slog.Any("error", err)) //nolint:sloglint // messages are constants of the callers
}

// pause waits a moment after a failure, or for the end of the lane.
func (l *held) pause() { store.Wait(l.ctx, faultPause) }

// alive reports whether the lane is still surely ours; when it is not, it is given up.
func (l *held) alive() bool {
	if l.ctx.Err() == nil && !l.lease.trusted(time.Now()) {
		l.abort(ErrLost)
	}
	return l.ctx.Err() == nil
}
