package loop

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
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

// noteDialog notes that a call opened a dialog, or that a dialog ended.
func (s *session) noteDialog(e *Event, call *stepCall) {
	if e.Handle == "" {
		return
	}
	d := s.dialogOf(e.Handle)
	if d == nil && e.Ending == "" {
		s.dialogs = append(s.dialogs, &dialog{
			handle: e.Handle, opened: tools.Opened{Tool: e.Name, Arguments: call.input(), Place: s.placeOf(e)},
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
// handles of its origin, and no calls of its own ids that continue them.
func (s *session) placeOf(e *Event) tools.Place { return s.place(e.SessionID, e.Turn, e.Step, e.Index) }

// describeDialog writes what a result says about a dialog into its event.
func (e *Event) describeDialog(r *protocol.Result) {
	state, is := wire.DialogStateOf(r.Value)
	_, opening := r.Value.(wire.DialogOpenResult)
	if is && (!opening || state.Ending == "") {
		e.Handle, e.Ending = render.DialogHandle(state.Dialog), string(state.Ending)
	}
}

// planned is a tool call with its plan, or why there is none.
type planned struct {
	tool    *tools.Tool
	plan    tools.Plan
	about   string // the stateful tool that the call continues; "" for other calls
	derived bool   // from the state of the session; a later turn cannot plan it so
	failure *protocol.Error
}

// plan plans a tool call of the last step. A call that continues a stateful tool becomes a
// call to where that tool's state is. What the same step does to a handle does not count,
// so that a resumed turn plans what it planned before.
func (t *turnRun) plan(call *stepCall) planned {
	if p, is := t.planImage(call); is {
		return p
	}
	var p planned
	scope := t.scope(t.id)
	p.tool, p.plan, p.failure = t.table.Plan(scope, call.Name, call.input())
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
	if p.tool, p.plan, p.failure = t.table.Continue(scope, d.opened, request.End, call.input()); !request.End {
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

// NativeCall is a call of a tool that the model's provider ran for a reply ([Reply].Native).
type NativeCall struct {
	// Name is the tool's, as "web_search", and Input what the model wrote: a query, or a program.
	Name, Input string
	// Kind is the provider's word for the tool, for its price ([Price].Tools), and Uses how often
	// it is billed; 0 is once.
	Kind string
	Uses int
	// Output is what came back, for people: the model has it from its provider.
	Output string
	// Failed reports that the provider returned an error, which is the Output.
	Failed bool
	// Image is an image that the tool made; nil if none. The Runner stores it in the workspace.
	Image *Image
}

// directoryOfImages is where images are stored that a provider's tools make.
const directoryOfImages = "generated"

// nativeEvents are the events of the calls that the provider ran for a reply. For each image that
// they made the reply gets a tool call that stores it in the workspace: in the order of the
// session's calls, and under its policy. Its Index and Arguments are the event's, too.
func (t *turnRun) nativeEvents(at Event, reply *Reply) []Event {
	events := make([]Event, len(reply.Native))
	for i := range reply.Native {
		call, event := &reply.Native[i], &events[i]
		*event = Event{
			Type: EventNativeCall, Turn: at.Turn, Step: at.Step, CallFields: CallFields{Name: prose.Valid(call.Name)},
			Text: render.Shown(prose.Valid(call.Input), "", nil), Status: string(protocol.StatusOK),
			ResultFields: ResultFields{Content: render.Shown(prose.Valid(call.Output), "", nil), Image: call.Image},
		}
		if call.Failed {
			event.Status = string(protocol.StatusFailed)
		}
		tool, known := t.table.Lookup(call.Name)
		switch {
		case call.Image == nil, !known, len(tool.Native) == 0, t.session.open().lastAt > 0:
		case len(call.Image.Data) > render.MaxImageBytes:
			event.Image, event.Content = nil, strings.TrimSpace(event.Content+"\n[the image is too large to be stored: at most 4 MiB are]")
		default:
			sum := sha256.Sum256(call.Image.Data)
			_, kind, _ := strings.Cut(call.Image.MediaType, "/")
			arguments, _ := json.Marshal(map[string]string{"path": directoryOfImages + "/" + hex.EncodeToString(sum[:6]) + "." + kind}) // strings always encode
			event.Index, event.Arguments = len(reply.ToolCalls), string(arguments)
			reply.ToolCalls = append(reply.ToolCalls, ToolCall{Name: tool.Name, Arguments: event.Arguments})
		}
	}
	return events
}

// planImage is the plan of a call that stores an image; false for every other call.
func (t *turnRun) planImage(call *stepCall) (planned, bool) {
	image := t.session.open().images[call.ID]
	tool, known := t.table.Lookup(call.Name)
	var arguments struct {
		Path string `json:"path"`
	}
	if image == nil || len(image.Data) == 0 || !known || json.Unmarshal([]byte(call.input()), &arguments) != nil {
		return planned{}, false
	}
	return planned{tool: tool, derived: true, plan: tools.Plan{
		Payload: protocol.FilesWrite{Path: arguments.Path, Content: image.Data}, Delivery: protocol.Idempotent,
	}}, true
}

// A call is journaled before it is sent, so a later run knows that it may have been sent, and with
// what. That run sends it again under the same id. If it has no such call now, or may not make it
// any more, it asks the fleet first: what the fleet has continues as the fleet has it.

// Binding is what binds a call on its worker. It is journaled before the call is sent, and a later
// run sends the call with the stronger of this and of what its own rules demand.
type Binding struct {
	Delivery protocol.Delivery `json:"delivery,omitempty"`
	MinLevel string            `json:"min_level,omitempty"`
	Roots    []protocol.Roots  `json:"roots,omitempty"` // all of them hold
	Tenant   protocol.Tenant   `json:"tenant,omitempty"`
	By       string            `json:"by,omitempty"`
}

// boundBy returns the binding of a call that is about to be sent; nil for no call.
func boundBy(call *protocol.Call) *Binding {
	if call == nil {
		return nil
	}
	return &Binding{Delivery: call.Delivery, MinLevel: call.MinLevel, Roots: call.Roots, Tenant: call.Tenant, By: call.By}
}

// of is what is known of a call with a result that only the fleet knows: its kind and its delivery.
func (b *Binding) of(result *protocol.Result) *protocol.Call {
	call := &protocol.Call{Payload: protocol.UnknownPayload{Name: wire.ValueKindOf(result.Value)}}
	if b != nil {
		call.Delivery = b.Delivery
	}
	return call
}

// applyTo binds a call at least as strictly as when it was journaled; nil changes nothing.
func (b *Binding) applyTo(call *protocol.Call) {
	if b == nil {
		return
	}
	strength := []protocol.Delivery{protocol.Idempotent, protocol.Rollback, protocol.AtMostOnce}
	if slices.Index(strength, b.Delivery) > slices.Index(strength, call.Delivery) {
		call.Delivery = b.Delivery
	}
	call.MinLevel, call.Tenant = wire.HigherLevel(call.MinLevel, b.MinLevel), cmp.Or(b.Tenant, call.Tenant)
	call.By = cmp.Or(b.By, call.By)
	for _, roots := range b.Roots {
		if !slices.ContainsFunc(call.Roots, func(own protocol.Roots) bool { return reflect.DeepEqual(own, roots) }) {
			call.Roots = append(slices.Clip(call.Roots), roots)
		}
	}
}

// findTimeout bounds how long the fleet is asked for a call.
const findTimeout = 15 * time.Second

// find returns a call that was sent to a lane, as the fleet has it, or its result; neither if the
// fleet has none of both, or cannot be asked for calls. The end of ctx does not matter: a call of a
// turn that is stopped has to be found, too.
func (t *turnRun) find(ctx context.Context, lane string, id protocol.CallID) (*protocol.Call, *protocol.Result, error) {
	if t.fleet == nil || lane == "" {
		return nil, nil, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), findTimeout)
	defer cancel()
	pool, _, _ := strings.Cut(lane, "/")
	call, result, err := t.fleet.Find(ctx, protocol.Pool(pool), protocol.CallRef{SessionID: t.id, ID: id})
	if err != nil {
		return nil, nil, fmt.Errorf("look for call %s: %w", id, err)
	}
	if call != nil {
		call.Again = true
	}
	return call, result, nil
}

// findOrVoid is find for a call that is refused if the fleet has neither it nor its result. A
// process that was stopped between journaling the call and sending it may send it still: it does
// not run then.
func (t *turnRun) findOrVoid(ctx context.Context, lane string, id protocol.CallID) (*protocol.Call, *protocol.Result, error) {
	call, result, err := t.find(ctx, lane, id)
	if t.fleet == nil || lane == "" || call != nil || result != nil || err != nil {
		return call, result, err
	}
	fencing, cancel := context.WithTimeout(context.WithoutCancel(ctx), findTimeout)
	defer cancel()
	pool, key, _ := strings.Cut(lane, "/")
	if err := t.fleet.Void(fencing, protocol.Pool(pool), protocol.Lane(key), protocol.CallRef{SessionID: t.id, ID: id}); err != nil {
		return nil, nil, fmt.Errorf("refuse call %s: %w", id, err)
	}
	return t.find(ctx, lane, id)
}

// wasSent reports whether a call that is journaled was sent: whether the fleet has it or its
// result, or its sub-agent has begun. It is true if that cannot be known. With final, a call that
// was not sent is refused, see findOrVoid.
func (t *turnRun) wasSent(ctx context.Context, name, lane string, id protocol.CallID, final bool) (bool, error) {
	if name == wire.AgentTool {
		child, err := t.Runner.journal.Load(ctx, protocol.SessionID(id))
		if final && err == nil && len(child.Events) == 0 {
			if err = t.fence(ctx, protocol.SessionID(id), child.Last); errors.Is(err, ErrJournalConflict) { // it has begun meanwhile
				return t.wasSent(ctx, name, lane, id, final)
			}
		}
		return len(child.Events) > 0, err
	}
	if t.fleet == nil || lane == "" {
		return true, nil
	}
	look := t.find
	if final {
		look = t.findOrVoid
	}
	call, result, err := look(ctx, lane, id)
	return call != nil || result != nil, err
}

// laneOf returns a call's pool and lane, as in the journal.
func laneOf(call *protocol.Call) string { return string(call.Pool) + "/" + string(call.Lane()) }

// lostCallError returns the error of a call that an earlier run may have sent and that cannot be
// sent again as it was: failure is the reason, nil means that the call would go to another lane or
// pool now.
func lostCallError(failure *protocol.Error) *protocol.Error {
	why := "its tool is another one now"
	if failure != nil {
		why = failure.Message
	}
	return protocol.Errorf(protocol.CodeOutcomeUnknown,
		"The call was sent before the session was interrupted, so it may have had effects, and its result cannot be read: %s", why)
}
