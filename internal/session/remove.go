// Package session removes sessions with all that the fleet keeps of them.
//
//	busy? ──► mark ──► triggers, schedules ──► unfinished calls ──► workspace ──► results, outputs ──► journal
//	refused    the last       nothing wakes       cancelled       by its worker,   once its lanes    last
//	or forced  event of the   the session         (forced)        a call of its    are free
//	           journal                                            lane
//
// The mark is [loop.EventRemoved]. A process that still runs the session cannot append behind it,
// and a turn that waited does not begin, since an empty journal would be that of a new session.
// Each step may be repeated, so a second removal completes one that was cut short. Until then the
// session is listed as being removed.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrBusy is wrapped by the error of [Remove] for a session that has an open turn or
// unfinished calls.
var ErrBusy = errors.New("session is busy")

// Options of [Remove]; zero values mean the documented default.
type Options struct {
	// Pool is whose workers have the session's workspace; "" means the default pool.
	Pool protocol.Pool
	// Force removes a busy session too: its calls are cancelled, and its turn ends.
	Force bool
	// Used says that the session is one of single calls, which has no journal, and a workspace as
	// far as the caller knows. Its results stay until they are too old, for the log of calls.
	Used bool
	// Before is called when nothing refuses the removal, and nothing is removed yet; nil is none.
	Before func(ctx context.Context) error

	removes bool // and does not only look
}

const (
	// lookPeriod is how often unfinished calls are looked for.
	lookPeriod = 100 * time.Millisecond
	// moment is how long a call must be unfinished to count.
	moment = time.Second
)

// Remove removes a session: its journal, workspace, results and kept outputs. One that does not
// exist is fine. Effects elsewhere stay, and so do a workspace in place, and the session's calls in
// other lanes with their results: without its result the next holder of such a lane would run the
// call again. Those age out, or go when the removal is done again. Payloads go with their calls.
//
// The error wraps [ErrBusy] when the session is busy and options do not force it; then
// nothing was removed. After any other error some of it may be left: remove it again.
func Remove(ctx context.Context, f *fleet.Fleet, id protocol.SessionID, o Options) (report.Removed, error) {
	o.removes = true
	if err := May(ctx, f, judge.Remove, id); err != nil {
		return report.Removed{}, err
	}
	r, err := newRemover(ctx, f, id, o)
	if err != nil {
		return report.Removed{}, fmt.Errorf("remove session %s: %w", id, err)
	}
	if !o.Force {
		err := r.refuseBusy(ctx, "or force the removal, which cancels what runs")
		if err == nil {
			err = r.refuseScheduled(ctx)
		}
		if err != nil {
			return report.Removed{}, fmt.Errorf("remove session %s: %w", id, err)
		}
	}
	if o.Before != nil {
		if err := o.Before(ctx); err != nil {
			return report.Removed{}, err
		}
	}
	settling, stop := context.WithCancel(ctx)
	defer r.settlers.Wait()
	defer stop()
	r.settling = settling
	for _, step := range r.steps() {
		err := step(ctx)
		if errors.Is(err, journal.ErrBegunAgain) {
			return r.removed, fmt.Errorf("remove session %s: %w", id, err)
		}
		if err != nil {
			return r.removed, fmt.Errorf("remove session %s: %w; some of it may be left: remove it again", id, err)
		}
	}
	if f.Removed != nil && !o.Used {
		if err := f.Removed(ctx, id); err != nil {
			return r.removed, fmt.Errorf("remove session %s: its text is still in the index of sessions: %w; remove it again", id, err)
		}
	}
	return r.removed, nil
}

// remover removes one session.
type remover struct {
	fleet   *fleet.Fleet
	parts   []*part
	id      protocol.SessionID
	options Options
	history loop.History // when it was found idle
	removed report.Removed

	unmarked bool // the stream of journals has no room for the mark

	settling context.Context //nolint:containedctx // of the settlers: they end with the removal
	settlers sync.WaitGroup
	settled  map[ownLane]bool // has a settler

	journals  loop.Journal      // of a change
	completed []protocol.Result // of changes that were interrupted
}

// part is a part of the fleet, and what it has of the session.
type part struct {
	fleet    *fleet.Fleet
	operator *operator.Operator
	settled  settled
}

