package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Lanes in addition to those of the callers.
const (
	slowKey  = "bench/slow"  // is kept busy with slow calls
	deepKey  = "bench/deep"  // has many calls waiting when the workers start
	probeKey = "bench/probe" // has one call at a time while these are run
)

// witness executes the calls of a measurement and counts violations: two calls of
// a lane at once, or a call that was accepted before one which has run.
type witness struct {
	lane.DefaultHost

	work, slow time.Duration
	violations atomic.Int64
	lanes      sync.Map // protocol.Lane -> *laneState

	waiting atomic.Int64  // calls of the deep lane that have not run
	drained chan struct{} // closed when all have
}

// laneState is what the witness has seen of a lane. It grows with the lanes: the price of checking.
type laneState struct {
	running atomic.Int32
	last    atomic.Uint64
}

func newWitness(o Options) *witness {
	w := &witness{work: o.Work, slow: o.SlowLane, drained: make(chan struct{})}
	w.waiting.Store(int64(o.Waiting))
	return w
}

// Execute implements lane.Executor.
func (w *witness) Execute(ctx context.Context, run *lane.Run) protocol.Result {
	key := run.Call.Lane()
	found, known := w.lanes.Load(key)
	if !known {
		found, _ = w.lanes.LoadOrStore(key, &laneState{})
	}
	state, _ := found.(*laneState)
	if state.running.Add(1) != 1 {
		w.violations.Add(1)
	}
	if last := state.last.Swap(run.Sequence); last >= run.Sequence {
		w.violations.Add(1)
	}
	work := w.work
	if key == slowKey {
		work = w.slow
	}
	if work > 0 {
		timer := time.NewTimer(work)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	state.running.Add(-1)
	if key == deepKey && w.waiting.Add(-1) == 0 {
		close(w.drained)
	}
	if status, fault, interrupted := lane.Interrupted(ctx); interrupted {
		return wire.NewResult(run.Call, status, fault)
	}
	r := wire.NewResult(run.Call, protocol.StatusOK, nil)
	r.Value = wire.NoopResult{}
	return r
}

// Release implements lane.Executor.
func (w *witness) Release(protocol.Lane) {}
