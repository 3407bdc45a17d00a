// Package session removes sessions with all that the fleet keeps of them.
//
//	busy? ──► journal ──► unfinished calls ──► workspace ──► journal, results ──► bodies, whole outputs
//	refused    fence: nobody      cancelled       by its worker,   once its lanes
//	or forced  can go on with it  (forced)        a call of its    are free
//	                                              lane
//
// The journal goes first: a process that still runs the session can then not extend it, and stops.
// A turn that waited may begin before it is cancelled, and journals that, so the journal is read
// again when no process has the session any more. Each step may be repeated, so a second removal
// completes one that was cut short.
package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/schedule"
	"github.com/toolfleet/toolfleet/internal/serve"
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
	// Used says that the session has a workspace, or had one a moment ago, as far as the caller
	// knows.
	Used bool
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
	r, err := newRemover(ctx, f, id, o)
	if err != nil {
		return report.Removed{}, fmt.Errorf("remove session %s: %w", id, err)
	}
	if !o.Force {
		if err := r.refuseBusy(ctx, "or force the removal, which cancels what runs"); err != nil {
			return report.Removed{}, fmt.Errorf("remove session %s: %w", id, err)
		}
	}
	for _, step := range r.steps() {
		if err := step(ctx); err != nil {
			return r.removed, fmt.Errorf("remove session %s: %w; some of it may be left: remove it again", id, err)
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
	removed report.Removed
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

// operator is that of the part with a pool.
func (r *remover) operator(pool protocol.Pool) *operator.Operator {
	return r.parts[slices.IndexFunc(r.parts, func(p *part) bool { return p.fleet == r.fleet.At(pool) })].operator
}

// steps are what is done, in its order.
func (r *remover) steps() []func(context.Context) error {
	return []func(context.Context) error{r.journal, r.triggers, r.calls, r.workspace, r.released, r.journal, r.inEach(r.leftover), r.inEach(r.listed), r.inEach(r.results), r.inEach(r.bodies)}
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
	if errors.Is(err, loop.ErrJournalInvalid) {
		reasons = append(reasons, "whether a turn is open cannot be read from its journal")
	} else if err != nil {
		return err
	}
	info := fold(history.Events)
	if IsOpen(info.State) {
		reasons = append(reasons, fmt.Sprintf("turn %d is open", info.History[len(info.History)-1].Turn))
	}
	for _, p := range r.ownLanes() {
		calls, err := r.busy(ctx, p)
		if err != nil {
			return err
		}
		if calls > 0 {
			reasons = append(reasons, fmt.Sprintf("lane %s has %d unfinished calls", p.lane, calls))
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; wait for its end, %s", ErrBusy, strings.Join(reasons, ", "), instead)
}

// busy counts the unfinished calls of a lane, for a moment: one whose result is known already
// may not be out of its mailbox yet.
func (r *remover) busy(ctx context.Context, p ownLane) (int, error) {
	for until := time.Now().Add(moment); ; {
		calls, err := r.unfinished(ctx, p)
		if err != nil || len(calls) == 0 || time.Now().After(until) {
			return len(calls), err
		}
		if !pause.For(ctx, lookPeriod) {
			return 0, ctx.Err()
		}
	}
}

// unfinished returns the unfinished calls of a lane.
func (r *remover) unfinished(ctx context.Context, p ownLane) ([]operator.CallStatus, error) {
	view, err := r.operator(p.pool).Show(ctx, p.pool, p.lane, 0)
	if errors.Is(err, operator.ErrNoLane) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return view.Calls, nil
}

func (r *remover) journal(ctx context.Context) error {
	removed, err := r.purge(ctx, r.fleet, wire.SessionsStream(r.fleet.Name), wire.EventSubject(r.fleet.Name, r.id), 0)
	r.removed.Events += removed
	if err != nil {
		return err
	}
	return natsio.RemoveJournalMarks(ctx, r.fleet.JS, r.fleet.Name, r.id)
}

// triggers removes what would begin turns of the session.
func (r *remover) triggers(ctx context.Context) error {
	store, err := schedule.Open(ctx, r.fleet.JS, r.fleet.Name)
	if err != nil {
		return err
	}
	set, err := store.Triggers(ctx, r.id)
	for _, s := range set {
		if err := store.Remove(ctx, s.Name); err != nil && !errors.Is(err, schedule.ErrUnknown) {
			return err
		}
	}
	return err
}

// calls cancels what is unfinished and waits for its end.
func (r *remover) calls(ctx context.Context) error {
	for _, p := range r.ownLanes() {
		if _, err := r.cancel(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// cancel cancels what is unfinished of a lane, and waits for its end.
func (r *remover) cancel(ctx context.Context, p ownLane) (cancelled []protocol.CallID, err error) {
	for {
		calls, err := r.unfinished(ctx, p)
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

// workspace has a worker remove the workspace, if there is one.
func (r *remover) workspace(ctx context.Context) error {
	if !r.options.Used {
		if there, err := HasWorkspace(ctx, r.fleet.At(r.options.Pool), r.id); err != nil || !there {
			return err
		}
	}
	if _, err := r.call(ctx, wire.RandomCallID(), wire.WorkspaceRemove{}); err != nil {
		return fmt.Errorf("%w (is a worker of pool %s running?)", err, r.options.Pool)
	}
	r.removed.Workspace = true
	return nil
}

// call has a worker do something with the whole workspace.
func (r *remover) call(ctx context.Context, id protocol.CallID, payload protocol.Payload) (protocol.Value, error) {
	call := protocol.Call{
		ID: id, SessionID: r.id, Tool: string(wire.KindOf(payload)), Pool: r.options.Pool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(r.id)), Access: protocol.Exclusive}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now().UTC(), Payload: payload,
	}
	result, err := r.fleet.Dispatcher.One(ctx, &call)
	if err == nil && result.Error != nil {
		err = result.Error
	}
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	return result.Value, nil
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
		for {
			_, err := r.operator(p.pool).Show(ctx, p.pool, p.lane, 1)
			if errors.Is(err, operator.ErrNoLane) {
				break
			}
			if err == nil && !pause.For(ctx, lookPeriod) {
				err = ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("lane %s is not free yet: %w", p.lane, err)
			}
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