func newRemover(ctx context.Context, f *fleet.Fleet, id protocol.SessionID, o Options) (*remover, error) {
	if o.Pool == "" {
		o.Pool = protocol.DefaultPool
	}
	r := &remover{fleet: f, id: id, options: o}
	for _, of := range f.Parts() {
		operator, err := operator.New(ctx, of.NC, f.Name)
		if err != nil {
			return nil, err
		}
		r.parts = append(r.parts, &part{fleet: of, operator: operator})
	}
	return r, nil
}

// operator returns the operator of a pool.
func (r *remover) operator(pool protocol.Pool) *operator.Operator {
	return r.parts[slices.IndexFunc(r.parts, func(p *part) bool { return p.fleet == r.fleet.At(pool) })].operator
}

// steps are what is done, in its order.
func (r *remover) steps() []func(context.Context) error {
	steps := []func(context.Context) error{
		r.mark, r.triggers, r.calls, r.workspace, r.released, r.markAlone, r.triggers, // of a turn that ran meanwhile
		r.inEach(r.leftover), r.inEach(r.listResults), r.inEach(r.results), r.inEach(r.bodies), r.journal,
	}
	for i, step := range steps[1:] {
		steps[i+1] = func(ctx context.Context) error {
			if !r.options.Used && !r.unmarked { // if it was stopped, another process may have completed the removal
				if _, err := r.fleet.Journal.Removing(ctx, r.id); err != nil {
					return err
				}
			}
			return step(ctx)
		}
	}
	return steps
}

// inEach is a step that is done in each part.
func (r *remover) inEach(step func(context.Context, *part) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, p := range r.parts {
			if err := step(ctx, p); err != nil {
				return err
			}
		}
		return nil
	}
}

// ownLane is a lane that is the session's own.
type ownLane struct {
	pool protocol.Pool
	lane protocol.Lane
}

// ownLanes are the session's own lanes: its turns, and then what they do in its sandbox.
func (r *remover) ownLanes() []ownLane {
	return []ownLane{
		{protocol.SessionPool, serve.Key(r.id).Lane()},
		{r.options.Pool, sandboxLane(r.id)},
	}
}

