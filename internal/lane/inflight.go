package lane

import (
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// makeUpAfter is when a ready message that was thought to be needless is
	// published after all, if the call has no result by then. Where calls usually take longer
	// it is later, up to makeUpMost: a busy fleet is not slow because ready messages are missing.
	makeUpAfter = 20 * time.Millisecond
	makeUpMost  = 100 * time.Millisecond
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
	idle  int           // lanes without a call under way
	usual time.Duration // how long calls take, about
}

// poolLane is a lane in one of its pools: others may hold it in another.
type poolLane struct {
	pool protocol.Pool
	lane protocol.Lane
}

func poolLaneOf(c *protocol.Call) poolLane { return poolLane{pool: c.Pool, lane: c.Lane()} }

// ownLane is a lane as one publisher uses it.
type ownLane struct {
	calls    map[protocol.CallID]*ownCall // put and not finished
	lastEnd  time.Time                    // when the last result came
	ended    int                          // results since the last long pause
	distrust time.Time                    // until then the holder is not counted on
	owes     *protocol.Call               // the first call whose ready message is missing since one was published last
	owesFrom time.Time
	makeUp   *time.Timer // publishes one for all calls of the lane, unless they have their results before
}

// ownCall is a call that has no result yet.
type ownCall struct {
	since time.Time
	seq   uint64 // stream sequence; 0 until it is accepted, or when it is not known
}

func newInFlight(makeUp func(*protocol.Call) bool) *inFlight {
	return &inFlight{makeUp: makeUp, lanes: map[poolLane]*ownLane{}}
}

// begin books calls of one lane that are about to be put. busy says that an
// earlier one has no result yet; held, that the lane's holder is likely to be still there.
func (p *inFlight) begin(lane poolLane, ids []protocol.CallID) (busy, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	own := p.lanes[lane]
	if own == nil {
		p.sweep()
		own = &ownLane{calls: map[protocol.CallID]*ownCall{}}
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
		if own.calls[id] == nil {
			own.calls[id] = &ownCall{since: now}
		}
	}
	return busy, held
}

// stays reports whether the holder of a lane whose last call has ended is likely to be still there:
// it keeps one for a moment that had more than one call.
func (o *ownLane) stays(now time.Time) bool {
	return o.ended > 1 && now.Sub(o.lastEnd) < heldFor && now.After(o.distrust)
}

// sweep forgets the idle lanes when there are too many.
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

// accepted books the sequence of a call. It reports whether a call of this publisher that was
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
	if this := own.calls[call.ID]; this != nil {
		this.seq = seq
	}
	for _, other := range own.calls {
		if other.seq > 0 && other.seq < seq {
			return true
		}
	}
	return own.stays(time.Now())
}

// later has the ready message of a call made up for, unless its result comes first. One ready
// message is that of all calls which were accepted before it, so a lane has one timer, however many
// calls wait in it. While other calls of the lane come to their end, its holder is at work and will
// look into the mailbox again: then it waits on.
func (p *inFlight) later(call *protocol.Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.lanes[poolLaneOf(call)]
	if own == nil || own.calls[call.ID] == nil || own.owes != nil {
		return
	}
	own.owes, own.owesFrom = call, time.Now()
	own.makeUp = time.AfterFunc(p.patience(), func() {
		if p.missing(own, call) && p.makeUp(call) {
			p.doubt(poolLaneOf(call))
		}
	})
}

// doubt stops counting on the holder of a lane for a while.
func (p *inFlight) doubt(lane poolLane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if own := p.lanes[lane]; own != nil {
		own.distrust = time.Now().Add(distrust)
	}
}

// patience is how long a call may be without a result before its ready message is made up for.
func (p *inFlight) patience() time.Duration {
	return min(max(makeUpAfter, 2*p.usual), makeUpMost)
}

// missing reports whether a lane may need its ready message after all, which is then published.
func (p *inFlight) missing(own *ownLane, call *protocol.Call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if own.owes != call {
		return false
	}
	last := own.owesFrom
	if own.lastEnd.After(last) {
		last = own.lastEnd
	}
	if quiet := time.Since(last); quiet < p.patience() {
		own.makeUp.Reset(p.patience() - quiet)
		return false
	}
	own.owes = nil
	return true
}

// finished books the end of a call.
func (p *inFlight) finished(lane poolLane, id protocol.CallID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.lanes[lane]
	if own == nil || own.calls[id] == nil {
		return
	}
	call := own.calls[id]
	delete(own.calls, id)
	own.lastEnd = time.Now()
	p.usual += (own.lastEnd.Sub(call.since) - p.usual) / 16
	own.ended++
	if len(own.calls) == 0 {
		p.idle++
		own.stopMakingUp()
	}
}

// stopMakingUp is for a lane none of whose calls needs a ready message any more.
func (o *ownLane) stopMakingUp() {
	if o.owes != nil {
		o.makeUp.Stop()
		o.owes = nil
	}
}
