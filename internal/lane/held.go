package lane

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// window bounds the calls of a lane that are in hand; windowBytes their bodies.
const (
	window      = 256
	windowBytes = 32 << 20
)

// held is a lane while this process holds it. One goroutine (serve) owns it; calls run in
// goroutines of their own and report to it.
type held struct {
	*tenure

	holder   *Holder
	running  running
	marks    marks
	schedule *core.Schedule
	mail     *mailbox
	ahead    ahead
	seat     seat
	garbage  garbage
	use      use
	lacks    *Need // what a call needs that this worker has not; nil when it has all
}

// running is the calls of a lane that are executed. Any goroutine may look at it.
type running struct {
	finished chan finished // one message for each call whose goroutine ends

	mu    sync.Mutex // guards Cancelled and Stop of entries, too
	calls []ongoing
}

// finished reports the end of a call's goroutine, which brings its slot back.
type finished struct {
	entry   *core.Entry
	settled bool // its result is stored
}

// ongoing is a call while it is executed here.
type ongoing struct {
	call    *protocol.Call
	attempt int
	since   time.Time
}

// use is how much a lane is used.
type use struct {
	served int       // calls settled since the lane was last idle for long
	idle   time.Time // when the lane had nothing to do; zero while it has
}

func newHeld(h *Holder, life *life, ready *readyMessage) *held {
	return &held{
		tenure: newTenure(life, ready, h.newClaim(life, ready)), holder: h,
		schedule: core.NewSchedule(), seat: newSeat(), garbage: newGarbage(), ahead: newAhead(h.store),
		mail:    newMailbox(h.store, h.options.Pool, ready.hash),
		running: running{finished: make(chan finished)},
	}
}

// serve holds the lane until it is idle, handed back or lost. It reports whether it let the lane
// go.
func (l *held) serve() (left bool) {
	defer l.cancel(nil)
	defer l.mail.close()
	defer l.returnSlots()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	l.openReady()
	stopping := l.starting.Done()
	for l.ctx.Err() == nil {
		wait, err := l.work()
		switch {
		case errors.Is(err, store.ErrNotReady):
			l.letGo(false, nil)
			return true
		case err != nil:
			l.complain("mailbox cannot be read", err)
			l.freeSlots() // others may run meanwhile, and make the room that a full stream lacks
			wait = faultPause
		case wait == nothingToDo:
			if l.leave() {
				return true
			}
			continue
		}
		timer.Reset(wait)
		select {
		case f := <-l.running.finished:
			l.finish(f)
		case granted := <-l.seat.granted:
			l.seat.take(granted)
		case <-l.mail.wake:
			l.cancelRequested()
		case <-timer.C: // a copy may have got lost
			l.mail.listen()
			l.mail.refresh()
		case <-stopping:
			stopping = nil
		case <-l.ctx.Done():
		}
		l.finishOthers()
	}
	return l.lose()
}

// lose waits for what is being killed because the lane was lost, or the holder drains. In the
// second case it may start elsewhere at once, as a further attempt.
func (l *held) lose() (left bool) {
	for l.seat.used > 0 {
		l.finish(<-l.running.finished)
	}
	if !errors.Is(context.Cause(l.ctx), ErrDraining) || !l.life.trusted(time.Now()) {
		return false
	}
	l.holder.host.Release(l.lane)
	l.letGo(true, l.redeliver)
	return true
}

// nothingToDo says that the lane can be let go.
const nothingToDo = time.Duration(-1)

// work does what there is to do, and tells how long it may take until there is more.
func (l *held) work() (time.Duration, error) {
	if l.use.served > 0 && l.isIdle() && !l.mail.listens() && l.idleFor() == 0 {
		return nothingToDo, nil // a look follows that finds what came meanwhile
	}
	if l.cancelRequested(); l.mail.isDeep() && !l.marks.asked.Load() {
		l.start() // reading goes on beside it
	}
	if err := l.feed(); err != nil {
		return 0, err
	}
	l.start()
	switch {
	case l.seat.used > 0 || l.seat.wanting || l.schedule.Len() > 0 && l.seat.givesWay(time.Now()):
		return l.waitBusy(), nil
	case l.isStopping():
	case l.schedule.Len() == 0:
		return l.waitIdle(), nil
	case l.marks.paused.Load():
		return l.waitBusy(), nil
	}
	return nothingToDo, nil
}

func (l *held) isIdle() bool {
	return l.seat.used == 0 && !l.seat.wanting && l.schedule.Len() == 0 && l.ready.call == nil && l.mail.caughtUp
}

