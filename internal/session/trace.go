package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session/timeline"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxTraceLanes bounds the lanes that [Trace] looks at for calls without a result.
const maxTraceLanes = 32

// Trace returns where the time of a turn went; 0 is the last one. The error wraps
// [codes.ErrNotFound] when there is none. Of calls without a result their lanes say what they wait
// for, if the user may look at these.
func (r *Reader) Trace(ctx context.Context, id protocol.SessionID, turn int) (*report.Trace, error) {
	f := r.main
	history, err := r.turnOf(ctx, id, turn)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	lanes := &openLanes{fleet: f, views: map[string]*operator.View{}}
	var failed error
	made, err := timeline.Of(timeline.Source{
		Events: history.Events, Now: time.Now(),
		Open: func(call *loop.Event) timeline.Open { return lanes.call(ctx, call) },
		Agent: func(call protocol.CallID) []loop.Event {
			child, err := loop.LoadAgent(ctx, f.Journal, history.Events, call)
			if len(child.Events) > 0 {
				history.Events = append(history.Events, child.Events...) // its own sub-agents name it
			}
			failed = errors.Join(failed, err)
			return child.Events
		},
	}, turn)
	if errors.Is(err, timeline.ErrNoTurn) {
		which := "no turn yet"
		if turn > 0 {
			which = fmt.Sprintf("no turn %d", turn)
		}
		return nil, codes.As(codes.ErrNotFound, fmt.Errorf("session %s has %s", id, which))
	}
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	made.SessionID = id // the turn may be of the session that this one is a fork of
	return made, nil
}

// turnOf are the events of a turn, 0 is the last one, behind what says of which model and which
// forks the session is.
func (r *Reader) turnOf(ctx context.Context, id protocol.SessionID, turn int) (history loop.History, err error) {
	if err := May(ctx, r.main, judge.See, id); err != nil {
		return history, err
	}
	info, err := r.known(ctx, id)
	switch {
	case errors.Is(err, ErrNone):
		return history, errNoTurn
	case err != nil:
		return history, err
	case info.removed:
		return history, loop.ErrRemoved
	case info.copies != "":
		return history, loop.ErrUncompleted
	}
	history.Events = append(history.Events, loop.Event{Type: loop.EventSessionStarted, SessionID: id, StartFields: loop.StartFields{Model: info.Model}})
	for _, from := range info.origins {
		history.Events = append(history.Events, loop.Event{Type: loop.EventSessionForked, SessionID: id, NoteFields: loop.NoteFields{From: from}})
	}
	at := len(info.History) - 1
	if turn > 0 {
		at = slices.IndexFunc(info.History, func(t report.Turn) bool { return t.Turn == turn })
	}
	if at < 0 {
		return history, nil
	}
	for m, err := range r.main.Journal.Messages(ctx, id, info.starts[at]) {
		if err != nil {
			return history, err
		}
		history.Events = append(history.Events, m.Events...)
		if slices.ContainsFunc(m.Events, func(e loop.Event) bool { return e.Type == loop.EventTurnEnded && e.Turn == info.History[at].Turn }) {
			break
		}
	}
	return history, nil
}

// openLanes looks at the lanes of calls without a result, each once.
type openLanes struct {
	fleet *fleet.Fleet
	views map[string]*operator.View // nil for one that cannot be read
}

// call says what a call without a result does or waits for.
func (o *openLanes) call(ctx context.Context, e *loop.Event) timeline.Open {
	view := o.view(ctx, e.Lane)
	if view == nil {
		return timeline.Open{}
	}
	for i := range view.Running {
		if run := &view.Running[i]; run.CallID == e.CallID && run.SessionID == e.SessionID {
			return timeline.Open{Running: true, RunMS: float64(run.RunningMS), WorkerID: view.Holder, Attempt: run.Attempt, Waits: run.Waits}
		}
	}
	i := slices.IndexFunc(view.Calls, func(c report.Call) bool { return c.CallID == e.CallID && c.SessionID == e.SessionID })
	if i < 0 {
		return timeline.Open{Reason: report.ReasonResult} // it has ended, or is not sent yet
	}
	reason, of := waitsFor(view, i)
	return timeline.Open{Reason: reason, For: of}
}

func (o *openLanes) view(ctx context.Context, at string) *operator.View {
	if view, known := o.views[at]; known || len(o.views) >= maxTraceLanes {
		return view
	}
	o.views[at] = nil
	name, lane, _ := strings.Cut(at, "/")
	pool := protocol.Pool(name)
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	part := o.fleet.At(pool)
	if natsio.CheckRights(ctx, part.NC, natsio.LaneRights(o.fleet.Name, pool)) != nil {
		return nil
	}
	lanes, err := operator.New(ctx, part.NC, o.fleet.Name)
	if err == nil {
		o.views[at], err = lanes.Show(ctx, pool, protocol.Lane(lane), 0)
	}
	if err != nil {
		o.views[at] = nil // as if nothing were known: it has ended, or the servers do not answer
	}
	return o.views[at]
}

// waitsFor says what the call at an index of its lane waits for. A call of another tenant is not
// named.
func waitsFor(view *operator.View, index int) (report.Reason, string) {
	call := &view.Calls[index]
	if call.State == operator.CallDelayed {
		return report.ReasonNotBefore, call.NotBefore.UTC().Format(time.RFC3339)
	}
	for i := range index {
		earlier := &view.Calls[i]
		if !conflicts(earlier.Resources, call.Resources) {
			continue
		}
		switch {
		case earlier.Tenant != call.Tenant:
			return report.ReasonLane, ""
		case earlier.SessionID == call.SessionID:
			return report.ReasonLane, string(earlier.CallID)
		}
		return report.ReasonLane, protocol.CallRef{SessionID: earlier.SessionID, ID: earlier.CallID}.String()
	}
	wait := &view.Wait
	switch wait.Reason {
	case report.ReasonLimit, report.ReasonRate:
		return wait.Reason, wait.Limit
	case report.ReasonLost:
		return wait.Reason, string(wait.WorkerID)
	case report.ReasonPause, report.ReasonRetry, report.ReasonWorker:
		return wait.Reason, ""
	default: // what other calls of the lane wait for
		return report.ReasonSlot, ""
	}
}

// conflicts reports whether two calls may not run at the same time.
func conflicts(a, b []protocol.Use) bool {
	one, other := protocol.Call{Resources: a}, protocol.Call{Resources: b}
	return one.ConflictsWith(&other)
}
