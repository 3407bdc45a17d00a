package lane

import (
	"maps"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

const (
	// keepTime is how long a holder keeps a frequently used lane after its last call.
	keepTime = 100 * time.Millisecond
	// frequent is the longest pause between two uses of a frequently used lane.
	frequent = 2 * keepTime
	// maxUsed bounds the lanes whose last use is remembered, in addition to those with open calls.
	maxUsed = 8192
	// keptAfter is after how many calls, one soon after the other, a lane is taken to be kept.
	keptAfter = 2
	// owedFor is how long a lane may owe its ready message while none of its calls ends.
	owedFor = 20 * time.Millisecond
)

// usedLanes is what a publisher knows of the lanes that it uses, to save writes. While one of its
// calls in a lane has no result, the lane is ready or held, so a later call cannot be its ready
// message. The later call needs no ready message either: the holder looks into the mailbox after
// the earlier one. That is wrong only if the earlier call has ended and its result is on the way.
// So the ready message is owed, and is published when no call of the lane has ended for owedFor. It
// is also owed if the last calls were appended one after the other, because a holder keeps such a
// lane. It is safe for concurrent use.
type usedLanes struct {
	makeReady func(poolLane)

	mu    sync.Mutex
	lanes map[poolLane]*laneUse
	owing map[poolLane]*laneUse // those that owe their ready message
	prune int                   // how many lanes are too many
}

// laneUse is one of the lanes.
type laneUse struct {
	last     time.Time // when a call was put or ended
	open     int       // followed calls without a result
	progress time.Time // when a call ended, or the ready message began to be owed
	appends  int       // calls appended since the lane was last free, or had to be made ready
	seen     wire.Seen // the last result
}

// get returns what is known of a lane; the lock is held.
func (u *usedLanes) get(lane poolLane) *laneUse {
	use := u.lanes[lane]
	if use != nil {
		return use
	}
	if u.prune = max(u.prune, maxUsed); len(u.lanes) >= u.prune {
		maps.DeleteFunc(u.lanes, func(_ poolLane, old *laneUse) bool { return old.open == 0 && time.Since(old.last) >= keepTime })
		u.prune = 2 * len(u.lanes)
	}
	if u.lanes == nil {
		u.lanes, u.owing = map[poolLane]*laneUse{}, map[poolLane]*laneUse{}
	}
	use = &laneUse{}
	u.lanes[lane] = use
	return use
}

// use notes that a lane is used now, and reports whether it is probably ready or held.
func (u *usedLanes) use(lane poolLane) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	use, now := u.get(lane), time.Now()
	recently := use.open > 0 || now.Sub(use.last) < keepTime
	if use.last = now; !recently {
		use.appends = 0
	}
	return recently
}

// begun notes that a followed call was accepted.
func (u *usedLanes) begun(lane poolLane) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.get(lane).open++
}

// seen is the last result of a lane that is known.
func (u *usedLanes) seen(lane poolLane) wire.Seen {
	u.mu.Lock()
	defer u.mu.Unlock()
	if use := u.lanes[lane]; use != nil {
		return use.seen
	}
	return wire.Seen{}
}

// ended notes that a followed call has ended; seen is zero without a result of its holder.
func (u *usedLanes) ended(lane poolLane, seen wire.Seen) {
	u.mu.Lock()
	defer u.mu.Unlock()
	use := u.get(lane)
	use.last = time.Now()
	use.progress = use.last
	if seen.Epoch > use.seen.Epoch || seen.Epoch == use.seen.Epoch && seen.Sequence > use.seen.Sequence {
		use.seen = seen
	}
	if use.open--; use.open == 0 {
		delete(u.owing, lane)
	}
}

// appended publishes the ready message of a lane to whose mailbox a call was appended, unless a
// followed call may owe it.
func (u *usedLanes) appended(lane poolLane, followed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	use := u.get(lane)
	kept := use.appends > keptAfter && time.Since(use.progress) < keepTime/2
	if use.appends++; !followed || use.open == 0 && !kept {
		u.makeReady(lane)
		return
	}
	if u.owing[lane] != nil {
		return
	}
	use.progress = time.Now()
	if u.owing[lane] = use; len(u.owing) == 1 {
		time.AfterFunc(owedFor, u.pay)
	}
}

// pay publishes ready messages that have been owed for too long, and looks again in a while.
func (u *usedLanes) pay() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for lane, use := range u.owing {
		if time.Since(use.progress) >= owedFor {
			delete(u.owing, lane)
			use.appends = 0
			u.makeReady(lane)
		}
	}
	if len(u.owing) > 0 {
		time.AfterFunc(owedFor, u.pay)
	}
}
