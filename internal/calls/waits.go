package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// waitsAfter is how long a call waits until it is asked whether any worker could run it, again
	// and again after waitsAgain.
	waitsAfter = 2 * time.Second
	waitsAgain = 5 * time.Second
	// answersWait bounds the time for the workers' answers.
	answersWait = 500 * time.Millisecond
)

// Workers returns what the workers of a pool say about themselves within a time, sorted by their
// ids. The error is [nats.ErrNoResponders] when there is none.
func Workers(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, pool protocol.Pool, wait time.Duration) ([]*wire.WorkerInfo, error) {
	return ask(ctx, nc, fleet, pool, wait, func(*wire.WorkerInfo) bool { return false })
}

// ask is [Workers], and returns early once a worker is enough.
func ask(
	ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, pool protocol.Pool, wait time.Duration, enough func(*wire.WorkerInfo) bool,
) ([]*wire.WorkerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	inbox := nc.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answers.Unsubscribe() }() // fails only when the connection is closed
	if err := nc.PublishRequest(wire.WhoSubject(fleet, pool), inbox, nil); err != nil {
		return nil, err
	}
	var workers []*wire.WorkerInfo
	for {
		answer, err := answers.NextMsgWithContext(ctx)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			slices.SortFunc(workers, func(a, b *wire.WorkerInfo) int { return cmp.Compare(a.WorkerID, b.WorkerID) })
			return workers, nil
		case err != nil:
			return nil, err
		}
		if w, err := wire.Decode[wire.WorkerInfo](answer.Data); err == nil { // others are of another version
			if workers = append(workers, w); enough(w) {
				return workers, nil
			}
		}
	}
}

// Lacking asks the workers of a pool, which takes half a second, and returns a function that names
// the requirement of a call that none of them meets: "" when one of them meets all. The function is
// nil if no worker answers.
func Lacking(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, pool protocol.Pool) func(lane.Requirements) string {
	workers, err := Workers(ctx, nc, fleet, pool, answersWait)
	if err != nil && !errors.Is(err, nats.ErrNoResponders) || err == nil && len(workers) == 0 {
		return nil
	}
	workers = slices.DeleteFunc(workers, func(w *wire.WorkerInfo) bool { return w.Draining })
	return func(n lane.Requirements) string { return unmetBy(pool, workers, n) }
}

// AddUnmet sets WaitsFor of calls whose requirements no worker of their pool meets, if workers
// answer.
func AddUnmet(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, pool protocol.Pool, calls []report.Call) {
	if !slices.ContainsFunc(calls, func(c report.Call) bool { return c.Needs != nil }) {
		return
	}
	missing := Lacking(ctx, nc, fleet, pool)
	for i := range calls {
		if missing != nil && calls[i].Needs != nil {
			if calls[i].WaitsFor = missing(*calls[i].Needs); calls[i].WaitsFor != "" {
				calls[i].Wait = report.Wait{Reason: report.ReasonWorker, Pool: pool}
			}
		}
	}
}

// AddUnserved says of lost lanes that nothing takes them over, because their pool has no worker.
// The server says that at once, and one answer is enough. Without the right to ask, nothing is
// said.
func AddUnserved(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, pool protocol.Pool, lanes []report.Lane) {
	isLost := func(l report.Lane) bool { return l.Wait.Reason == report.ReasonLost }
	if !slices.ContainsFunc(lanes, isLost) || natsio.CheckRights(ctx, nc, natsio.WorkersRights(fleet, pool)) != nil {
		return
	}
	if _, err := ask(ctx, nc, fleet, pool, answersWait, func(*wire.WorkerInfo) bool { return true }); !errors.Is(err, nats.ErrNoResponders) {
		return
	}
	for i := range lanes {
		if isLost(lanes[i]) {
			lanes[i].WaitsFor, lanes[i].Wait = unmetBy(pool, nil, lane.Requirements{}), report.Wait{Reason: report.ReasonWorker, Pool: pool}
		}
	}
}

