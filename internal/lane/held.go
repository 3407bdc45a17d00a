package lane

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// heldLane is a lane while this process holds it. One goroutine (serve) owns it, and none while it
// is parked; each call runs in a goroutine of its own and reports to that one.
type heldLane struct {
	*ownership

	holder         *Holder
	running        running
	control        control
	schedule       *core.Schedule
	mail           *mailbox
	lookups        earlyLookups
	slots          laneSlots
	garbage        garbage
	usage          usage
	limit          laneLimit
	parking        parking
	stopLossNotice func() // ends the notification of a loss
	blocked
}

// blocked is what the calls of a lane wait for that do not run.
type blocked struct {
	waits    core.WaitClock
	ended    endedCalls
	after    laneAfter
	awaits   atomic.Pointer[awaited] // which call or retry the lane waits for
	slotless atomic.Bool             // the next call waits for a slot
	unmet    *Requirements           // requirements of a call that this worker cannot run; nil if it can run all
	// retryAt is when the first call that failed may be started again, if nothing else holds it up.
	retryAt time.Time
}

// endedCall is a call of a lane that ended.
type endedCall struct {
	core.Earlier

	uses []protocol.Use
	at   time.Time
}

// endedCalls are the calls of a lane that ended last, also in the hold before, if it was here.
type endedCalls []endedCall

// maxEnded bounds them. More calls end before a later one is read only if they conflict little.
const maxEnded = 4

func (c *endedCalls) add(e endedCall) {
	if len(*c) == maxEnded {
		*c = (*c)[:copy(*c, (*c)[1:])]
	}
	*c = append(*c, e)
}

// noteHolder notes that a call which has ended held up one that starts, although that was read
// later: it conflicts with it, and ended after that was accepted.
func (l *heldLane) noteHolder(e *core.Entry, now time.Time) {
	if e.HeldBy.ID != "" || len(l.ended) == 0 {
		return
	}
	age := l.holder.clock.AgeAt(now, e.Accepted)
	for _, ended := range slices.Backward(l.ended) {
		held := age - now.Sub(ended.at)
		if held < 0 {
			return
		}
		if earlier := (protocol.Call{Resources: ended.uses}); earlier.ConflictsWith(e.Call) {
			e.HeldBy, e.HeldFor = ended.Earlier, held
			return
		}
	}
}

// running is the calls of a lane that are being executed. Any goroutine may read it under mu.
type running struct {
	finished chan finished // one message for each call whose goroutine ended

	mu    sync.Mutex // also guards Cancelled and Stop of entries
	calls []ongoing
}

// finished reports that a call's goroutine has ended and gives back its slot.
type finished struct {
	entry   *core.Entry
	settled bool // the result is stored
}

// ongoing is one call that is being executed.
type ongoing struct {
	call    *protocol.Call
	attempt int
	since   time.Time
	waits   protocol.Waits
}

// usage is how often a lane is used; it decides how long an idle lane stays held.
type usage struct {
	served int       // calls settled since the lane was last idle for long
	idle   time.Time // when the lane had nothing to do; zero while it has
}

func newHeldLane(h *Holder, inc *incarnation, ready *readyMessage) *heldLane {
	l := &heldLane{
		ownership: newOwnership(h.options.Worker, inc, ready), holder: h,
		schedule: core.NewSchedule(), slots: newLaneSlots(h.slots), garbage: newGarbage(h.store), lookups: newEarlyLookups(h.store),
		running: running{finished: make(chan finished)}, blocked: blocked{ended: h.recent[ready.hash].ended},
	}
	l.mail = newMailbox(h.store, h.copies, h.options.Pool, ready.hash, l.unpark)
	return l
}

