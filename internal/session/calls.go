package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxTurnLanes bounds the lanes with turns that [Reader.List] looks at.
const maxTurnLanes = 256

// asked are the turns that coordinators were asked for and that have not ended. A session is
// waiting when none of its turns runs.
type asked struct{ running, waiting map[protocol.SessionID]bool }

// asked looks at all sessions; without [Reader.Lanes] it finds none.
func (r *Reader) asked(ctx context.Context) (asked, error) {
	a := asked{running: map[protocol.SessionID]bool{}, waiting: map[protocol.SessionID]bool{}}
	if !r.Lanes {
		return a, nil
	}
	o, err := operator.New(ctx, r.main.NC, r.fleet)
	if err != nil {
		return a, err
	}
	list, err := o.List(ctx, protocol.SessionPool, maxTurnLanes)
	if err != nil {
		return a, err
	}
	for i := range list.Lanes {
		status := &list.Lanes[i]
		id, is := strings.CutPrefix(string(status.Lane), string(serve.Key("")))
		switch {
		case !is:
		case len(status.Running) > 0:
			a.running[protocol.SessionID(id)] = true
		case status.Waiting > 0:
			a.waiting[protocol.SessionID(id)] = true
		}
	}
	return a, nil
}

// applyLanes adds what the lanes say to the state of a session in the journal.
func (a *asked) applyLanes(info *report.Session) {
	switch id := info.SessionID; {
	case a.waiting[id]:
		info.State = report.StateWaitsForCoordinator
	case a.running[id] && info.State == report.StateOpen:
		info.State = report.StateInUse
	}
}

// addWorkers adds to sessions with a turn whether their calls wait for a worker.
func (r *Reader) addWorkers(ctx context.Context, infos ...*report.Session) error {
	waiting := slices.DeleteFunc(slices.Clone(infos), func(i *report.Session) bool {
		return i == nil || i.State != report.StateOpen && i.State != report.StateInUse
	})
	if r.Pool == "" || len(waiting) == 0 {
		return nil
	}
	o, err := operator.New(ctx, r.main.Conn(r.Pool), r.fleet)
	if err != nil {
		return err
	}
	untaken := func(lane *operator.Status) bool { // a worker that does not meet a call's requirements holds the lane for a moment
		return lane.Waiting > 0 && len(lane.Running) == 0 && lane.State != operator.StateLost
	}
	if len(waiting) == 1 {
		view, err := o.Show(ctx, r.Pool, sandboxLane(waiting[0].SessionID), 1)
		if err == nil && untaken(&view.Lane) {
			waiting[0].State = report.StateWaitsForWorker
		}
		if errors.Is(err, operator.ErrNoLane) {
			err = nil
		}
		return err
	}
	list, err := o.List(ctx, r.Pool, maxTurnLanes)
	if err != nil {
		return err
	}
	lanes := make(map[protocol.Lane]bool, len(list.Lanes))
	for i := range list.Lanes {
		lanes[list.Lanes[i].Lane] = untaken(&list.Lanes[i])
	}
	for _, info := range waiting {
		if lanes[sandboxLane(info.SessionID)] {
			info.State = report.StateWaitsForWorker
		}
	}
	return nil
}

// sandboxLane is the lane of what a session does in its sandbox.
func sandboxLane(id protocol.SessionID) protocol.Lane { return protocol.SandboxKey(string(id)).Lane() }

// turn returns the lane of a session's turns; nil without [Reader.Lanes], or when it has none.
func (r *Reader) turn(ctx context.Context, id protocol.SessionID) (*operator.View, error) {
	if !r.Lanes {
		return nil, nil //nolint:nilnil // nothing is known of it
	}
	o, err := operator.New(ctx, r.main.NC, r.fleet)
	if err != nil {
		return nil, err
	}
	view, err := o.Show(ctx, protocol.SessionPool, serve.Key(id).Lane(), 1)
	if errors.Is(err, operator.ErrNoLane) || err == nil && len(view.Calls) == 0 {
		return nil, nil //nolint:nilnil // that is no error
	}
	return view, err
}

// askedOf is the state of a lane of turns.
func askedOf(id protocol.SessionID, view *operator.View) asked {
	if view == nil {
		return asked{}
	}
	only := map[protocol.SessionID]bool{id: true}
	if len(view.Running) > 0 {
		return asked{running: only}
	}
	return asked{waiting: only}
}

