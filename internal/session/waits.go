package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

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

// see adds the state of the lanes to that of the journal.
func (a *asked) see(info *report.Session) {
	switch id := info.SessionID; {
	case a.waiting[id]:
		info.State = report.StateWaitsForCoordinator
	case a.running[id] && info.State == report.StateOpen:
		info.State = report.StateInUse
	}
}

// seeWorkers adds to sessions with a turn whether their calls wait for a worker.
func (r *Reader) seeWorkers(ctx context.Context, infos ...*report.Session) error {
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
	info := &report.Session{SessionID: id, State: report.StateWaitsForCoordinator, CreatedAt: &call.AcceptedAt, UpdatedAt: call.AcceptedAt, Turns: 1}
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
		delete(open, id) // one that changes meanwhile comes twice
		var events []loop.Event
		if json.Unmarshal(msg.Data(), &events) != nil || len(events) == 0 {
			return nil //nolint:nilerr // an unreadable journal waits for no person
		}
		switch events[len(events)-1].Type {
		case loop.EventApprovalAsked, loop.EventJobEnded, // any other event comes after the answer
			loop.EventQuestionAsked, loop.EventAnswered, loop.EventToolResult, loop.EventPolicyDecision: // of other calls
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
