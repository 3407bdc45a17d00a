package lane

import (
	"maps"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

const (
	// retainTime is how long a holder retains a frequently used lane after its last call.
	retainTime = 100 * time.Millisecond
	// frequent is the longest pause between two uses of a frequently used lane.
	frequent = 2 * retainTime
	// maxUsed bounds the lanes whose last use is remembered, in addition to those with open calls.
	maxUsed = 8192
	// retainedAfter is after how many calls, one soon after the other, a lane is taken to be kept.
	retainedAfter = 2
	// deferReadyFor is how long a lane may have a deferred ready message while none of its calls
	// ends.
	deferReadyFor = 20 * time.Millisecond
)

// readyCache is what a publisher knows of the lanes that it uses, to save writes. While one of its
// calls in a lane has no result, the lane is ready or held, so a later call cannot be its ready
// message. The later call needs no ready message either: the holder looks into the mailbox after
// the earlier one. That is wrong only if the earlier call has ended and its result is on the way.
// So the ready message is deferred, and is published when no call of the lane has ended for
// deferReadyFor. It is also deferred if the last calls were appended one after the other, because a
// holder retains such a lane. It is safe for concurrent use.
type readyCache struct {
	makeReady func(poolLane)

	mu       sync.Mutex
	lanes    map[poolLane]*laneUse
	deferred map[poolLane]*laneUse // lanes with a deferred ready message
	prune    int                   // how many lanes are too many
}

// laneUse is one of the lanes.
type laneUse struct {
	last       time.Time // when a call was put or ended
	open       int       // followed calls without a result
	progress   time.Time // when a call ended, or the ready message was deferred
	appends    int       // calls appended since the lane was last free, or had to be made ready
	lastResult wire.Seen // the last result
}

// get returns what is known of a lane; the lock is held.
func (u *readyCache) get(lane poolLane) *laneUse {
	use := u.lanes[lane]
	if use != nil {
		return use
	}
	if u.prune = max(u.prune, maxUsed); len(u.lanes) >= u.prune {
		maps.DeleteFunc(u.lanes, func(_ poolLane, old *laneUse) bool { return old.open == 0 && time.Since(old.last) >= retainTime })
		u.prune = 2 * len(u.lanes)
	}
	if u.lanes == nil {
		u.lanes, u.deferred = map[poolLane]*laneUse{}, map[poolLane]*laneUse{}
	}
	use = &laneUse{}
	u.lanes[lane] = use
	return use
}

// use notes that a lane is used now, and reports whether it is probably ready or held.
func (u *readyCache) use(lane poolLane) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	use, now := u.get(lane), time.Now()
	recently := use.open > 0 || now.Sub(use.last) < retainTime
	if use.last = now; !recently {
		use.appends = 0
	}
	return recently
}

// onAccepted notes that a followed call was accepted.
func (u *readyCache) onAccepted(lane poolLane) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.get(lane).open++
}

// lastResult is the last result of a lane that is known.
func (u *readyCache) lastResult(lane poolLane) wire.Seen {
	u.mu.Lock()
	defer u.mu.Unlock()
	if use := u.lanes[lane]; use != nil {
		return use.lastResult
	}
	return wire.Seen{}
}

// onEnded notes that a followed call has ended; seen is zero without a result of its holder.
func (u *readyCache) onEnded(lane poolLane, seen wire.Seen) {
	u.mu.Lock()
	defer u.mu.Unlock()
	use := u.get(lane)
	use.last = time.Now()
	use.progress = use.last
	if seen.Epoch > use.lastResult.Epoch || seen.Epoch == use.lastResult.Epoch && seen.Sequence > use.lastResult.Sequence {
		use.lastResult = seen
	}
	if use.open--; use.open == 0 {
		delete(u.deferred, lane)
	}
}

// onAppended publishes the ready message of a lane to whose mailbox a call was appended, unless a
// followed call defers it.
func (u *readyCache) onAppended(lane poolLane, followed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	use := u.get(lane)
	retained := use.appends > retainedAfter && time.Since(use.progress) < retainTime/2
	if use.appends++; !followed || use.open == 0 && !retained {
		u.makeReady(lane)
		return
	}
	if u.deferred[lane] != nil {
		return
	}
	use.progress = time.Now()
	if u.deferred[lane] = use; len(u.deferred) == 1 {
		time.AfterFunc(deferReadyFor, u.flushDeferred)
	}
}

// flushDeferred publishes ready messages that have been deferred for too long, and checks again
// later.
func (u *readyCache) flushDeferred() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for lane, use := range u.deferred {
		if time.Since(use.progress) >= deferReadyFor {
			delete(u.deferred, lane)
			use.appends = 0
			u.makeReady(lane)
		}
	}
	if len(u.deferred) > 0 {
		time.AfterFunc(deferReadyFor, u.flushDeferred)
	}
}
