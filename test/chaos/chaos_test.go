//go:build linux

package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system/pause"
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