// accepted describes a session that has no journal: its first turn was accepted, and no
// coordinator has begun it, or one still asks MCP servers for their tools. The error is [ErrNone]
// when there is no such turn.
func accepted(id protocol.SessionID, view *operator.View) (*report.Session, error) {
	if view == nil {
		return nil, errNoTurn
	}
	call := &view.Calls[0]
	info := &report.Session{
		SessionID: id, State: report.StateWaitsForCoordinator, CreatedAt: &call.AcceptedAt, UpdatedAt: call.AcceptedAt, Turns: 1, Tenant: call.Tenant, Owner: call.Owner,
	}
	if len(view.Running) > 0 {
		info.State = report.StateInUse
	}
	turn := report.Turn{Turn: 1, State: info.State, StartedAt: call.AcceptedAt}
	if run, is := call.Payload.(wire.TurnRun); is {
		turn.Input, info.Prompt, info.Model, info.By = run.Prompt, run.Prompt, run.Model, run.Author.Name
	}
	info.History = []report.Turn{turn}
	return info, nil
}

// Approvals returns the calls of all sessions that wait for a person, also running ones that ask
// one, by the journals, the oldest first. Their coordinators may have been lost.
func (r *Reader) Approvals(ctx context.Context) ([]report.Question, error) {
	open := map[protocol.SessionID]change{}
	err := natsio.EachLast(ctx, r.main.JS, r.events, []string{wire.EventSubject(r.fleet, "*")}, false, func(msg jetstream.Msg) error {
		id := r.owner(msg.Subject())
		delete(open, id) // a call that changes meanwhile is listed twice
		var events []loop.Event
		if json.Unmarshal(msg.Data(), &events) != nil || len(events) == 0 {
			return nil //nolint:nilerr // an unreadable journal waits for no person
		}
		switch events[len(events)-1].Type {
		case loop.EventApprovalAsked, loop.EventJobEnded, loop.EventQuestionAsked, loop.EventAnswered, // else the turn may have ended
			loop.EventInputAdded, loop.EventModelReply, loop.EventNativeCall, loop.EventToolCall, loop.EventToolResult, loop.EventPolicyDecision, // what a job asks stays
			loop.EventPartLeftOut, loop.EventCompacted, loop.EventBudgetLow, loop.EventBudgetSpent, loop.EventReplyFailed:
			about, err := msg.Metadata()
			if err != nil {
				return err
			}
			open[id] = change{id: id, last: about.Sequence.Stream}
		default:
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	read, err := r.journals(ctx, slices.Collect(maps.Values(open)))
	approvals := []report.Question{}
	for _, journal := range read {
		info := journal.described()
		approvals = append(approvals, info.Questions...)
		if info.Approval != nil {
			approvals = append(approvals, *info.Approval)
		}
	}
	slices.SortFunc(approvals, func(a, b report.Question) int {
		return cmp.Or(a.AskedAt.Compare(b.AskedAt), cmp.Compare(a.CallID, b.CallID))
	})
	return approvals, err
}

// listResults lists the results of the session that there are now and that do not stay.
func (r *remover) listResults(ctx context.Context, p *part) (err error) {
	if r.options.Used {
		return nil
	}
	p.settled, err = r.settledCalls(ctx, p)
	return err
}

// settled are calls with a result.
type settled struct {
	calls map[protocol.CallID][]wire.Subject // of their results, and of notes about them
	last  uint64                             // sequence up to which the stream was listed
}

// results removes the listed results, except of calls that a lane still has. The
// session's own lanes have none by now; a call of another one may get its result meanwhile.
func (r *remover) results(ctx context.Context, p *part) error {
	if len(p.settled.calls) == 0 {
		return nil
	}
	ids := make([]protocol.CallID, 0, len(p.settled.calls))
	for id := range p.settled.calls {
		ids = append(ids, id)
	}
	present, complete, err := p.operator.Present(ctx, r.id, ids)
	if err != nil || !complete {
		return err
	}
	if len(present) == 0 {
		return r.purgeResults(ctx, p, wire.ResultSubject(r.fleet.Name, r.id, ">"))
	}
	for id, subjects := range p.settled.calls {
		if present[id] {
			continue
		}
		for _, subject := range subjects {
			if err := r.purgeResults(ctx, p, subject); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *remover) purgeResults(ctx context.Context, p *part, subject wire.Subject) error {
	removed, err := r.purge(ctx, p.fleet, wire.ResultsStream(r.fleet.Name), subject, p.settled.last)
	r.removed.Results += removed
	return err
}

// settledCalls lists the session's results.
func (r *remover) settledCalls(ctx context.Context, p *part) (settled, error) {
	stream, err := p.fleet.JS.Stream(ctx, wire.ResultsStream(r.fleet.Name))
	if err != nil {
		return settled{}, fmt.Errorf("open stream %s: %w", wire.ResultsStream(r.fleet.Name), err)
	}
	filter := wire.ResultSubject(r.fleet.Name, r.id, ">")
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return settled{}, fmt.Errorf("look for %s: %w", filter, err)
	}
	calls := make(map[protocol.CallID][]wire.Subject, len(info.State.Subjects))
	for subject := range info.State.Subjects {
		id, _, _ := strings.Cut(strings.TrimPrefix(subject, strings.TrimSuffix(filter, ">")), ".")
		calls[protocol.CallID(id)] = append(calls[protocol.CallID(id)], subject)
	}
	return settled{calls: calls, last: info.State.LastSeq}, nil
}

// ErrElsewhere means that a session has an open turn without a call: its process serves only this
// session, or was lost.
var ErrElsewhere = errors.New("no serving coordinator has it")

// Cancel ends the turns of a session that run or wait, as interrupted, with the calls that they
// wait for, and returns their ids when they have ended. Without any it does nothing. The error
// wraps [ErrElsewhere] when a turn is open that cannot be reached from here.
func Cancel(ctx context.Context, f *fleet.Fleet, id protocol.SessionID) ([]protocol.CallID, error) {
	cancelled, err := cancel(ctx, f, id)
	if err != nil {
		err = fmt.Errorf("cancel session %s: %w", id, err)
	}
	return cancelled, err
}

func cancel(ctx context.Context, f *fleet.Fleet, id protocol.SessionID) ([]protocol.CallID, error) {
	if err := May(ctx, f, judge.Cancel, id); err != nil {
		return nil, err
	}
	r, err := newRemover(ctx, f, id, Options{})
	if err != nil {
		return nil, err
	}
	cancelled, err := r.cancel(ctx, r.ownLanes()[0], nil)
	if err != nil || len(cancelled) > 0 {
		return cancelled, err
	}
	history, err := f.Journal.Load(ctx, id)
	if err != nil {
		return nil, err
	}
	info := describe(history.Events)
	if IsOpen(info.State) {
		return nil, fmt.Errorf("turn %d is open, and %w: stop the process that runs it, or continue it (run --session %s) if that process was lost",
			info.Turns, ErrElsewhere, id)
	}
	return nil, nil
}

// Unfinished returns what runs or waits for a session in a fleet: turns that coordinators were
// asked for, and calls in its sandbox. A turn that is open without any may have been left.
func Unfinished(ctx context.Context, f *fleet.Fleet, id protocol.SessionID, pool protocol.Pool) (turns, calls []operator.CallStatus, err error) {
	var r *remover
	if err = May(ctx, f, judge.See, id); err == nil {
		r, err = newRemover(ctx, f, id, Options{Pool: pool})
	}
	if err == nil {
		turns, err = r.unfinished(ctx, r.ownLanes()[0])
	}
	if err == nil {
		calls, err = r.unfinished(ctx, r.ownLanes()[1])
	}
	if err != nil {
		return nil, nil, fmt.Errorf("session %s: %w", id, err)
	}
	return turns, calls, nil
}

// Idle returns an error that wraps [ErrBusy] if a lane of a pool has calls without a result, which
// a worker that starts would run. Those that run no program may be there: they complete a command
// that was killed.
func Idle(ctx context.Context, f *fleet.Fleet, pool protocol.Pool) error {
	o, err := operator.New(ctx, f.Conn(pool), f.Name)
	if err != nil {
		return err
	}
	list, err := o.List(ctx, pool, maxTurnLanes)
	if err != nil {
		return err
	}
	for i := range list.Lanes {
		l := &list.Lanes[i]
		if l.Waiting+l.Delayed == 0 {
			continue
		}
		view, err := o.Show(ctx, pool, l.Lane, 0)
		if errors.Is(err, operator.ErrNoLane) {
			continue
		}
		if err != nil {
			return err
		}
		for j := range view.Calls {
			switch call := &view.Calls[j]; call.Payload.(type) {
			case wire.WorkspaceMerge, wire.WorkspaceRestore, wire.WorkspaceRemove:
			default:
				return fmt.Errorf("%w: call %s of session %s has no result; continue that session (run --session)", ErrBusy, call.CallID, call.SessionID)
			}
		}
	}
	return nil
}
