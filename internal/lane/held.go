package lane

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// heldLane is a lane while this process holds it. One goroutine (serve) owns it; calls run in
// goroutines of their own and report to it.
type heldLane struct {
	*ownership

	holder   *Holder
	running  running
	control  control
	schedule *core.Schedule
	mail     *mailbox
	lookups  earlyLookups
	slots    laneSlots
	garbage  garbage
	usage    usage
	unmet    *Need // what a call needs that this worker has not; nil when it has all
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

// usage is how much a lane is used.
type usage struct {
	served int       // calls settled since the lane was last idle for long
	idle   time.Time // when the lane had nothing to do; zero while it has
}

func newHeldLane(h *Holder, life *incarnation, ready *readyMessage) *heldLane {
	return &heldLane{
		ownership: newOwnership(life, ready, h.newClaim(life, ready)), holder: h,
		schedule: core.NewSchedule(), slots: newLaneSlots(), garbage: newGarbage(), lookups: newEarlyLookups(h.store),
		mail:    newMailbox(h.store, h.options.Pool, ready.hash),
		running: running{finished: make(chan finished)},
	}
}

// serve holds the lane until it is idle, handed back or lost. It reports whether it let the lane
// go.
func (l *heldLane) serve() (left bool) {
	defer l.cancel(nil)
	defer l.mail.close()
	defer l.returnSlots()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	l.decodeReady()
	stopping := l.starting.Done()
	for l.ctx.Err() == nil {
		wait, err := l.work()
		switch {
		case errors.Is(err, store.ErrNotReady):
			l.handOver(false, nil)
			return true
		case err != nil:
			l.logRetry("mailbox cannot be read", err)
			l.freeSlots() // others may run meanwhile, and make the room that a full stream lacks
			wait = retryPause
		case wait == nothingToDo:
			if l.tryRelease() {
				return true
			}
			continue
		}
		timer.Reset(wait)
		select {
		case f := <-l.running.finished:
			l.onFinished(f)
		case granted := <-l.slots.granted:
			l.slots.onGranted(granted)
		case <-l.mail.wake:
			l.applyCancels()
		case <-timer.C: // a copy may have got lost
			l.mail.listen()
			l.mail.refresh()
		case <-stopping:
			stopping = nil
		case <-l.ctx.Done():
		}
		l.drainFinished()
	}
	return l.finishLost()
}

// nothingToDo says that the lane can be let go.
const nothingToDo = time.Duration(-1)

// work does what there is to do, and tells how long it may take until there is more.
func (l *heldLane) work() (time.Duration, error) {
	if l.usage.served > 0 && l.isIdle() && !l.mail.listens() && l.lingerFor() == 0 {
		return nothingToDo, nil // a look follows that finds what came meanwhile
	}
	if l.applyCancels(); l.mail.isDeep() && !l.control.queried.Load() {
		l.start() // reading goes on beside it
	}
	if err := l.readMailbox(); err != nil {
		return 0, err
	}
	l.start()
	switch {
	case l.slots.used > 0 || l.slots.wanting || l.schedule.Len() > 0 && l.slots.isYielding(time.Now()):
		return l.waitBusy(), nil
	case l.isStopping():
	case l.schedule.Len() == 0:
		return l.waitIdle(), nil
	case l.control.paused.Load():
		return l.waitBusy(), nil
	}
	return nothingToDo, nil
}

func (l *heldLane) isIdle() bool {
	return l.slots.used == 0 && !l.slots.wanting && l.schedule.Len() == 0 && l.ready.call == nil && l.mail.caughtUp
}

// start starts what may run, as far as there are slots.
func (l *heldLane) start() {
	l.refuseDue()
	if !l.isStopping() && !l.control.paused.Load() && !l.yields() {
		for _, e := range l.schedule.Startable() {
			if !l.canRun(e) {
				if l.skipSettled(e) {
					l.start() // there may be more to start
					return
				}
				continue
			}
			if l.slots.free == 0 && !l.slots.wanting && l.holder.slots.tryAcquire() {
				l.slots.free++
			}
			if l.slots.free == 0 {
				l.requestSlot()
				break
			}
			asked := l.lookups.take(e, l.schedule.Entries())
			e.Running = true
			l.slots.free--
			l.slots.used++
			go func() { l.running.finished <- finished{entry: e, settled: l.attempt(e, asked)} }()
		}
	}
	if l.unmet != nil { // what has been started ends first
		l.stop()
	}
	l.freeSlots()
}

func (l *heldLane) onFinished(f finished) {
	l.slots.used--
	l.slots.free++
	if !f.settled {
		f.entry.Running = false
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
	l.schedule.Finish(e)
	l.discardCall(e)
	l.lookups.drop(e)
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
	// retryPause is the pause after an operation of the server failed.
	retryPause = 100 * time.Millisecond
)

// waitBusy is how long a lane with calls may wait for one of them to end, or for others to come.
func (l *heldLane) waitBusy() time.Duration {
	l.usage.idle = time.Time{}
	wait := l.holder.lookPeriod()
	switch {
	case l.mail.listens():
	case l.usage.served >= listensAfter:
		l.mail.listen()
		return 0 // what was stored before has to be read
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
	return max(wait, 0)
}

// waitIdle is how long an idle lane is kept: long when its sandbox is to stay warm, a moment when
// the lane is used again and again.
func (l *heldLane) waitIdle() time.Duration {
	keep := l.lingerFor()
	switch {
	case keep == 0:
		return nothingToDo
	case !l.mail.listens():
		if l.mail.listen() {
			return 0 // entries may have come before
		}
		return retryPause
	case l.usage.idle.IsZero():
		l.usage.idle = time.Now()
	}
	if keep -= time.Since(l.usage.idle); keep <= 0 {
		return nothingToDo
	}
	return min(keep, l.holder.lookPeriod())
}

func (l *heldLane) lingerFor() time.Duration {
	o := &l.holder.options
	switch {
	case l.holder.host.MustHold(l.lane):
		l.usage.idle = time.Time{} // asked again
		return 2 * lookPeriodMax
	case o.Linger > 0 && l.holder.host.MayLinger(l.lane) && l.holder.Held() <= o.Slots+maxLingering:
		return o.Linger
	case l.usage.served > 1:
		return keepTime
	}
	return 0
}

// lookPeriod is how often each held lane looks into its mailbox without a hint.
func (h *Holder) lookPeriod() time.Duration {
	share := looksHinted
	if h.store.Consistency().RepublishesAll() {
		share = looksRepublished
	}
	return min(max(time.Duration(h.Held())*share, lookPeriod), lookPeriodMax)
}

const (
	// quantum is how long a busy lane may keep a slot that others may want.
	quantum = time.Second
	// yieldFor is how long a lane that has to be held on then leaves free slots to others.
	yieldFor = 20 * time.Millisecond
)

// laneSlots is a lane's part of the holder's slots.
type laneSlots struct {
	free      int       // slots in hand that no call uses
	used      int       // calls that run
	wanting   bool      // stands in line for a slot
	granted   chan bool // the end of that
	turnBegan time.Time // when the lane's share of the slots began; before it, they are left to others
}

func newLaneSlots() laneSlots {
	return laneSlots{free: 1, turnBegan: time.Now(), granted: make(chan bool, 1)}
}

func (s *laneSlots) onGranted(granted bool) {
	s.wanting = false
	if granted {
		s.free++
	}
}

func (s *laneSlots) isYielding(now time.Time) bool { return now.Before(s.turnBegan) }

func (l *heldLane) freeSlots() {
	for ; l.slots.free > 0; l.slots.free-- {
		l.holder.slots.release()
	}
}

// requestSlot stands in line for one slot. Lanes stand in line, not calls: one with many calls
// takes its turn like all others.
func (l *heldLane) requestSlot() {
	if l.slots.wanting {
		return
	}
	l.slots.wanting = true
	go func() { l.slots.granted <- l.holder.slots.acquire(l.starting) == nil }()
}

func (l *heldLane) returnSlots() {
	l.stop()
	if l.slots.wanting {
		l.slots.onGranted(<-l.slots.granted)
	}
	l.freeSlots()
}

// yields reports whether a busy lane leaves its free slots to others, because it had its share
// and others wait. It is handed over, so that it goes to the end of the line, if nothing of it runs
// and it need not be held. Else it starts nothing for a moment.
func (l *heldLane) yields() bool {
	now := time.Now()
	if l.slots.isYielding(now) {
		return true
	}
	if l.schedule.Len() == 0 || now.Sub(l.slots.turnBegan) < quantum {
		return false
	}
	if !l.othersWait() {
		l.slots.turnBegan = now.Add(-quantum * 3 / 4) // asked again soon
		return false
	}
	if l.slots.used == 0 && !l.holder.host.MustHold(l.lane) && !l.unresolved() {
		l.stop()
	} else {
		l.slots.turnBegan = now.Add(yieldFor)
	}
	return true
}

// othersWait reports whether a lane waits for a slot, here or at the server. Without an answer one
// may wait.
func (l *heldLane) othersWait() bool {
	h := l.holder
	if h.slots.available() > 0 {
		return false
	}
	if h.slots.inLine() > 0 {
		return true
	}
	consumer, err := h.store.Consumer(l.ctx, h.options.Pool)
	if err != nil || consumer == nil {
		return true
	}
	// Those that were delivered and are not held here may be handed back, or be held by others.
	waiting := consumer.NumPending + uint64(max(consumer.NumAckPending-h.Held(), 0))
	return consumer.NumWaiting == 0 && waiting > 0
}

// retry does something until it succeeds. It reports false when the lane is lost before.
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
		pause.For(l.ctx, retryPause)
	}
	return false
}

func (l *heldLane) logRetry(msg string, err error) {
	l.holder.retryLog.log(l.ctx, msg, slog.String("lane", string(l.lane)), slog.Any("error", err))
}