// serve runs the lane's calls until the lane is idle, handed over or lost, or parked. It reports
// whether it released the lane. Each round starts what may start, and then waits for the first of:
// a call ends, a slot is granted, a message is republished, time for the next read, the drain
// begins, the lane is lost.
func (l *heldLane) serve() (left, parked bool) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	select {
	case <-l.mail.wake: // it may have ended the parking
		l.applyCancels()
	default:
	}
	if l.parking.wasDue() {
		l.requestRead()
	}
	stopping := l.starting.Done()
	if l.isStopping() {
		stopping = nil
	}
	for l.ctx.Err() == nil {
		wait, err := l.work()
		switch {
		case errors.Is(err, store.ErrNotReady):
			l.handOver(false, nil)
			return true, false
		case err != nil:
			l.logRetry("mailbox cannot be read", err)
			l.slots.releaseFree() // calls of other lanes may end and make room in a full stream
			wait = pause.Retry
		case wait == nothingToDo:
			if l.tryRelease() {
				return true, false
			}
			continue
		}
		if wait >= parkFrom && l.slots.used == 0 && !l.slots.queued && stopping != nil {
			l.park(wait)
			return false, true
		}
		timer.Reset(wait)
		select {
		case f := <-l.running.finished:
			l.onFinished(f)
		case granted := <-l.slots.granted:
			l.slots.onGranted(granted)
		case <-l.mail.wake:
			l.applyCancels()
		case <-timer.C:
			l.requestRead()
		case <-stopping:
			stopping = nil
		case <-l.ctx.Done():
		}
		l.drainFinished()
	}
	return l.finishLost(), false
}

// requestRead makes the next round read the mailbox: a republished message may be lost.
func (l *heldLane) requestRead() {
	l.mail.listen()
	l.mail.refresh()
}

// close ends what serve has begun.
func (l *heldLane) close() {
	l.holder.awaited.removeLane(l)
	l.stop()
	l.slots.close()
	l.mail.close()
	l.cancel(nil)
}

// parkFrom is the least time of a wait in which a lane without running calls has no goroutine.
const parkFrom = readPeriod / 2

// parking is a lane that waits without a goroutine, because its stack would be most of what a lane
// takes that waits.
type parking struct {
	mu     sync.Mutex
	parked bool
	due    bool        // the time has passed
	timer  *time.Timer // ends the wait after a time
	ended  func() bool // no longer ends it with the context of starting
}

// park has serve run again when the time has passed, the lane is notified, or it has to stop.
func (l *heldLane) park(wait time.Duration) {
	p := &l.parking
	p.mu.Lock()
	p.parked = true
	p.timer = time.AfterFunc(wait, func() {
		p.mu.Lock()
		p.due = true
		p.mu.Unlock()
		l.unpark()
	})
	p.ended = context.AfterFunc(l.starting, l.unpark)
	p.mu.Unlock()
	if len(l.mail.wake) > 0 { // it was notified before it was parked
		l.unpark()
	}
}

// unpark ends the wait of a parked lane, from any goroutine.
func (l *heldLane) unpark() {
	p := &l.parking
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.parked {
		return
	}
	p.parked = false
	p.timer.Stop()
	p.ended()
	go l.holder.serve(l)
}

// wasDue reports whether the lane was parked until the time had passed.
func (p *parking) wasDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.due
	p.due = false
	return due
}

// nothingToDo says that the lane can be released.
const nothingToDo = time.Duration(-1)

// work reads the mailbox and starts calls, and returns how long to wait for more.
func (l *heldLane) work() (time.Duration, error) {
	if l.usage.served > 0 && l.isIdle() && !l.mail.listens() && l.lingerFor() == 0 {
		return nothingToDo, nil // the last look of the release finds what came meanwhile
	}
	l.applyEnded()
	if l.applyCancels(); l.mail.isDeep() && !l.control.queried.Load() {
		l.start() // before the long read
	}
	if err := l.readMailbox(); err != nil {
		return 0, err
	}
	l.start()
	switch {
	case l.slots.used > 0 || l.slots.queued || l.schedule.Len() > 0 && l.slots.isYielding(time.Now()):
		return l.waitBusy(), nil
	case l.isStopping():
	case !l.schedule.RetryAt().IsZero() || len(l.schedule.Awaiting()) > 0:
		return l.waitBusy(), nil
	case l.schedule.Len() == 0:
		return l.waitIdle(), nil
	case l.control.paused.Load() || !l.limit.until.IsZero():
		return l.waitBusy(), nil
	}
	return nothingToDo, nil
}

