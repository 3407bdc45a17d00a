package lane

import (
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// quantum is how long a busy lane may keep a slot that others may want.
	quantum = time.Second
	// giveWay is how long a lane that is never idle then leaves free slots to others.
	giveWay = 20 * time.Millisecond
)

// start starts what may run, as far as there are slots.
func (l *held) start() {
	l.refuse()
	if l.starting.Err() == nil && !l.oversight.paused.Load() && !l.yields() && !l.givesWay() {
		for _, e := range l.schedule.startable() {
			if l.free == 0 && !l.wanting && l.holder.slots.tryAcquire() {
				l.free++
			}
			if l.free == 0 {
				l.wantSlot()
				break
			}
			l.startOne(e)
		}
	}
	l.freeSlots()
}

// freeSlots gives back the slots that no call uses.
func (l *held) freeSlots() {
	for ; l.free > 0; l.free-- {
		l.holder.slots.release()
	}
}

// startOne starts a call with a slot in hand.
func (l *held) startOne(e *entry) {
	l.idleSince = time.Time{}
	e.mayHaveStarted = e.mayHaveStarted && l.startedBefore()
	e.maySettled = e.maySettled && l.settledBefore()
	if e.lookup == nil && e.call.Delivery != protocol.AtMostOnce {
		l.lookUp()
	}
	e.running = true
	l.free--
	l.active++
	go func() { l.finished <- finished{entry: e, settled: l.attempt(e)} }()
}

// wantSlot stands in line for one slot. Lanes stand in line, not calls: one with
// many calls takes its turn like all others.
func (l *held) wantSlot() {
	if l.wanting {
		return
	}
	l.wanting = true
	go func() { l.granted <- l.holder.slots.acquire(l.starting) == nil }()
}

// returnSlots gives back what slots the lane has or is about to get.
func (l *held) returnSlots() {
	l.stop()
	if l.wanting && <-l.granted {
		l.free++
	}
	l.freeSlots()
}

// yields reports whether a busy lane should go to the end of the line, because
// it had its share of the slots and others may wait.
func (l *held) yields() bool {
	if l.active > 0 || l.schedule.len() == 0 || time.Since(l.share) < quantum || l.unresolved() {
		return false
	}
	if l.holder.options.Keeps(l.lane) || !l.holder.othersWait() {
		return false
	}
	l.stop()
	return true
}

// givesWay reports whether a lane that cannot yield leaves its free slots to others for a moment: its calls overlap and it
// is never idle, or it must be held, or a worker that was lost may have settled what waits in it.
func (l *held) givesWay() bool {
	now := time.Now()
	if now.Before(l.givingWay) {
		return true
	}
	if l.schedule.len() == 0 || now.Sub(l.share) < quantum {
		return false
	}
	if l.active == 0 && !l.holder.options.Keeps(l.lane) && !l.unresolved() { // it may yield
		return false
	}
	if !l.holder.othersWait() {
		return false
	}
	l.givingWay = now.Add(giveWay)
	l.share = l.givingWay
	return true
}
