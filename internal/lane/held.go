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
	holder    *Holder
	lane      protocol.Lane
	hash      protocol.LaneHash
	ready     uint64 // stream sequence of the ready message: with delivered, the term
	delivered uint64
	doubt     doubt     // of delivered
	ack       string    // reply subject of the ready message
	stored    time.Time // the ready message, by the server's clock
	claimed   time.Time
	asked     time.Time // when the pull request was sent
	former    string    // subject of the mark of an earlier claim of this process by the same ready message; that has ended
	lease     lease

	ctx      context.Context //nolint:containedctx // the lifetime of the lease is the lane's own
	cancel   context.CancelCauseFunc
	starting context.Context //nolint:containedctx // ends when no call may start any more
	stop     context.CancelFunc
	gone     chan struct{} // closed when the lane may be claimed again here
	untold   func()        // ends that its loss is told

	// Owned by serve.
	inline    *entry // the ready message's own call, until it is in the schedule
	carries   bool   // the ready message is a call itself
	pinned    bool   // and that is not settled
	schedule  *schedule
	bytes     int
	mail      *mailbox
	timer     *time.Timer // of what it waits for
	stock     *stock      // in a cluster, from the first look on
	claim     claimMark   // in a cluster
	active    int         // calls that run
	free      int         // slots in hand that no call uses
	frequent  bool        // used a moment ago
	hasSlot   bool        // the claim came with a slot
	wanting   bool        // stands in line for a slot
	granted   chan bool
	share     time.Time // when the lane's share of the slots began
	givingWay time.Time // until then free slots are left to others
	served    int       // calls settled
	caughtUp  bool      // what is read from now on came after the claim
	fed       time.Time // when the mailbox was last read to its end, or as far as there was room
	putOff    bool      // reading it can wait
	marks     map[protocol.CallID][]uint64
	litter    []uint64  // messages that nobody needs any more
	thrown    time.Time // when removals were last sent that nobody answers; zero when there are none
	handbacks []uint64  // marks of this ready message's deliveries
	// misleading are marks of deliveries that were counted by an earlier consumer. They are gone before anything starts.
	misleading []uint64
	handed     bool      // also those of them were read that are beyond what is in hand
	due        time.Time // when a call that waits may have to be answered; zero when none does
	finished   chan finished
	idleSince  time.Time // when it had nothing to do; zero while it has
	forgotten  bool

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
		claimed: time.Now(), asked: since, gone: make(chan struct{}), schedule: newSchedule(),
		marks: map[protocol.CallID][]uint64{}, finished: make(chan finished), granted: make(chan bool, 1),
	}
	l.mail = newMailbox(h.store, h.options.Fleet, h.options.Pool, l.hash)
	l.lease.length, l.lease.since = h.Lease(), since
	l.lease.shared, l.lease.last = h.store.Clustered(), since
	l.stored = meta.Timestamp
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
		l.carries, l.pinned = true, true
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background()) //nolint:forbidigo // ends with the lease, not with a caller
	l.starting, l.stop = context.WithCancel(l.ctx)
	l.doubt = h.books.doubtConsumer(meta.Timestamp)
	if !h.store.Clustered() { // a cluster writes deliveries down before it makes them
		l.doubt = max(l.doubt, h.books.doubt(h.store.NC.ConnectedServerId(), meta.Timestamp))
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
	defer func() { // when it is lost with them
		l.over(mailboxTrouble, l)
		l.over(releaseTrouble, l)
	}()
	l.timer = time.NewTimer(time.Hour)
	defer l.timer.Stop()
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
		if err := l.feed(); errors.Is(err, errRival) {
			l.warn("lane is left to another worker", err)
			l.abort(ErrLost)
			continue
		} else if err != nil {
			l.complain(mailboxTrouble, l, err)
			l.freeSlots() // others may run meanwhile, and make the room that a full stream lacks
			l.pause()
			continue
		}
		l.over(mailboxTrouble, l)
		l.start()
		l.throwAway() // what was refused
		if l.putOff && !l.hasTime() {
			continue
		}
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

func (l *held) warn(msg string, err error) {
	l.holder.options.Logger.WarnContext(l.ctx, msg, slog.String("lane", string(l.lane)), slog.Any("error", err)) //nolint:sloglint // messages are constants of the callers
}

// alive reports whether the lane is still surely ours; when it is not, it is given up.
func (l *held) alive() bool {
	if l.ctx.Err() == nil && !l.lease.trusted(time.Now()) {
		l.abort(ErrLost)
	}
	return l.ctx.Err() == nil
}
