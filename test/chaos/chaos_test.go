//go:build linux

package chaos

import (
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/test/chaos/history"
)

// side lets tests run side by side in the short form; the long one measures.
func side(t *testing.T) {
	t.Helper()
	if *calls == 0 {
		t.Parallel()
	}
}

func TestChaos_WorkersAreKilled(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	run(t, setup{faults: 4, pause: time.Second}, killWorker)
}

// killWorker is kill -9 of a worker; another takes its place.
func killWorker(r *rig) {
	i := r.random.IntN(len(r.workers))
	w := r.workers[i]
	from := now()
	w.kill()
	r.fault("kill worker", history.Fault{Worker: w.id, From: from, Until: now(), Killed: true})
	r.workers = append(r.workers[:i], r.workers[i+1:]...)
	r.startWorker()
}

func TestChaos_WorkersAreStopped(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	run(t, setup{faults: 4, pause: 500 * time.Millisecond}, stopWorker)
}

// stopWorker is SIGSTOP of a worker for longer than its lease, then SIGCONT.
func stopWorker(r *rig) {
	w := r.workers[r.random.IntN(len(r.workers))]
	from := now()
	w.freeze()
	still := now()
	wait(r.t.Context(), r.setup.lease*5/4+time.Duration(r.random.Int64N(int64(r.setup.lease))))
	until := now()
	w.thaw()
	r.fault("stop worker", history.Fault{Worker: w.id, From: from, Still: still, Until: until, Stopped: true})
}