func (l *heldLane) isIdle() bool {
	return l.slots.used == 0 && !l.slots.queued && l.schedule.Len() == 0 && l.ready.call == nil && l.mail.caughtUp
}

// start starts the calls that may run, and notes what the others wait for.
func (l *heldLane) start() {
	l.startCalls()
	now, wait := time.Now(), core.WaitsForNothing
	l.noteAwaiting(now)
	switch {
	case l.schedule.Len() <= l.slots.used:
	case l.control.paused.Load():
		wait = core.WaitsForResume
	case l.limit.wait == core.BlockedConcurrent:
		wait = core.WaitsForLimit
	case l.limit.wait == core.BlockedRate:
		wait = core.WaitsForRate
	case l.slots.queued || l.slots.isYielding(now):
		wait = core.WaitsForSlot
	}
	l.waits.Set(wait, now)
	if l.slotless.Store(wait == core.WaitsForSlot); wait == core.WaitsForNothing {
		return
	}
	for _, e := range l.schedule.Startable() {
		l.waits.Free(e, now)
	}
}

// startCalls starts the calls that may run, as far as there are slots.
func (l *heldLane) startCalls() {
	l.refuseDue()
	l.retryAt = time.Time{}
	if !l.isStopping() && !l.control.paused.Load() && !l.isLimited() && !l.yields() {
		for _, e := range l.schedule.Startable() {
			if time.Now().Before(e.RetryAt) {
				if l.retryAt.IsZero() || e.RetryAt.Before(l.retryAt) {
					l.retryAt = e.RetryAt
				}
				continue
			}
			if !l.canRun(e) {
				if l.skipSettled(e) {
					l.startCalls() // more calls may be startable now
					return
				}
				continue
			}
			if l.isLimited() {
				break
			}
			if l.slots.free == 0 && !l.slots.queued && l.holder.slots.tryAcquire() {
				l.slots.free++
			}
			if l.slots.unspent == 0 && l.slots.free > 0 && !l.holder.slots.mayReuse(l.tenant()) {
				l.slots.releaseFree()
			}
			if l.slots.free == 0 {
				l.slots.request(l.starting, l.tenant())
				break
			}
			l.slots.unspent = max(l.slots.unspent-1, 0)
			lookup := l.lookups.lookupFor(e, l.schedule.Entries())
			e.Running = true
			now := time.Now()
			l.waits.Start(e, now)
			l.noteHolder(e, now)
			l.limit.reserve(e)
			l.slots.free--
			l.slots.used++
			go func() { l.running.finished <- finished{entry: e, settled: l.attempt(e, lookup)} }()
		}
	}
	if l.unmet != nil { // running calls end first
		l.stop()
	}
	l.slots.releaseFree()
}

func (l *heldLane) onFinished(f finished) {
	l.slots.used--
	l.slots.free++
	l.limit.cancel(f.entry)
	if !f.settled {
		f.entry.Running = false
		l.noteDue(f.entry)
		l.control.hasCancels = l.control.hasCancels || f.entry.Cancelled
		return
	}
	l.finishEntry(f.entry)
}

func (l *heldLane) drainFinished() {
	for {
		select {
		case f := <-l.running.finished:
			l.onFinished(f)
		default:
			return
		}
	}
}

func (l *heldLane) finishEntry(e *core.Entry) {
	l.usage.served++
	l.ended.add(endedCall{core.EarlierOf(e.Call), e.Call.Resources, time.Now()})
	l.schedule.Finish(e)
	l.garbage.discardCall(e)
	l.lookups.remove(e)
}

