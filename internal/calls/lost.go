package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// silentAfter is how long the worker of a running call may send nothing before its heartbeat is
// read, again and again.
const silentAfter = time.Second

// attempt is a start of a call, and what is known of the worker that runs it. The worker is lost
// when its heartbeat is late twice in a row.
type attempt struct {
	number int
	worker protocol.WorkerID
	late   uint64 // the heartbeat that was late
	lost   string // what was last reported; "" while the worker is there
	over   bool   // its lease has ended
	lacks  string // after that, what the other workers lack
	next   time.Time
}

// doubt reads, concurrently with everything else, the heartbeats of workers that have been silent.
func (b *batch) doubt(ctx context.Context, group *sync.WaitGroup) {
	if b.dispatcher.blind.Load() || b.doubting.Load() {
		return
	}
	now := time.Now()
	attempts := map[*protocol.Call]attempt{}
	b.mu.Lock()
	for _, f := range b.open {
		if f.state == loop.StateRunning && now.Sub(f.heard) > silentAfter && now.After(f.attempt.next) {
			attempts[f.call] = f.attempt
		}
	}
	b.mu.Unlock()
	if len(attempts) == 0 {
		return
	}
	b.doubting.Store(true)
	group.Go(func() {
		defer b.doubting.Store(false)
		type place struct {
			pool protocol.Pool
			lane protocol.Lane
		}
		owners := map[place]*lane.Owner{}
		found := map[protocol.CallID]attempt{}
		for call, a := range attempts {
			at := place{call.Pool, call.Lane()}
			owner, known := owners[at]
			if !known {
				var err error
				if owner, err = b.dispatcher.publisher.Owner(ctx, call); err != nil {
					b.dispatcher.checkSight(ctx, call.Pool)
					break
				}
				owners[at] = owner
			}
			found[call.ID] = b.dispatcher.judge(ctx, call, a, owner)
		}
		b.tell(news{attempts: found})
	})
}

// checkSight stops all reading of heartbeats for a user who may not read them.
func (d *Dispatcher) checkSight(ctx context.Context, pool protocol.Pool) {
	if errors.Is(natsio.CheckRights(ctx, d.nc, natsio.OwnerRights(d.fleet, pool)), natsio.ErrRights) {
		d.blind.Store(true)
	}
}

// judge returns what follows for an attempt from the owner of its lane.
func (d *Dispatcher) judge(ctx context.Context, call *protocol.Call, a attempt, owner *lane.Owner) attempt {
	who := "worker"
	if call.Pool == protocol.SessionPool {
		who = "coordinator"
	}
	switch mine := owner != nil && owner.Worker == a.worker; {
	case !mine && a.lost == "": // its result, or the start of another attempt, is on its way
	case !mine || owner.Left == 0 && owner.Beat == a.late:
		a.over, a.lacks, a.next = true, "", time.Now().Add(waitsAgain)
		if lacks := Lacking(ctx, d.nc, d.fleet, call.Pool); lacks != nil {
			a.lacks = lacks(lane.NeedOf(call))
		}
		next := "another " + who + " takes over"
		if call.Delivery == protocol.AtMostOnce {
			next = "the call is not started again"
		}
		a.lost = fmt.Sprintf("%s %s is lost, its lease has ended; %s", who, a.worker, cmp.Or(a.lacks, next))
	case !owner.Late():
		if owner.Beat != a.late { // one that was late stays so when the server's clock is measured again
			a.late, a.lost, a.over, a.lacks = 0, "", false, ""
		}
	case owner.Beat != a.late:
		a.late = owner.Beat
	case a.lost == "":
		next := "then another " + who + " takes over"
		if call.Delivery == protocol.AtMostOnce {
			next = "and the call is not started again"
		}
		a.lost = fmt.Sprintf("%s %s is lost; its lease ends in %d s, %s", who, a.worker, int(owner.Left.Round(time.Second).Seconds()), next)
	}
	return a
}

// believe records the state of attempts, and reports changes.
func (b *batch) believe(attempts map[protocol.CallID]attempt) {
	for id, a := range attempts {
		f := b.open[id]
		if f == nil || f.attempt.number != a.number || f.attempt.worker != a.worker {
			continue
		}
		before := f.attempt
		f.attempt = a
		if (before.lost == "") != (a.lost == "") || before.over != a.over || before.lacks != a.lacks {
			b.observe(loop.Update{CallID: id, State: loop.StateRunning, WorkerID: a.worker, Attempt: a.number, Lost: a.lost})
		}
	}
}