const (
	// hintAfter is how long a lane waits before it listens for new entries: most calls are over
	// sooner, and listening has a price.
	hintAfter = 2 * time.Millisecond
	// firstHintAfter is the same for the only call of a lane that was idle before: most such lanes
	// have no second one while it runs.
	firstHintAfter = 20 * time.Millisecond
	// listensAfter is after how many calls a lane listens although it never had to wait so long.
	listensAfter = 8
	// lookPeriod is how often a held lane looks into its mailbox without a hint, at most: where
	// many lanes are held, they look less often, so that all together make no more than about a
	// hundred looks a second; or ten, on a server that republishes everything to it.
	lookPeriod       = time.Second
	lookPeriodMax    = 30 * time.Second
	looksRepublished = 100 * time.Millisecond
	looksHinted      = 10 * time.Millisecond
	// faultPause is the pause after an operation of the server failed.
	faultPause = 100 * time.Millisecond
)

// waitBusy is how long a lane with calls may wait for one of them to end, or for others to come.
func (l *held) waitBusy() time.Duration {
	l.use.idle = time.Time{}
	wait := l.holder.lookPeriod()
	switch {
	case l.mail.listens():
	case l.use.served >= listensAfter:
		l.mail.listen()
		return 0 // what was stored before has to be read
	case l.use.served == 0 && l.schedule.Len() == 1:
		wait = firstHintAfter
	default:
		wait = hintAfter
	}
	if way := time.Until(l.seat.share); way > 0 {
		wait = min(wait, way)
	}
	if !l.marks.due.IsZero() {
		wait = min(wait, time.Until(l.marks.due))
	}
	return max(wait, 0)
}

// waitIdle is how long an idle lane is kept: long when its sandbox is to stay warm, a moment when
// the lane is used again and again.
func (l *held) waitIdle() time.Duration {
	keep := l.idleFor()
	switch {
	case keep == 0:
		return nothingToDo
	case !l.mail.listens():
		if l.mail.listen() {
			return 0 // entries may have come before
		}
		return faultPause
	case l.use.idle.IsZero():
		l.use.idle = time.Now()
	}
	if keep -= time.Since(l.use.idle); keep <= 0 {
		return nothingToDo
	}
	return min(keep, l.holder.lookPeriod())
}

func (l *held) idleFor() time.Duration {
	o := &l.holder.options
	switch {
	case l.holder.host.MustHold(l.lane):
		l.use.idle = time.Time{} // asked again
		return 2 * lookPeriodMax
	case o.Linger > 0 && l.holder.host.MayLinger(l.lane) && l.holder.Held() <= o.Slots+maxLingering:
		return o.Linger
	case l.use.served > 1:
		return keepTime
	}
	return 0
}

// lookPeriod is how often each held lane looks into its mailbox without a hint.
func (h *Holder) lookPeriod() time.Duration {
	share := looksHinted
	if h.store.Consistency().TellsAll() {
		share = looksRepublished
	}
	return min(max(time.Duration(h.Held())*share, lookPeriod), lookPeriodMax)
}

func (l *held) finish(f finished) {
	l.seat.used--
	l.seat.free++
	if !f.settled {
		f.entry.Running = false
		return
	}
	l.conclude(f.entry)
}

func (l *held) finishOthers() {
	for {
		select {
		case f := <-l.running.finished:
			l.finish(f)
		default:
			return
		}
	}
}

func (l *held) conclude(e *core.Entry) {
	l.use.served++
	l.schedule.Finish(e)
	l.discardCall(e)
	l.ahead.drop(e)
}

// leave gives the lane up when nothing of it runs. It reports false when the attempt failed and the
// lane is still held.
func (l *held) leave() bool {
	l.holder.host.Release(l.lane) // before anybody else can claim the lane
	if !l.tries(sweepTrouble, l.sweep) {
		return false
	}
	switch {
	case l.lacks != nil:
		l.letGo(false, l.offer)
		return true
	case l.pinned() || l.unresolved():
		l.letGo(false, l.redeliver)
		return true
	}
	return l.release()
}

// unresolved reports whether entries wait that a holder before this one, which was lost, may have
// started: only the claim says so to the next holder.
func (l *held) unresolved() bool {
	return l.schedule.Unresolved(l.claim.Interrupted, l.mail.caughtUp)
}

// release lets the lane go in which nothing waits, or which goes to the end of the line. It reports
// false when the lane is lost before it begins.
func (l *held) release() bool {
	if !l.isFresh() { // removing what does not matter any more took its time; this removal matters
		return false
	}
	core.Release(leaver{l})
	return true
}

// leaver is a lane that is let go.
type leaver struct{ *held }

// RemoveReady implements [core.Leaver]. From the first try on, the ready message may be gone, and a
// new one with a call of its own be there.
func (l leaver) RemoveReady() bool {
	for {
		err := l.holder.store.Remove(l.ctx, l.ready.seq)
		if err == nil {
			return true
		}
		l.complain("ready message cannot be removed", err)
		if pause.For(l.ctx, faultPause); !l.isFresh() {
			return false
		}
	}
}

// Look implements [core.Leaver].
func (l leaver) Look() (found, ok bool) {
	ok = l.tries("last look into the mailbox failed", func() (err error) {
		found, err = l.holder.store.Waits(l.ctx, l.holder.options.Pool, l.hash)
		return err
	})
	return found, ok
}

