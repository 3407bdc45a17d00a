package lane

import (
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// makeUpAfter is when a ready message that was thought to be needless is published after all,
	// if the call has no result by then.
	makeUpAfter = 50 * time.Millisecond
	// holdTime is how long a holder keeps a lane that is used again and again, after its last call.
	holdTime = 25 * time.Millisecond
	// heldFor is how long a publisher counts on that, after a result of its own.
	heldFor = 15 * time.Millisecond
	// frequent is the longest pause between two uses of a lane that is "used again and again".
	frequent = 50 * time.Millisecond
	// distrust is how long a lane is not counted on after a ready message was missing.
	distrust = time.Second
	// maxIdle bounds the lanes that are remembered without a call under way.
	maxIdle = 8192
)

// inFlight is what a publisher knows of the lanes that it uses right now. It
// decides which ready messages can be left out: those of calls that the holder of
// the lane will find anyway. Where it may be wrong, the ready message is published
// a moment later after all ("made up for"). It is safe for concurrent use.
type inFlight struct {
	// makeUp publishes the ready message of a call's lane, and reports whether it was missing.
	makeUp func(*protocol.Call) (missing bool)

	mu    sync.Mutex
	lanes map[poolLane]*ownLane
	idle  int // lanes without a call under way
}

// poolLane is a lane in one of its pools: others may hold it in another.
type poolLane struct {
	pool protocol.Pool
	lane protocol.Lane
}

func poolLaneOf(c *protocol.Call) poolLane { return poolLane{pool: c.Pool, lane: c.Lane()} }

// ownLane is a lane as one publisher uses it.
type ownLane struct {
	calls    map[protocol.CallID]uint64 // put and not finished: the stream sequence; 0 until it is accepted, or when it is not known
	lastEnd  time.Time                  // when the last result came
	ended    int                        // results since the last long pause
	distrust time.Time                  // until then the holder is not counted on
	makeUp   *time.Timer                // publishes one ready message for all calls of the lane; nil when none is owed
}

func newInFlight(makeUp func(*protocol.Call) bool) *inFlight {
	return &inFlight{makeUp: makeUp, lanes: map[poolLane]*ownLane{}}
}

// begin notes calls of one lane that are about to be put. busy says that an
// earlier one has no result yet; held, that the lane's holder is likely to be still there.
func (p *inFlight) begin(lane poolLane, ids []protocol.CallID) (busy, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	own := p.lanes[lane]
	if own == nil {
		p.sweep()
		own = &ownLane{calls: map[protocol.CallID]uint64{}}
		p.lanes[lane] = own
		p.idle++
	}
	busy = len(own.calls) > 0
	if !busy {
		p.idle--
		if now.Sub(own.lastEnd) >= frequent {
			own.ended = 0
		}
		held = own.stays(now)
	}
	for _, id := range ids {
		own.calls[id] += 0 // it may be there
	}
	return busy, held
}

// stays reports whether the holder of a lane whose last call has ended is likely to be still there:
// it keeps one for a moment that had more than one call.
func (o *ownLane) stays(now time.Time) bool {
	return o.ended > 1 && now.Sub(o.lastEnd) < heldFor && now.After(o.distrust)
}

func (p *inFlight) sweep() {
	if p.idle < maxIdle {
		return
	}
	for lane, own := range p.lanes {
		if len(own.calls) == 0 {
			delete(p.lanes, lane)
		}
	}
	p.idle = 0
}

// accepted notes the sequence of a call. It reports whether a call of this publisher that was
// accepted before it has no result yet, or had one until a moment ago: its holder will look into
// the mailbox after that call, and find this one too. A call accepted later must not count, or two
// of them could rely on each other.
func (p *inFlight) accepted(call *protocol.Call, seq uint64) (found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.lanes[poolLaneOf(call)]
	if own == nil {
		return false
	}
	if _, known := own.calls[call.ID]; known {
		own.calls[call.ID] = seq
	}
	for _, other := range own.calls {
		if other > 0 && other < seq {
			return true
		}
	}
	return own.stays(time.Now())
}

// later has the ready message of a call made up for, unless all calls of the lane have their
// results before. One ready message is that of all calls which were accepted before it, so a lane
// has one timer, however many calls wait in it. While calls of the lane end, its holder is at work
// and will look into the mailbox again: then it waits on.
func (p *inFlight) later(call *protocol.Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.lanes[poolLaneOf(call)]
	if own == nil || own.makeUp != nil {
		return
	}
	if _, known := own.calls[call.ID]; !known {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(makeUpAfter, func() {
		if p.missing(own, &timer) && p.makeUp(call) {
			p.doubt(poolLaneOf(call))
		}
	})
	own.makeUp = timer
}

// missing reports whether a lane may need its ready message after all, which is then published. The
// timer is known once the lock is held.
func (p *inFlight) missing(own *ownLane, timer **time.Timer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if own.makeUp != *timer {
		return false
	}
	if quiet := time.Since(own.lastEnd); quiet < makeUpAfter {
		(*timer).Reset(makeUpAfter - quiet)
		return false
	}
	own.makeUp = nil
	return true
}

func (p *inFlight) doubt(lane poolLane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if own := p.lanes[lane]; own != nil {
		own.distrust = time.Now().Add(distrust)
	}
}

func (p *inFlight) finished(lane poolLane, id protocol.CallID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.lanes[lane]
	if own == nil {
		return
	}
	if _, known := own.calls[id]; !known {
		return
	}
	delete(own.calls, id)
	own.lastEnd = time.Now()
	own.ended++
	if len(own.calls) > 0 {
		return
	}
	p.idle++
	if own.makeUp != nil {
		own.makeUp.Stop()
		own.makeUp = nil
	}
}
