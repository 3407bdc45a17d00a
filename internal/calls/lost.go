package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// checkHeartbeats reads, concurrently with everything else, the heartbeats of those workers of
// calls that have been silent. The lock is held.
func (t *table) checkHeartbeats(now time.Time, calls []*Handle) {
	if t.reading || t.closed || t.d.cannotReadHeartbeats.Load() || now.Sub(t.read) < t.d.options.LookAfter {
		return
	}
	t.read = now
	attempts := map[*Handle]attempt{}
	for _, h := range calls {
		if h.running && now.Sub(h.heard) > silentAfter && now.After(h.attempt.next) {
			attempts[h] = h.attempt
		}
	}
	if len(attempts) == 0 {
		return
	}
	t.reading = true
	t.group.Go(func() {
		t.readHeartbeats(t.sending, attempts)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.reading = false
	})
}

func (t *table) readHeartbeats(ctx context.Context, attempts map[*Handle]attempt) {
	owners := map[poolLane]*lane.Owner{}
	for h, a := range attempts {
		at := laneOf(h.Call)
		owner, known := owners[at]
		if !known {
			var err error
			if owner, err = t.d.publisher.Owner(ctx, h.Call); err != nil {
				t.d.checkSight(ctx, h.Call.Pool)
				return
			}
			owners[at] = owner
		}
		a = t.d.judge(ctx, h.Call, a, owner)
		t.mu.Lock()
		t.applyHeartbeat(h, a)
		t.mu.Unlock()
	}
}

// applyHeartbeat records the state of an attempt, and reports a change; the lock is held.
func (t *table) applyHeartbeat(h *Handle, a attempt) {
	if h.state == handleDone || h.attempt.number != a.number || h.attempt.worker != a.worker {
		return
	}
	before := h.attempt
	h.attempt = a
	if (before.lost == "") != (a.lost == "") || before.over != a.over || before.lacks != a.lacks {
		t.report(h, loop.Update{State: loop.StateRunning, WorkerID: a.worker, Attempt: a.number, Lost: a.lost})
	}
}

// checkSight stops all reading of heartbeats for a user who may not read them.
func (d *Dispatcher) checkSight(ctx context.Context, pool protocol.Pool) {
	if errors.Is(natsio.CheckRights(ctx, d.nc, natsio.OwnerRights(d.fleet, pool)), natsio.ErrRights) {
		d.cannotReadHeartbeats.Store(true)
	}
}

// judge returns what is known of an attempt, by the heartbeat of the owner of its lane.
func (d *Dispatcher) judge(ctx context.Context, call *protocol.Call, a attempt, owner *lane.Owner) attempt {
	who := "worker"
	if call.Pool == protocol.SessionPool {
		who = "coordinator"
	}
	switch mine := owner != nil && owner.Worker == a.worker; {
	case !mine && a.lost == "": // its result, or the start of another attempt, is on its way
	case !mine || owner.Left == 0 && owner.Beat == a.late:
		a.over, a.lacks, a.next = true, "", time.Now().Add(waitsAgain)
		if missing := Lacking(ctx, d.nc, d.fleet, call.Pool); missing != nil {
			a.lacks = missing(lane.NeedOf(call))
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