// askForWorkers asks, once in a while and concurrently with everything else, whether there are
// workers for the calls that have waited for long. The lock is held.
func (t *table) askForWorkers(now time.Time, calls []*Handle) {
	if t.asking || t.closed {
		return
	}
	var waiting []*Handle
	for _, h := range calls {
		if h.accepted && !h.running && !h.taken && now.Sub(h.since) > waitsAfter+h.Call.Delay() && now.Sub(h.asked) > waitsAgain {
			h.asked = now
			waiting = append(waiting, h)
		}
	}
	if len(waiting) == 0 {
		return
	}
	t.asking = true
	t.group.Go(func() {
		t.reportUnmet(t.sending, waiting)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.asking = false
	})
}

// reportUnmet reports what calls wait for if no worker can run them, or that they run.
func (t *table) reportUnmet(ctx context.Context, waiting []*Handle) {
	pools := map[protocol.Pool]func(lane.Requirements) string{}
	for _, h := range waiting {
		frame := t.d.started(ctx, h.Call)
		missing, asked := pools[h.Call.Pool]
		if frame == nil && !asked {
			missing = Lacking(ctx, t.d.nc, t.d.fleet, h.Call.Pool)
			pools[h.Call.Pool] = missing
		}
		why := ""
		if frame == nil && missing != nil {
			why = missing(lane.RequirementsOf(h.Call))
		}
		t.mu.Lock()
		switch {
		case h.state == handleDone:
		case frame != nil:
			t.progressed(h, frame)
		case missing != nil:
			t.waitsFor(h, why)
		}
		t.mu.Unlock()
	}
}

// started is the report of a start that this process missed: an earlier one sent the call, and only
// that one got the report. It is nil if the call does not run, or if the user may not look at
// lanes.
func (d *Dispatcher) started(ctx context.Context, call *protocol.Call) *wire.Frame {
	if !call.Again || d.cannotReadLanes.Load() {
		return nil
	}
	if errors.Is(natsio.CheckRights(ctx, d.nc, natsio.LaneRights(d.fleet, call.Pool)), natsio.ErrRights) {
		d.cannotReadLanes.Store(true)
		return nil
	}
	o, err := operator.New(ctx, d.nc, d.fleet)
	if err != nil {
		return nil
	}
	view, err := o.Show(ctx, call.Pool, call.Lane(), 1)
	if err != nil {
		return nil
	}
	for _, run := range view.Running {
		if run.CallID == call.ID {
			return &wire.Frame{Kind: wire.FrameStarted, CallID: call.ID, WorkerID: view.Holder, Attempt: run.Attempt}
		}
	}
	return nil
}

// unmetBy names the requirement of a call that no worker of the pool meets; "" if one meets all.
func unmetBy(pool protocol.Pool, workers []*wire.WorkerInfo, n lane.Requirements) string {
	if pool == protocol.SessionPool {
		return unserved(workers, n.Model)
	}
	handler, level := "a sandbox", "level "+n.Level
	if n.Handler {
		handler = "handler " + string(n.Kind)
	}
	var handling, isolating []string
	for _, w := range workers {
		has, isolates := hasHandler(w, n), wire.HigherLevel(w.Level, n.Level) == w.Level
		if has && isolates {
			return ""
		}
		if has {
			handling = append(handling, string(w.WorkerID))
		}
		if isolates && n.Level != "" && w.Driver != driverNone {
			isolating = append(isolating, string(w.WorkerID))
		}
	}
	if len(workers) == 0 {
		return fmt.Sprintf("pool %s has no worker that answers", pool)
	}
	var missing, offered []string
	for what, by := range map[string][]string{handler: handling, level: isolating} {
		switch {
		case len(by) > 0:
			offered = append(offered, what+" is offered by "+strings.Join(by[:min(len(by), maxNamed)], ", "))
		case what == handler || n.Level != "":
			missing = append(missing, what)
		}
	}
	slices.Sort(missing)
	slices.Sort(offered)
	text := fmt.Sprintf("%d workers of pool %s, none offers %s", len(workers), pool, cmp.Or(strings.Join(missing, " and "), "both"))
	if len(workers) == 1 {
		text = strings.Replace(text, "workers", "worker", 1)
	}
	return strings.Join(append([]string{text}, offered...), "; ")
}

