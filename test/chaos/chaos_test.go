//go:build linux

package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// side lets tests run side by side in the short form; the long one measures.
func side(t *testing.T) {
	t.Helper()
	if *callCount == 0 {
		t.Parallel()
	}
}

// long leaves faults to the long form whose like the others have, and internal/lane by themselves.
func long(t *testing.T) {
	t.Helper()
	if *callCount == 0 {
		t.Skip("TestCluster of internal/lane has these faults one by one: make chaos runs it")
	}
}

func TestChaos_WorkersAreKilled(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	run(t, setup{faults: 5, pause: 500 * time.Millisecond}, killWorker)
}

// killWorker is kill -9 of a worker; another takes its place.
func killWorker(r *rig) { r.killWorker(r.random.IntN(len(r.workers))) }

func (r *rig) killWorker(i int) {
	w := r.workers[i]
	from := now()
	w.kill()
	r.fault("kill worker", Fault{Worker: w.id, From: from, Until: now(), Killed: true})
	r.workers = append(r.workers[:i], r.workers[i+1:]...)
	r.startWorker()
}

func TestChaos_WorkersAreStopped(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	run(t, setup{faults: 3, pause: 500 * time.Millisecond}, stopWorker)
}

// stopWorker is SIGSTOP of a worker for longer than its lease, then SIGCONT.
func stopWorker(r *rig) {
	w := r.workers[r.random.IntN(len(r.workers))]
	from := now()
	w.freeze()
	still := now()
	pause.For(r.t.Context(), r.setup.lease*5/4+time.Duration(r.random.Int64N(int64(r.setup.lease))))
	until := now()
	w.thaw()
	r.fault("stop worker", Fault{Worker: w.id, From: from, Still: still, Until: until, Stopped: true})
}

func TestChaos_CallersAreKilled(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	s := setup{faults: 4, pause: time.Second}
	if *callCount > 0 {
		s.pause = 5 * time.Second // they have more and more to read when they come back
	}
	run(t, s, killCaller)
}

// killCaller is kill -9 of the callers, wherever they are in putting their steps;
// they come back and put again what has no result. First they have to be through with reading
// what they have done before, which takes longer and longer.
func killCaller(r *rig) {
	require.Eventually(r.t, func() bool { return r.caller.ended() || r.callerLog() > r.remembered }, patience, 10*time.Millisecond)
	pause.For(r.t.Context(), time.Duration(r.random.Int64N(int64(r.setup.pause))))
	r.caller.kill()
	r.startCaller()
	r.counts["kill caller"]++ // workers do not notice: it excuses nothing
}

func TestChaos_NetworkFails(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	run(t, setup{faults: 5, pause: 500 * time.Millisecond, proxied: true}, cutOff, deafen, slowDown)
}

// someone is a worker, or now and then the callers.
func (r *rig) someone() *member {
	if r.random.IntN(4) == 0 {
		return r.caller
	}
	return r.workers[r.random.IntN(len(r.workers))]
}

// network records a fault of a member's network that lasts for a while.
func (r *rig) network(name string, m *member, d time.Duration, begin func()) {
	from := now()
	begin()
	pause.For(r.t.Context(), d)
	m.cable.Mend()
	r.fault(name, Fault{Worker: m.id, From: from, Until: now()})
}

// cutOff ends a connection for a moment, or for longer than a lease.
func cutOff(r *rig) {
	m := r.someone()
	r.network("cut off", m, time.Duration(r.random.Int64N(int64(2*r.setup.lease))), m.cable.Sever)
}

// deafen loses what the server says for a moment, or for longer than a lease.
func deafen(r *rig) {
	m := r.someone()
	r.network("deafen", m, time.Duration(r.random.Int64N(int64(2*r.setup.lease))), m.cable.Deafen)
}

// slowDown delays both directions by less than the margin of a lease.
func slowDown(r *rig) {
	m := r.someone()
	delay := time.Duration(r.random.Int64N(int64(r.setup.lease / 12)))
	r.network("slow down", m, r.setup.lease, func() { m.cable.Slow(delay) })
}

// planned is a call as a seed plans it.
type planned struct {
	protocol.Call

	cancelAfter time.Duration // negative: not at all
}

// workload makes the same calls again for the same seed.
type workload struct {
	Seed  uint64
	Lanes int
	// Life is how many lives of callers came before that nobody goes on with. Each has lanes of its
	// own: a later call of a lane would help those that wait there.
	Life int
	// Bursts has one caller now and then put more calls into a lane than its holder has in hand.
	Bursts bool
}