// refuseBusy returns an error that says why the session is busy, and how not to wait.
func (r *remover) refuseBusy(ctx context.Context, instead string) error {
	var reasons []string
	history, err := r.fleet.Journal.Load(ctx, r.id)
	switch {
	case errors.Is(err, loop.ErrJournalInvalid):
		reasons = append(reasons, "whether a turn is open cannot be read from its journal")
	case r.options.removes && errors.Is(err, loop.ErrRemoved): // what was open does not go on
		history.Events = nil
	case r.options.removes && errors.Is(err, loop.ErrUncompleted):
	case err != nil:
		return err
	}
	r.history = history
	info := describe(history.Events)
	if IsOpen(info.State) {
		reasons = append(reasons, fmt.Sprintf("turn %d is open", info.History[len(info.History)-1].Turn))
	}
	for _, p := range r.ownLanes() {
		calls, holder, err := r.busy(ctx, p)
		if err != nil {
			return err
		}
		if calls > 0 {
			reasons = append(reasons, fmt.Sprintf("lane %s has %d unfinished calls%s", p.lane, calls, holder))
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; wait for its end, %s", ErrBusy, strings.Join(reasons, ", "), instead)
}

// busy counts the unfinished calls of a lane, for a moment: one whose result is known already
// may not be out of its mailbox yet. holder says who has the lane; "" if no worker has it.
func (r *remover) busy(ctx context.Context, p ownLane) (calls int, holder string, err error) {
	for until := time.Now().Add(moment); ; {
		view, err := r.lane(ctx, p)
		if err != nil || len(view.Calls) == 0 || time.Now().After(until) {
			if view.Holder != "" {
				holder = " at " + string(view.Holder)
			}
			return len(view.Calls), holder, err
		}
		if !pause.For(ctx, lookPeriod) {
			return 0, "", ctx.Err()
		}
	}
}

// unfinished returns the unfinished calls of a lane.
func (r *remover) unfinished(ctx context.Context, p ownLane) ([]operator.CallStatus, error) {
	view, err := r.lane(ctx, p)
	return view.Calls, err
}

// lane returns the view of a lane; it is empty if the lane does not exist.
func (r *remover) lane(ctx context.Context, p ownLane) (operator.View, error) {
	view, err := r.operator(p.pool).Show(ctx, p.pool, p.lane, 0)
	if errors.Is(err, operator.ErrNoLane) {
		return operator.View{}, nil
	}
	if err != nil {
		return operator.View{}, err
	}
	return *view, nil
}

// mark marks the journal. Without Force a turn that has begun since the session was found idle
// refuses the removal.
func (r *remover) mark(ctx context.Context) (err error) {
	switch {
	case r.options.Used: // single calls, whose user may have no right to write journals
		return nil
	case r.options.Force:
		return r.noRoom(r.fleet.Journal.Mark(ctx, r.id))
	}
	if _, err = r.fleet.Journal.Load(ctx, r.id); errors.Is(err, loop.ErrRemoved) {
		return nil // by a removal that was cut short
	}
	if err = r.fleet.Journal.MarkBehind(ctx, r.id, r.history.Last); errors.Is(err, loop.ErrJournalConflict) {
		err = errBegun
	}
	return r.noRoom(err)
}

// noRoom is the error of a mark, but for that of a stream without room: then the mark takes the
// place of the journal when nothing of the session is unfinished any more.
func (r *remover) noRoom(err error) error {
	r.unmarked = errors.Is(err, &protocol.Error{Code: protocol.CodeFleetFull})
	if r.unmarked {
		return nil
	}
	return err
}

// markAlone marks a journal in whose stream there was no room for the mark.
func (r *remover) markAlone(ctx context.Context) error {
	if !r.unmarked {
		return nil
	}
	err := r.fleet.Journal.MarkAlone(ctx, r.id)
	if errors.Is(err, loop.ErrJournalConflict) {
		err = errBegun
	}
	return err
}

// errBegun means that a turn or another change of a session has begun since it was found idle.
var errBegun = fmt.Errorf("%w: it was extended meanwhile; nothing was changed", ErrBusy)

// journal removes the journal with its mark. A record stays that the session was removed; one of
// single calls has had no mark, and leaves none.
func (r *remover) journal(ctx context.Context) error {
	stream, subject := wire.SessionsStream(r.fleet.Name), wire.EventSubject(r.fleet.Name, r.id)
	if r.options.Used {
		removed, err := r.purge(ctx, r.fleet, stream, subject, 0)
		r.removed.Events += removed
		return err
	}
	removed, err := r.fleet.Journal.Forget(ctx, r.id, journal.RemovedAge)
	if err != nil {
		return err
	}
	r.removed.Events += removed
	return natsio.RemoveJournalMarks(ctx, r.fleet.JS, r.fleet.Name, r.id)
}

// schedules returns the store, and the schedules that begin turns of the session, or calls in its
// sandbox.
func (r *remover) schedules(ctx context.Context) (store *schedule.Store, using []*schedule.Schedule, err error) {
	if store, err = schedule.Open(ctx, r.fleet.JS, r.fleet.Name); err != nil {
		return nil, nil, err
	}
	using, err = store.Of(ctx, r.id)
	return store, using, err
}

// refuseScheduled returns an error if users' schedules begin turns of the session.
func (r *remover) refuseScheduled(ctx context.Context) error {
	_, using, err := r.schedules(ctx)
	for _, s := range using {
		if s.By == "" {
			return fmt.Errorf("%w: schedule %s starts turns or calls in it; remove that (schedule rm %s), or force the removal, which removes it too", ErrBusy, s.Name, s.Name)
		}
	}
	return err
}

// triggers removes what would begin turns of the session.
func (r *remover) triggers(ctx context.Context) error {
	store, using, err := r.schedules(ctx)
	for _, s := range using {
		switch err := store.Remove(ctx, s.Name); {
		case err != nil && !errors.Is(err, schedule.ErrUnknown):
			return err
		case s.By == "":
			r.removed.Schedules = append(r.removed.Schedules, s.Name)
		}
	}
	return err
}

// calls cancels what is unfinished and waits for its end.
func (r *remover) calls(ctx context.Context) error {
	for _, p := range r.ownLanes() {
		if _, err := r.cancel(ctx, p, nil); err != nil {
			return err
		}
	}
	sent := map[ownLane][]protocol.CallID{}
	if err := r.sent(ctx, r.id, sent); err != nil {
		return err
	}
	for p, ids := range sent {
		if _, err := r.cancel(ctx, p, ids); err != nil {
			return err
		}
	}
	return nil
}

// sent adds the calls without an end of a session and its sub-agents, by their lanes. Only their
// turns wait for them.
func (r *remover) sent(ctx context.Context, id protocol.SessionID, sent map[ownLane][]protocol.CallID) error {
	history, err := r.fleet.Journal.Load(ctx, id)
	switch {
	case errors.Is(err, loop.ErrJournalInvalid):
		return nil
	case err != nil && !errors.Is(err, loop.ErrRemoved) && !errors.Is(err, loop.ErrUncompleted):
		return err
	}
	var open loop.SessionState
	for i := range history.Events {
		if e := &history.Events[i]; e.Type == loop.EventSessionForked || e.Type == loop.EventImported {
			open = loop.SessionState{} // calls before are not its own
		} else {
			open.Apply(e)
		}
	}
	for _, e := range slices.Concat(open.Calls(), open.Jobs) {
		if e.Name == wire.AgentTool && e.CallID != "" {
			if err := r.sent(ctx, protocol.SessionID(e.CallID), sent); err != nil {
				return err
			}
		}
		if pool, lane, ok := strings.Cut(e.Lane, "/"); ok {
			p := ownLane{protocol.Pool(pool), protocol.Lane(lane)}
			sent[p] = append(sent[p], e.CallID)
		}
	}
	return nil
}

// settleAfter is how long a removal waits for the worker or coordinator that has a lane.
const settleAfter = 2 * time.Second

// settle has the calls of a lane answered that are cancelled, if they have waited since begun for a
// worker or a coordinator. This process may claim the lane as they do when it is free: if its
// holder was lost, when its lease is over. So the removal needs nothing else that runs.
func (r *remover) settle(p ownLane, begun time.Time) {
	if r.settling == nil || r.settled[p] || time.Since(begun) < settleAfter {
		return
	}
	if r.settled == nil {
		r.settled = map[ownLane]bool{}
	}
	r.settled[p] = true
	r.settlers.Go(func() {
		for {
			holder, err := lane.NewHolder(r.settling, r.fleet.Conn(p.pool), settler{}, lane.Options{
				Fleet: r.fleet.Name, Pool: p.pool, Worker: wire.NewWorkerID("remove"), Settles: []protocol.Lane{p.lane},
			})
			if err == nil {
				_ = holder.Run(r.settling, r.settling)
			}
			if !pause.For(r.settling, settleAfter) { // without the rights of a worker it waits for one
				return
			}
		}
	})
}

// settler is a host that runs nothing.
type settler struct{ lane.DefaultHost }

// Execute implements [lane.Executor]; it is not called.
func (settler) Execute(_ context.Context, run *lane.Run) protocol.Result {
	return wire.NewResult(run.Call, protocol.StatusRejected, protocol.Errorf(protocol.CodeInternal, "a process that removes a session runs no calls"))
}

// Release implements [lane.Executor].
func (settler) Release(protocol.Lane) {}

// cancel cancels what is unfinished of a lane, and waits for its end.
func (r *remover) cancel(ctx context.Context, p ownLane, only []protocol.CallID) (cancelled []protocol.CallID, err error) {
	for begun := time.Now(); ; {
		r.settle(p, begun)
		calls, err := r.unfinished(ctx, p)
		calls = slices.DeleteFunc(calls, func(c operator.CallStatus) bool { return only != nil && !slices.Contains(only, c.CallID) })
		if err != nil || len(calls) == 0 {
			return cancelled, err
		}
		for i := range slices.Backward(calls) { // the last first, so that none starts because one before it was stopped
			id := calls[i].CallID
			if slices.Contains(cancelled, id) {
				continue
			}
			cancelled = append(cancelled, id)
			if err := r.operator(p.pool).Skip(ctx, p.pool, p.lane, id); err != nil && !errors.Is(err, operator.ErrNoCall) && !errors.Is(err, operator.ErrNoLane) {
				return cancelled, err
			}
		}
		if !pause.For(ctx, lookPeriod) {
			return cancelled, fmt.Errorf("%d calls of lane %s have not ended yet: %w", len(calls), p.lane, ctx.Err())
		}
	}
}

// workspace has a worker remove the workspace, if there is one. If no worker of the pool answers,
// it is left to [remover.leftover].
func (r *remover) workspace(ctx context.Context) error {
	if !r.options.Used {
		if there, err := HasWorkspace(ctx, r.fleet.At(r.options.Pool), r.id); err != nil || !there {
			return err
		}
	}
	served, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	r.settlers.Go(func() { r.awaitLoss(served, leave) })
	_, err := r.call(served, wire.RandomCallID(), wire.WorkspaceRemove{})
	if errors.Is(context.Cause(served), errUnserved) {
		_, err = r.cancel(ctx, r.ownLanes()[1], nil)
	}
	if err != nil {
		return fmt.Errorf("%w (is a worker of pool %s running?)", err, r.options.Pool)
	}
	r.removed.Workspace = true
	return nil
}

// errUnserved is the cause with which the context of a call ends that no worker can run.
var errUnserved = errors.New("no worker answers")

// awaitLoss ends a context when no worker of the pool answers.
func (r *remover) awaitLoss(ctx context.Context, end context.CancelCauseFunc) {
	for pause.For(ctx, settleAfter) {
		workers, err := calls.Workers(ctx, r.fleet.Conn(r.options.Pool), r.fleet.Name, r.options.Pool, settleAfter)
		if ctx.Err() == nil && (errors.Is(err, nats.ErrNoResponders) || err == nil && len(workers) == 0) {
			end(errUnserved)
			return
		}
	}
}

// call has a worker do something with the whole workspace.
func (r *remover) call(ctx context.Context, id protocol.CallID, payload protocol.Payload) (protocol.Value, error) {
	call := r.callOf(id, payload)
	result, err := r.fleet.Dispatcher.Call(ctx, &call)
	if err == nil && result.Error != nil {
		err = result.Error
	}
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	return result.Value, nil
}

func (r *remover) callOf(id protocol.CallID, payload protocol.Payload) protocol.Call {
	return protocol.Call{
		ID: id, SessionID: r.id, Tool: string(wire.KindOf(payload)), Pool: r.options.Pool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(r.id)), Access: protocol.Exclusive}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now().UTC(), Payload: payload,
	}
}