// MakeReady implements [core.Leaver].
func (l leaver) MakeReady() bool {
	return l.tries("lane cannot be made ready", func() error {
		_, err := l.holder.store.MakeReady(l.ctx, l.holder.options.Pool, l.lane)
		return err
	})
}

// RemoveClaim implements [core.Leaver].
func (l leaver) RemoveClaim() {
	l.holder.store.DropClaim(l.claim.epoch.Load())
	l.holder.store.Settle(l.ready.ack)
}

// tries does something until it succeeds. It reports false when the lane is lost before.
func (l *held) tries(trouble string, do func() error) bool {
	for l.alive() {
		err := do()
		if err == nil {
			return true
		}
		if !l.alive() {
			return false
		}
		l.complain(trouble, err)
		pause.For(l.ctx, faultPause)
	}
	return false
}

func (l *held) redeliver(ctx context.Context) error {
	return l.holder.store.Redeliver(ctx, l.holder.options.Pool, l.ready.seq)
}

// letGo removes the claim and then has the lane delivered to somebody, if deliver is not nil. Where
// calls may have been started that have no result, as those that were killed, the claim stays
// without an owner and says so. What fails is tried again until this life ends, and the claim with
// it.
func (l *held) letGo(killed bool, deliver func(context.Context) error) {
	s := l.holder.store
	tries := func(do func(context.Context) error) bool {
		for l.life.trusted(time.Now()) && !s.NC.IsClosed() {
			err := do(l.life.ctx)
			if err == nil {
				return true
			}
			l.complain("lane cannot be handed over", err)
			pause.For(l.life.ctx, faultPause)
		}
		return false
	}
	left := l.claim.Claim
	left.Interrupted = killed || l.unresolved()
	if tries(func(ctx context.Context) error { // should this worker be lost, or its word, before it has the lane delivered
		return s.RedeliverAfter(ctx, l.holder.options.Pool, l.holder.lease, l.ready.seq)
	}) && tries(func(ctx context.Context) error {
		return s.EndClaim(ctx, l.holder.options.Pool, left, l.claim.epoch.Load())
	}) && deliver != nil {
		l.holder.forget(l) // it may be delivered here
		tries(deliver)
	}
}

// Nobody answers the removal of what is settled: that would cost the server more than the removal.
// So one may get lost. Before the lane is let go it is found out which are left, and these are
// removed for sure: on several servers whoever claims the lane next believes what is there.

// garbage is the messages of a lane's mailbox that nobody needs any more, or will not need when
// their call is settled.
type garbage struct {
	settled settledCalls
	thrown  map[uint64]protocol.CallID   // whose removal nobody answers; "" is of no call
	marks   map[protocol.CallID][]uint64 // of calls in hand
}

func newGarbage() garbage {
	return garbage{thrown: map[uint64]protocol.CallID{}, marks: map[protocol.CallID][]uint64{}}
}

// settledCalls are the calls that were settled in this hold, the last few thousand of them: one
// that is sent again does not run again, also where an old answer hides its result.
type settledCalls struct {
	last, before map[protocol.CallID]struct{}
}

// maxSettled bounds each half of them.
const maxSettled = 4096

func (s *settledCalls) add(call protocol.CallID) {
	if s.last == nil || len(s.last) >= maxSettled {
		s.last, s.before = map[protocol.CallID]struct{}{}, s.last
	}
	s.last[call] = struct{}{}
}

func (s *settledCalls) has(call protocol.CallID) bool {
	_, last := s.last[call]
	_, before := s.before[call]
	return last || before
}

const sweepTrouble = "what is settled cannot be removed"

// maxThrown bounds the removals of which it is not known whether they were applied.
const maxThrown = 1024

func (g *garbage) isMuch() bool { return len(g.thrown) >= maxThrown }

func (l *held) discard(call protocol.CallID, seq uint64) {
	l.holder.store.ThrowAway(seq)
	l.garbage.thrown[seq] = call
}

func (l *held) discardCall(e *core.Entry) {
	id := e.Call.ID
	for _, seq := range slices.Concat(e.OwnMarks, l.garbage.marks[id]) {
		l.discard(id, seq)
	}
	delete(l.garbage.marks, id)
	l.garbage.settled.add(id)
	if !e.Inline {
		l.discard(id, e.Seq)
	}
}

// sweep removes what is left of what was thrown away, and returns when it is gone.
func (l *held) sweep() error {
	if len(l.garbage.thrown) == 0 {
		return nil
	}
	s := l.holder.store
	left, err := s.Left(l.ctx, l.mail.filter(), max(l.ready.seq, l.mail.cursor, 1)-1, l.garbage.thrown)
	if err != nil {
		return err
	}
	if err := s.Remove(l.ctx, left...); err != nil {
		return err
	}
	clear(l.garbage.thrown)
	return nil
}