// burst is how many calls that are: enough for requests to cancel that the holder reads long after
// the calls.
const burst = 700

// session is the session of one caller.
func (w workload) session(caller int) protocol.SessionID {
	return protocol.SessionID(fmt.Sprintf("chaos-%x-%d-%d", w.Seed, w.Life, caller))
}

// step is the n-th step of a caller: one to four calls.
func (w workload) step(caller, n int) []planned {
	r := rand.New(rand.NewPCG(w.Seed, uint64(w.Life)<<48|uint64(caller)<<32|uint64(n)))
	out := make([]planned, 1+r.IntN(4))
	bursts := w.Bursts && caller == 0 && n%16 == 15
	if bursts {
		out = make([]planned, burst)
	}
	lane := r.IntN(w.Lanes)
	for i := range out {
		if !bursts && r.IntN(3) == 0 {
			lane = r.IntN(w.Lanes)
		}
		out[i] = w.call(r, w.lane(lane))
		if bursts {
			out[i].queue(r, w.lane(lane))
		}
		out[i].ID = wire.NewCallID(w.session(caller), "", 1, n+1, i)
		out[i].SessionID = w.session(caller)
	}
	return out
}

// queue makes a call one of many that wait for each other.
func (p *planned) queue(r *rand.Rand, lane protocol.ResourceKey) {
	p.Resources = []protocol.Use{{Key: lane, Access: protocol.Exclusive}}
	p.RunTimeout, p.QueueTimeout, p.Deadline, p.cancelAfter = 0, 0, time.Time{}, -1
	p.Payload = wire.Noop{WorkMS: 2}
	if r.IntN(20) == 0 {
		p.cancelAfter = time.Duration(r.IntN(60)) * time.Millisecond
	}
}

// lane is the n-th lane of this life.
func (w workload) lane(n int) protocol.ResourceKey {
	return protocol.ResourceKey(fmt.Sprintf("chaos/%d-%d", w.Life, n))
}

func (w workload) call(r *rand.Rand, lane protocol.ResourceKey) planned {
	p := planned{cancelAfter: -1}
	p.Tool, p.Pool, p.Delivery = "witness", protocol.DefaultPool, protocol.Idempotent
	p.Resources = uses(r, lane)
	if r.IntN(4) == 0 {
		p.Delivery = protocol.AtMostOnce
	}
	if r.IntN(10) == 0 {
		p.MaxAttempts = 1 + r.IntN(3)
	}
	work := wire.Noop{WorkMS: work(r)}
	switch r.IntN(60) {
	case 0:
		work.WorkMS, p.RunTimeout = 200, 30
	case 1:
		p.QueueTimeout = 5
	case 2:
		work.WorkMS, p.Deadline = 100, time.Unix(0, 0).Add(50*time.Millisecond) // relative; see callerRole
	case 3, 4, 5:
		work.WorkMS, p.cancelAfter = 50, time.Duration(r.IntN(60))*time.Millisecond
	}
	p.Payload = work
	return p
}

// work is mostly short, so that there is much to hit, and now and then long, so that it is hit.
func work(r *rand.Rand) protocol.Millis {
	switch n := r.IntN(200); {
	case n < 150:
		return 0
	case n < 190:
		return protocol.Millis(1 + r.IntN(4))
	case n < 198:
		return protocol.Millis(10 + r.IntN(20))
	default:
		return protocol.Millis(100 + r.IntN(200))
	}
}

// uses are what a call touches of a lane: all of it or parts, alone or not.
func uses(r *rand.Rand, lane protocol.ResourceKey) []protocol.Use {
	access := func() protocol.Access {
		if r.IntN(3) == 0 {
			return protocol.Shared
		}
		return protocol.Exclusive
	}
	part := func() protocol.ResourceKey {
		key := fmt.Sprintf("%s/d%d", lane, r.IntN(3))
		if r.IntN(2) == 0 {
			key += fmt.Sprintf("/f%d", r.IntN(3))
		}
		return protocol.ResourceKey(key)
	}
	switch r.IntN(8) {
	case 0, 1, 2, 3:
		return []protocol.Use{{Key: lane, Access: protocol.Exclusive}}
	case 4:
		return []protocol.Use{{Key: lane, Access: protocol.Shared}}
	case 5:
		return []protocol.Use{{Key: part(), Access: access()}, {Key: part(), Access: access()}}
	default:
		return []protocol.Use{{Key: part(), Access: access()}}
	}
}
