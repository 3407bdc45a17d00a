package loop

import (
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// dialog is the stateful session of a tool, according to the journal.
type dialog struct {
	handle string
	opened tools.Opened
	// ending is why it cannot be continued, known since the given step; "" while it can.
	ending wire.DialogEnding
	since  tools.Place
}

// noteDialog takes what a result says about a dialog: that call opened it, or that it ended.
func (s *session) noteDialog(e *Event, call *stepCall) {
	if e.Handle == "" {
		return
	}
	d := s.dialogOf(e.Handle)
	if d == nil && e.Ending == "" {
		s.dialogs = append(s.dialogs, &dialog{
			handle: e.Handle, opened: tools.Opened{Tool: e.Name, Arguments: call.Arguments, Place: s.placeOf(e)},
		})
	}
	if d != nil && d.ending == "" && e.Ending != "" {
		d.ending, d.since = wire.DialogEnding(e.Ending), s.placeOf(e)
	}
}

func (s *session) dialogOf(handle string) *dialog {
	for _, d := range s.dialogs {
		if d.handle == handle {
			return d
		}
	}
	return nil
}

// placeOf is where the call of an event stands in the session that the event is of. A fork has the
// handles of its origin, and under its own ids nothing that goes on with them.
func (s *session) placeOf(e *Event) tools.Place { return s.place(e.SessionID, e.Turn, e.Step, e.Index) }

// describeDialog writes what a result says about a dialog into its event.
func (e *Event) describeDialog(r *protocol.Result) {
	state, is := wire.DialogStateOf(r.Value)
	_, opening := r.Value.(wire.DialogOpenResult)
	if is && (!opening || state.Ending == "") {
		e.Handle, e.Ending = render.DialogHandle(state.Dialog), string(state.Ending)
	}
}

// planned is what becomes of a tool call.
type planned struct {
	tool    *tools.Tool
	plan    tools.Plan
	about   string // the stateful tool that the call goes on with; "" for other calls
	derived bool   // from the state of the session; a later turn cannot plan it so
	failure *protocol.Error
}

// plan plans a tool call of the last step. One that goes on with a stateful tool becomes a
// call to where that tool's state is. What the same step does to a handle does not count,
// so that a resumed turn plans what it planned before.
func (t *turnRun) plan(call *stepCall) planned {
	if p, is := t.planImage(call); is {
		return p
	}
	var p planned
	scope := t.scope(t.id)
	p.tool, p.plan, p.failure = t.table.Plan(scope, call.Name, call.Arguments)
	request, isAboutHandle := p.plan.Session.(wire.DialogRequest)
	if p.failure != nil || !isAboutHandle {
		return p
	}
	turn := t.session.open()
	d := t.session.dialogOf(request.Handle)
	before := func(place tools.Place) bool { return place.Turn < turn.number || place.Step < len(turn.steps) }
	switch {
	case d == nil || !before(d.opened.Place):
		p.failure = protocol.Errorf(protocol.CodeNotFound, "There is no handle %q in this session. %s", request.Handle, t.session.liveHandles())
		return p
	case d.ending != "" && before(d.since) && !request.End:
		p.failure = wire.StateLost(d.ending)
		p.failure.Message += " " + t.session.liveHandles()
		return p
	}
	p.derived = true
	if p.tool, p.plan, p.failure = t.table.Continue(scope, d.opened, request.End, call.Arguments); !request.End {
		p.about = d.opened.Tool
	}
	return p
}

// liveHandles names the handles that can be continued, as far as is known.
func (s *session) liveHandles() string {
	var names []string
	for _, d := range s.dialogs {
		if d.ending == "" {
			names = append(names, d.handle+" ("+d.opened.Tool+")")
		}
	}
	if len(names) == 0 {
		return "There is none that can be continued."
	}
	return "Those that can be continued are: " + strings.Join(names, ", ") + "."
}
