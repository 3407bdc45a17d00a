package lane

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// window bounds the calls of a lane that are in hand; windowBytes their bodies.
const (
	window      = 256
	windowBytes = 32 << 20
)

// held is a lane while this process holds it. One goroutine (serve) owns it; calls run
// in goroutines of their own and report to it.
type held struct {
	holder *Holder
	life   *life
	lane   protocol.Lane
	hash   protocol.LaneHash
	ready  *readyMessage
	claim  *claim
	since  time.Time // when it was claimed

	ctx      context.Context //nolint:containedctx // the lifetime of the claim is the lane's own
	cancel   context.CancelCauseFunc
	starting context.Context //nolint:containedctx // ends when no call may start any more
	stop     context.CancelFunc
	gone     chan struct{} // closed when the lane may be claimed again here

	// Owned by serve.
	schedule  *core.Schedule
	mail      *mailbox
	first     firstRead
	ahead     ahead
	seat      seat
	garbage   garbage
	bytes     int         // of the calls in hand
	active    int         // calls that run
	served    int         // calls settled
	frequent  bool        // used a moment ago
	due       time.Time   // when a call that waits may have to be answered; zero when none does
	killed    bool        // calls that ran have no result
	parked    bool        // the consumer does not deliver the ready message once more
	lacks     *Need       // what a call needs that this worker has not; nil when it has all
	timer     *time.Timer // of what it waits for
	idleSince time.Time   // when it had nothing to do; zero while it has
	finished  chan finished
	forgotten bool

	// redelivered is where to park the ready message after it was delivered once more; nil when it
	// was not.
	redelivered atomic.Pointer[string]
	oversight   oversight

	mu sync.Mutex // guards Cancelled and Stop of entries, and what oversight counts
}

// firstRead is what a lane's holder has found out about the time before its claim.
type firstRead struct {
	inline   *core.Entry // the ready message's own call, until it is in the schedule
	pinned   bool        // that call is not settled, so the ready message has to stay
	snapshot *snapshot   // in a cluster, from the first look on
	caughtUp bool        // what is read from now on came after the claim
	fed      time.Time   // when the mailbox was last read to its end, or as far as there was room
	putOff   bool        // reading it can wait
	checked  bool        // the ready message was there after the claim
}

// finished reports the end of a call's goroutine, which brings its slot back.
type finished struct {
	entry   *core.Entry
	settled bool // its result is stored
}

// newHeld is a lane that is about to be claimed by a ready message, with a slot.
func newHeld(h *Holder, life *life, ready *readyMessage) *held {
	l := &held{
		holder: h, life: life, lane: ready.lane, hash: ready.hash, ready: ready,
		claim: h.newClaim(life, ready), since: time.Now(), gone: make(chan struct{}),
		schedule: core.NewSchedule(), seat: newSeat(), garbage: newGarbage(), ahead: newAhead(h.store),
		mail:     newMailbox(h.store, h.options.Fleet, h.options.Pool, ready.hash),
		finished: make(chan finished),
	}
	l.ctx, l.cancel = context.WithCancelCause(life.ctx)
	l.starting, l.stop = context.WithCancel(l.ctx)
	return l
}

// abort ends the lane at once, from any goroutine: what runs is killed.
func (l *held) abort(cause error) { l.cancel(cause) }

// drain lets what runs finish and starts nothing more, from any goroutine.
func (l *held) drain() { l.stop() }

// serve holds the lane until it is idle, handed back or lost.
func (l *held) serve() {
	defer l.cancel(nil)
	defer l.stop()
	defer l.mail.close()
	defer func() { // when it is lost with them
		l.over(mailboxTrouble, l)
		l.over(releaseTrouble, l)
	}()
	l.timer = time.NewTimer(time.Hour)
	defer l.timer.Stop()
	defer l.returnSlots()
	if err := l.openReady(); err != nil {
		l.warn("ready message holds a call that can neither be run nor answered", err)
	}
	for l.ctx.Err() == nil {
		if l.step() {
			return
		}
	}
	for l.active > 0 { // the context has ended: they are being killed
		l.finish(<-l.finished)
	}
	l.throwAway()
	if errors.Is(context.Cause(l.ctx), ErrDraining) && l.life.trusted(time.Now()) {
		l.holder.executor.Release(l.lane)
		l.handOver(true) // what was killed may start elsewhere at once, as a further attempt
	}
}

