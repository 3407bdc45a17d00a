package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// engine is a way to have the calls of a resource run in order, one by one: it makes calls and has
// workers execute them. The tests have others, to compare with. It is safe for concurrent use.
type engine interface {
	// call makes one call and waits for its result; it reports whether that is a good one.
	call(ctx context.Context, call *protocol.Call) bool
	// connections are those of the workers.
	connections() []*nats.Conn
	// stop ends the workers and waits for them. The context gives values only, not its end.
	stop(ctx context.Context)
}

// startFunc starts an engine with its workers; the witness is their only tool.
type startFunc func(ctx context.Context, nc *nats.Conn, o Options, w *witness) (engine, error)

// lanes is the fleet: a dispatcher and holders.
type lanes struct {
	dispatcher *calls.Dispatcher
	workers    []*nats.Conn
	end        func()
}

func startLanes(ctx context.Context, nc *nats.Conn, o Options, w *witness) (engine, error) {
	workers, stop, err := startHolders(ctx, o, w)
	if err != nil {
		return nil, err
	}
	dispatcher, err := calls.New(ctx, nc, o.Fleet, &calls.Options{Signer: o.Signer, Logger: o.Logger})
	if err != nil {
		stop()
		return nil, err
	}
	return &lanes{dispatcher: dispatcher, workers: workers, end: stop}, nil
}

func (l *lanes) call(ctx context.Context, call *protocol.Call) bool {
	ok := false
	err := l.dispatcher.Dispatch(ctx, []protocol.Call{*call}, func(u loop.Update) {
		ok = u.Result != nil && u.Result.Status == protocol.StatusOK
	})
	return err == nil && ok
}

func (l *lanes) connections() []*nats.Conn { return l.workers }

func (l *lanes) stop(context.Context) { l.end() }

// runner takes calls until ctx ends, and then ends what runs until drain does.
type runner interface {
	Run(ctx, drain context.Context) error
}

// startRunner makes a worker: one whose only tool is the witness, or one with sandboxes.
func startRunner(ctx context.Context, nc *nats.Conn, o Options, w *witness) (runner, error) {
	if o.Exec.Command != "" {
		return startWorker(ctx, nc, o, &w.violations)
	}
	return lane.NewHolder(ctx, nc, w, lane.Options{
		Fleet: o.Fleet, Worker: wire.NewWorkerID("bench"), Slots: o.Slots, Linger: o.Linger, Keys: o.Keys, Logger: o.Logger,
	})
}

// startHolders runs the workers.
func startHolders(ctx context.Context, o Options, w *witness) (connections []*nats.Conn, stop func(), err error) {
	running, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	stop = func() {
		cancel()
		group.Wait()
		for _, nc := range connections {
			nc.Close()
		}
	}
	for i := range o.Workers {
		nc, err := o.Connect(fmt.Sprintf("bench worker %d", i))
		if err != nil {
			stop()
			return nil, nil, err
		}
		connections = append(connections, nc)
		holder, err := startRunner(ctx, nc, o, w)
		if err != nil {
			stop()
			return nil, nil, err
		}
		group.Go(func() { _ = holder.Run(running, context.WithoutCancel(ctx)) }) // ends with running
	}
	return connections, stop, nil
}

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
