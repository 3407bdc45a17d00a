package session

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxTurnLanes bounds the lanes with turns that [Reader.List] looks at.
const maxTurnLanes = 1024

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

// see adds what lanes tell to what the journal tells.
func (a *asked) see(info *Info) {
	switch id := info.SessionID; {
	case a.waiting[id]:
		info.State = StateWaitsForCoordinator
	case a.running[id] && info.State == StateOpen:
		info.State = StateInUse
	}
}

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

// askedOf is what a lane of turns tells.
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

// accepted describes a session that has no journal: its first turn was accepted, and no coordinator
// has begun it. The error is [ErrNone] when there is no such turn.
func accepted(id protocol.SessionID, view *operator.View) (*Info, error) {
	if view == nil {
		return nil, ErrNone
	}
	call := &view.Calls[0]
	info := &Info{SessionID: id, State: StateWaitsForCoordinator, CreatedAt: &call.AcceptedAt, UpdatedAt: call.AcceptedAt, Turns: 1}
	turn := Turn{Turn: 1, State: info.State, StartedAt: call.AcceptedAt}
	if run, is := call.Payload.(protocol.TurnRun); is {
		turn.Input, info.Prompt, info.Model, info.By = run.Prompt, run.Prompt, run.Model, run.Author.Name
	}
	info.History = []Turn{turn}
	return info, nil
}

// Approvals returns the calls of all sessions that wait for a person, as the journals tell, the
// oldest first. Their coordinators may have been lost.
func (r *Reader) Approvals(ctx context.Context) ([]Approval, error) {
	var open []protocol.SessionID
	err := natsio.EachLast(ctx, r.events, []string{wire.EventSubject(r.fleet, "*")}, false, func(msg jetstream.Msg) error {
		var events []loop.Event
		if json.Unmarshal(msg.Data(), &events) != nil || len(events) == 0 {
			return nil //nolint:nilerr // a journal that cannot be read waits for nobody
		}
		if last := events[len(events)-1].Type; last == loop.EventApprovalAsked || last == loop.EventJobEnded {
			open = append(open, r.owner(msg.Subject()))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	found := make([]*Approval, len(open))
	err = each(ctx, len(open), func(ctx context.Context, i int) error {
		info, err := r.journal(ctx, open[i])
		if err == nil {
			found[i] = info.Approval
		}
		return err
	})
	approvals := []Approval{}
	for _, a := range found {
		if a != nil && !slices.Contains(approvals, *a) { // one that changes meanwhile may be told twice
			approvals = append(approvals, *a)
		}
	}
	slices.SortFunc(approvals, func(a, b Approval) int { return a.AskedAt.Compare(b.AskedAt) })
	return approvals, err
}