// step does what there is to do and waits for something to happen. It reports true when the lane
// was let go.
func (l *held) step() (left bool) {
	if l.usedOnce() {
		return l.leave()
	}
	switch err := l.feed(); {
	case errors.Is(err, errNotReady):
		l.letGo(func() error { return nil })
		return true
	case err != nil:
		l.complain(mailboxTrouble, l, err)
		l.freeSlots() // others may run meanwhile, and make the room that a full stream lacks
		l.pause()
		return false
	}
	l.over(mailboxTrouble, l)
	l.start()
	l.throwAway() // what was refused
	switch {
	case l.first.putOff && !l.hasTime():
	case l.active > 0 || l.seat.wanting || l.schedule.Len() > 0 && time.Now().Before(l.seat.givingWay):
		l.wait(l.holder.lookPeriod())
	case l.staysPaused():
		l.waitPaused()
	case l.starting.Err() == nil && l.schedule.Len() == 0 && l.linger():
	default:
		return l.leave()
	}
	return false
}

// openReady reads the call that the ready message may be.
func (l *held) openReady() error {
	if len(l.ready.body) == 0 {
		return nil
	}
	e, err := l.entry(l.ready.header, l.ready.body)
	if err != nil {
		return err
	}
	e.Seq, e.Accepted, e.Inline = l.ready.seq, l.ready.stored, true
	l.first.inline, l.first.pinned = e, true
	return nil
}

// parkLeases is for how many leases the consumer does not deliver the ready message of a held lane
// once more; that costs a look at the claim.
const parkLeases = 60

// parkAfter is for how long a lane is held until its ready message is parked: most are released
// sooner, and the consumer delivers it again after a lease.
func (l *held) parkAfter() time.Duration { return l.holder.lease / 4 }

// inlineID is the id of the call that the ready message is; "" when it is none.
func (l *held) inlineID() protocol.CallID {
	return protocol.CallID(l.ready.header.Get(protocol.HeaderCall))
}

// park keeps the consumer from delivering the ready message again while the lane is held, once that
// has become likely.
func (l *held) park() {
	ack := l.redelivered.Swap(nil)
	if ack == nil {
		if l.parked || time.Since(l.since) < l.parkAfter() {
			return
		}
		ack = &l.ready.ack
	}
	l.parked = true
	l.holder.store.Park(*ack, parkLeases*l.holder.lease)
}

// usedOnce reports whether the lane had one call and is likely to have no more:
// then it is released without another look into the mailbox before.
func (l *held) usedOnce() bool {
	return l.served == 1 && !l.frequent && l.first.caughtUp && l.active == 0 && l.schedule.Len() == 0 &&
		(l.holder.options.Linger <= 0 || !l.holder.options.Lingers(l.lane)) && !l.holder.options.Keeps(l.lane)
}

// finish books the end of a call.
func (l *held) finish(f finished) {
	l.active--
	l.seat.free++
	if !f.settled {
		f.entry.Running = false
		return
	}
	l.book(f.entry)
}

// book takes a settled call out of what is in hand.
func (l *held) book(e *core.Entry) {
	l.served++
	l.schedule.Finish(e)
	l.bytes -= e.Size
	l.garbage.settled(e)
	l.ahead.drop(e)
	if e.Inline {
		l.first.pinned = false
	}
}

func (l *held) warn(msg string, err error) {
	l.holder.options.Logger.WarnContext(l.ctx, msg, slog.String("lane", string(l.lane)), slog.Any("error", err)) //nolint:sloglint // messages are constants of the callers
}

// alive reports whether the lane is still surely ours; when it is not, it is given up.
func (l *held) alive() bool {
	if l.ctx.Err() == nil && !l.life.trusted(time.Now()) {
		l.abort(ErrLost)
	}
	return l.ctx.Err() == nil
}
