package lane

import (
	"time"
)

const (
	// quantum is how long a busy lane may keep a slot that others may want.
	quantum = time.Second
	// giveWay is how long a lane that has to be held on then leaves free slots to others.
	giveWay = 20 * time.Millisecond
)

// seat is a lane's part of the holder's slots.
type seat struct {
	free    int       // slots in hand that no call uses
	used    int       // calls that run
	wanting bool      // stands in line for a slot
	granted chan bool // the end of that
	share   time.Time // when the lane's share of the slots began; before it, they are left to others
}

func newSeat() seat { return seat{free: 1, share: time.Now(), granted: make(chan bool, 1)} }

func (s *seat) take(granted bool) {
	s.wanting = false
	if granted {
		s.free++
	}
}

func (s *seat) givesWay(now time.Time) bool { return now.Before(s.share) }

// start starts what may run, as far as there are slots.
func (l *held) start() {
	l.refuse()
	if !l.isStopping() && !l.marks.paused.Load() && !l.makesWay() {
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
			asked := l.ahead.of(e, l.schedule.Entries())
			e.Running = true
			l.seat.free--
			l.seat.used++
			go func() { l.running.finished <- finished{entry: e, settled: l.attempt(e, asked)} }()
		}
	}
	if l.lacks != nil { // what has been started ends first
		l.stop()
	}
	l.freeSlots()
}

func (l *held) freeSlots() {
	for ; l.seat.free > 0; l.seat.free-- {
		l.holder.slots.release()
	}
}

// wantSlot stands in line for one slot. Lanes stand in line, not calls: one with many calls takes
// its turn like all others.
func (l *held) wantSlot() {
	if l.seat.wanting {
		return
	}
	l.seat.wanting = true
	go func() { l.seat.granted <- l.holder.slots.acquire(l.starting) == nil }()
}

func (l *held) returnSlots() {
	l.stop()
	if l.seat.wanting {
		l.seat.take(<-l.seat.granted)
	}
	l.freeSlots()
}

// makesWay reports whether a busy lane leaves its free slots to others, because it had its share
// and others wait. It is handed over, so that it goes to the end of the line, if nothing of it runs
// and it need not be held. Else it starts nothing for a moment.
func (l *held) makesWay() bool {
	now := time.Now()
	if l.seat.givesWay(now) {
		return true
	}
	if l.schedule.Len() == 0 || now.Sub(l.seat.share) < quantum {
		return false
	}
	if !l.othersWait() {
		l.seat.share = now.Add(-quantum * 3 / 4) // asked again soon
		return false
	}
	if l.seat.used == 0 && !l.holder.host.MustHold(l.lane) && !l.unresolved() {
		l.stop()
	} else {
		l.seat.share = now.Add(giveWay)
	}
	return true
}

// othersWait reports whether a lane waits for a slot, here or at the server. Without an answer one
// may wait.
func (l *held) othersWait() bool {
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
