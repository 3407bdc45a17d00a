package overview

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// workerKey is a worker.
type workerKey struct {
	pool protocol.Pool
	id   protocol.WorkerID
}

// known is a worker that has answered.
type known struct {
	Worker

	seen time.Time // when it answered last
}

const (
	// lostAfter is for how long a worker does not answer until it counts as lost if calls ran
	// there, and else as stopped: a worker that stops lets its calls end, and says so meanwhile.
	lostAfter = 10 * time.Second
	// forgetAfter is for how long it is shown as lost.
	forgetAfter = 10 * time.Minute
	// maxKnown bounds the workers that are remembered.
	maxKnown = 10_000
)

// readWorkers asks the workers of all pools. One that does not answer any more is remembered.
func (r *Reader) readWorkers(ctx context.Context) {
	pools := r.lanePools()
	lists := make([][]*report.Worker, len(pools))
	var group errgroup.Group
	group.SetLimit(poolsAtOnce)
	for i, pool := range pools {
		group.Go(func() error {
			lists[i], _ = ask(&r.gaps, partName{partWorkers, pool}, func() ([]*report.Worker, error) { // the error is noted
				return r.client.Workers(ctx, pool, Patience)
			})
			return nil
		})
	}
	_ = group.Wait() // it has none
	now := time.Now()
	for _, w := range slices.Concat(lists...) {
		key := workerKey{w.Pool, w.WorkerID}
		k := r.workers[key]
		switch {
		case k == nil && len(r.workers) >= maxKnown:
			continue
		case k == nil:
			k = &known{}
			r.workers[key] = k
		case k.StartedAt.Equal(w.StartedAt) && w.Ended >= k.Ended && w.Failed >= k.Failed:
			seconds := now.Sub(k.seen).Seconds()
			k.CallsPerS, k.FailedPerS = perSecond(w.Ended-k.Ended, seconds), perSecond(w.Failed-k.Failed, seconds)
		default: // it was started again
			k.CallsPerS, k.FailedPerS = nil, nil
		}
		k.Worker.Worker, k.State, k.SilentMS, k.seen = *w, Serving, 0, now
		if w.Draining {
			k.State = Draining
		}
	}
	for key, k := range r.workers {
		silent := now.Sub(k.seen)
		if silent == 0 || r.isMissing(partName{partWorkers, key.pool}) {
			continue
		}
		k.SilentMS, k.CallsPerS, k.FailedPerS = silent.Milliseconds(), nil, nil
		switch {
		case k.Draining, silent > forgetAfter, silent > lostAfter && k.Running == 0:
			delete(r.workers, key)
		case silent > lostAfter:
			k.State = Lost
		default:
			k.State = Silent
		}
	}
}

func perSecond(n uint64, seconds float64) *float64 {
	if seconds <= 0 {
		return nil
	}
	rate := float64(n) / seconds
	return &rate
}

// severity is the order of the states of workers.
var severity = map[string]int{Lost: 0, Silent: 1, Draining: 2, Serving: 3} //nolint:gochecknoglobals // a constant table

// allWorkers are the workers that are known, and the holders of lost lanes.
func (r *Reader) allWorkers(lanes []report.Lane) (workers, coordinators []Worker) {
	workers, coordinators = []Worker{}, []Worker{}
	for _, k := range r.workers {
		if k.Pool == protocol.SessionPool {
			coordinators = append(coordinators, k.Worker)
		} else {
			workers = append(workers, k.Worker)
		}
	}
	named := map[workerKey]bool{}
	for i := range lanes {
		key := workerKey{lanes[i].Pool, lanes[i].Holder}
		if lanes[i].State != laneLost || key.id == "" || named[key] || r.workers[key] != nil {
			continue
		}
		named[key] = true
		gone := Worker{State: Lost, SilentMS: lanes[i].SilentMS, Worker: report.Worker{WorkerID: key.id, Pool: key.pool, Languages: []string{}}}
		if key.pool == protocol.SessionPool {
			coordinators = append(coordinators, gone)
		} else {
			workers = append(workers, gone)
		}
	}
	for _, all := range [][]Worker{workers, coordinators} {
		slices.SortFunc(all, func(a, b Worker) int {
			return cmp.Or(cmp.Compare(severity[a.State], severity[b.State]), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.WorkerID, b.WorkerID))
		})
	}
	return workers, coordinators
}
