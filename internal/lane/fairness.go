package lane

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
)

const (
	// quantum is how long a busy lane may keep a slot that others may want.
	quantum = time.Second
	// giveWay is how long a lane that is never idle then leaves free slots to others.
	giveWay = 20 * time.Millisecond
)

// seat is a lane's share of the holder's slots.
type seat struct {
	free      int       // slots in hand that no call uses
	wanting   bool      // stands in line for a slot
	granted   chan bool // the end of that
	share     time.Time // when the lane's share of the slots began
	givingWay time.Time // until then free slots are left to others
}

// newSeat is that of a lane that is claimed with one slot.
func newSeat() seat { return seat{free: 1, share: time.Now(), granted: make(chan bool, 1)} }

// start starts what may run, as far as there are slots.
func (l *held) start() {
	l.refuse()
	if l.starting.Err() == nil && !l.oversight.paused.Load() && !l.yields() && !l.givesWay() {
		for _, e := range l.schedule.Startable() {
			if !l.takes(e) {
				if l.isOver(e) {
					l.start() // there may be more to start
					return
				}
				continue
			}
			if l.seat.free == 0 && !l.seat.wanting && l.holder.slots.tryAcquire() {
				l.seat.free++
			}
			if l.seat.free == 0 {
				l.wantSlot()
				break
			}
			l.startOne(e)
		}
	}
	if l.lacks != nil { // what has been started ends first
		l.stop()
	}
	l.freeSlots()
}

// freeSlots gives back the slots that no call uses.
func (l *held) freeSlots() {
	for ; l.seat.free > 0; l.seat.free-- {
		l.holder.slots.release()
	}
}

// startOne starts a call with a slot in hand.
func (l *held) startOne(e *core.Entry) {
	l.idleSince = time.Time{}
	asked := l.ahead.of(e, l.schedule.Entries())
	e.Running = true
	l.seat.free--
	l.active++
	go func() { l.finished <- finished{entry: e, settled: l.attempt(e, asked)} }()
}

// wantSlot stands in line for one slot. Lanes stand in line, not calls: one with
// many calls takes its turn like all others.
func (l *held) wantSlot() {
	if l.seat.wanting {
		return
	}
	l.seat.wanting = true
	go func() { l.seat.granted <- l.holder.slots.acquire(l.starting) == nil }()
}

// returnSlots gives back what slots the lane has or is about to get.
func (l *held) returnSlots() {
	l.stop()
	if l.seat.wanting && <-l.seat.granted {
		l.seat.free++
	}
	l.freeSlots()
}

// yields reports whether a busy lane should go to the end of the line, because
// it had its share of the slots and others may wait.
func (l *held) yields() bool {
	if l.active > 0 || l.schedule.Len() == 0 || time.Since(l.seat.share) < quantum || l.unresolved() {
		return false
	}
	if l.holder.options.Keeps(l.lane) || !l.holder.othersWait() {
		return false
	}
	l.stop()
	return true
}

// givesWay reports whether a lane that cannot yield leaves its free slots to others for a moment:
// its calls overlap and it is never idle, or it must be held, or calls of it may have been started
// by a worker that was lost.
func (l *held) givesWay() bool {
	now := time.Now()
	if now.Before(l.seat.givingWay) {
		return true
	}
	if l.schedule.Len() == 0 || now.Sub(l.seat.share) < quantum {
		return false
	}
	if l.active == 0 && !l.holder.options.Keeps(l.lane) && !l.unresolved() { // it may yield
		return false
	}
	if !l.holder.othersWait() {
		return false
	}
	l.seat.givingWay = now.Add(giveWay)
	l.seat.share = l.seat.givingWay
	return true
}