// unserved says that no coordinator serves the model of a turn; "" when one does.
func unserved(coordinators []*wire.WorkerInfo, model string) string {
	if len(coordinators) == 0 {
		return "no coordinator serves this fleet now; the turn is stored, and starts when one does (coordinator serve)"
	}
	var served []string
	for _, c := range coordinators {
		if model == "" || slices.Contains(c.Models, model) {
			return ""
		}
		served = append(served, c.Models...)
	}
	slices.Sort(served)
	return fmt.Sprintf("no coordinator serves model %q; served are: %s", model, strings.Join(slices.Compact(served), ", "))
}

// Unserved says, before a turn is sent, that no coordinator serves its model. It is "" when one
// does, and when no coordinator answers: the turn waits for one.
func Unserved(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, model string) string {
	if model == "" {
		return ""
	}
	coordinators, err := ask(ctx, nc, fleet, protocol.SessionPool, answersWait, func(c *wire.WorkerInfo) bool {
		return slices.Contains(c.Models, model)
	})
	if err != nil || len(coordinators) == 0 {
		return ""
	}
	return unserved(coordinators, model)
}

const (
	// maxNamed bounds the workers that are named.
	maxNamed = 5
	// driverNone is the driver of workers without sandboxes.
	driverNone = "none"
)

// hasHandler reports whether a worker runs payloads of a kind at all.
func hasHandler(w *wire.WorkerInfo, n lane.Requirements) bool {
	if n.Handler {
		return slices.Contains(w.Kinds, n.Kind)
	}
	return w.Driver != driverNone
}

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
	unmet  string // after that, the requirement that no other worker meets
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
				t.d.checkHeartbeatRights(ctx, h.Call.Pool)
				return
			}
			owners[at] = owner
		}
		a = t.d.assess(ctx, h.Call, a, owner)
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
	if (before.lost == "") != (a.lost == "") || before.over != a.over || before.unmet != a.unmet {
		t.report(h, loop.Update{State: loop.StateRunning, WorkerID: a.worker, Attempt: a.number, Lost: a.lost})
	}
}

// checkHeartbeatRights stops all reading of heartbeats for a user who may not read them.
func (d *Dispatcher) checkHeartbeatRights(ctx context.Context, pool protocol.Pool) {
	if errors.Is(natsio.CheckRights(ctx, d.nc, natsio.OwnerRights(d.fleet, pool)), natsio.ErrRights) {
		d.cannotReadHeartbeats.Store(true)
	}
}

// assess returns what is known of an attempt, by the heartbeat of the owner of its lane.
func (d *Dispatcher) assess(ctx context.Context, call *protocol.Call, a attempt, owner *lane.Owner) attempt {
	who := "worker"
	if call.Pool == protocol.SessionPool {
		who = "coordinator"
	}
	switch mine := owner != nil && owner.Worker == a.worker; {
	case !mine && a.lost == "": // its result, or the start of another attempt, is on its way
	case !mine || owner.Left == 0 && owner.Beat == a.late:
		a.over, a.unmet, a.next = true, "", time.Now().Add(waitsAgain)
		if missing := Lacking(ctx, d.nc, d.fleet, call.Pool); missing != nil {
			a.unmet = missing(lane.RequirementsOf(call))
		}
		next := "another " + who + " takes over"
		if call.Delivery == protocol.AtMostOnce {
			next = "the call is not started again"
		}
		a.lost = fmt.Sprintf("%s %s is lost, its lease has ended; %s", who, a.worker, cmp.Or(a.unmet, next))
	case !owner.Late():
		if owner.Beat != a.late { // a late heartbeat stays late when the server's clock is measured again
			a.late, a.lost, a.over, a.unmet = 0, "", false, ""
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