const (
	// hintAfter is how long a lane waits before it subscribes to republished messages: most calls
	// end sooner, and a subscription has a price.
	hintAfter = 2 * time.Millisecond
	// firstHintAfter is the same for the only call of a lane that was idle before: most such lanes
	// get no second call while it runs.
	firstHintAfter = 20 * time.Millisecond
	// listensAfter is after how many calls a lane subscribes although it never had to wait so long.
	listensAfter = 8
	// readPeriod is the shortest time between two reads of a mailbox without a hint. A holder reads
	// ten mailboxes a second at most, however many lanes it holds, so that lanes which wait cost
	// nothing each: the reaper asks the holder of each call and cancel request that has waited for
	// half a second, and the pause marks of all lanes are listed together.
	readPeriod = time.Second
	readShare  = readPeriod / 10
	// mustHold is how long a lane stays held in which a program lives, until that is asked again.
	mustHold = time.Minute
)

// waitBusy is how long a lane with calls waits for one to end, or for new ones.
func (l *heldLane) waitBusy() time.Duration {
	l.usage.idle = time.Time{}
	wait := l.holder.readPeriod()
	switch {
	case l.mail.listens():
	case l.usage.served >= listensAfter:
		l.mail.listen()
		return 0 // earlier messages were not republished
	case l.usage.served == 0 && l.schedule.Len() == 1:
		wait = firstHintAfter
	default:
		wait = hintAfter
	}
	if way := time.Until(l.slots.turnBegan); way > 0 {
		wait = min(wait, way)
	}
	if !l.control.nextDue.IsZero() {
		wait = min(wait, time.Until(l.control.nextDue))
	}
	if !l.retryAt.IsZero() {
		wait = min(wait, time.Until(l.retryAt))
	}
	if !l.limit.until.IsZero() && !l.isStopping() && !l.control.paused.Load() {
		wait = min(wait, time.Until(l.limit.until))
	}
	return max(wait, 0)
}

// waitIdle is how long an idle lane stays held: for Linger if its sandbox should stay warm, for a
// moment if the lane is used often.
func (l *heldLane) waitIdle() time.Duration {
	keep := l.lingerFor()
	switch {
	case keep == 0:
		return nothingToDo
	case !l.mail.listens():
		if l.mail.listen() {
			return 0 // entries may have been stored before
		}
		return pause.Retry
	case l.usage.idle.IsZero():
		l.usage.idle = time.Now()
	}
	if keep -= time.Since(l.usage.idle); keep <= 0 {
		return nothingToDo
	}
	return min(keep, l.holder.readPeriod())
}

func (l *heldLane) lingerFor() time.Duration {
	o := &l.holder.options
	switch {
	case l.holder.host.MustHold(l.lane):
		l.usage.idle = time.Time{} // asked again
		return mustHold
	case o.Linger > 0 && l.holder.host.MayLinger(l.lane) && l.holder.Held() <= o.Slots+maxLingering:
		return o.Linger
	case l.usage.served > 1 && l.holder.Held() <= o.Slots+maxLingering:
		return retainTime
	}
	return 0
}

// readPeriod is how often each held lane reads its mailbox without a hint.
func (h *Holder) readPeriod() time.Duration {
	return max(time.Duration(h.Held())*readShare, readPeriod)
}

// retry repeats do until it succeeds. It reports false when the lane is lost first.
func (l *heldLane) retry(trouble string, do func() error) bool {
	for l.isAlive() {
		err := do()
		if err == nil {
			return true
		}
		if !l.isAlive() {
			return false
		}
		l.logRetry(trouble, err)
		pause.For(l.ctx, pause.Retry)
	}
	return false
}

func (l *heldLane) logRetry(msg string, err error) {
	l.holder.retryLog.log(l.ctx, msg, slog.String("lane", string(l.lane)), slog.Any("error", err))
}