// HasWorkspace reports whether a session has a workspace in a part of the fleet.
func HasWorkspace(ctx context.Context, f *fleet.Fleet, id protocol.SessionID) (bool, error) {
	lane := wire.HashLane(protocol.SandboxKey(string(id)).Lane())
	workspaces, err := workspace.Open(ctx, f.NC, f.Name, f.Bodies)
	if err != nil {
		return false, err
	}
	return workspaces.Has(ctx, lane)
}

// leftover removes a workspace of the session in another pool than that of its sandbox, as of tools
// whose workers have a pool of their own.
func (r *remover) leftover(ctx context.Context, p *part) error {
	return workspace.Discard(ctx, p.fleet.NC, r.fleet.Name, p.fleet.Bodies, sandboxLane(r.id))
}

// released waits until no worker holds the session's lanes. As long as one does, a settled call
// may be in its ready message: without its result it would be run again after a lost worker.
func (r *remover) released(ctx context.Context) error {
	for _, p := range r.ownLanes() {
		var err error
		begun := time.Now()
		pause.Until(ctx, lookPeriod, func() bool {
			r.settle(p, begun)
			_, err = r.operator(p.pool).Show(ctx, p.pool, p.lane, 1)
			return err != nil
		})
		if err = cmp.Or(err, ctx.Err()); !errors.Is(err, operator.ErrNoLane) {
			return fmt.Errorf("lane %s is not free yet: %w", p.lane, err)
		}
	}
	return nil
}

// purge removes the messages of a subject up to a sequence, 0 for all, and returns how many there
// were.
func (r *remover) purge(ctx context.Context, f *fleet.Fleet, name string, subject wire.Subject, last uint64) (uint64, error) {
	stream, err := f.JS.Stream(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("open stream %s: %w", name, err)
	}
	before, err := messagesOf(ctx, stream, subject)
	if err != nil || before == 0 {
		return 0, err
	}
	options := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(subject)}
	if last > 0 {
		options = append(options, jetstream.WithPurgeSequence(last+1))
	}
	if err := stream.Purge(ctx, options...); err != nil {
		return 0, fmt.Errorf("purge %s: %w", subject, err)
	}
	left, err := messagesOf(ctx, stream, subject)
	return before - min(before, left), err
}
