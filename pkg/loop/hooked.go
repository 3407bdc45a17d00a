package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/modeltext/argument"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// hooks are [hooksFor] of the turn. A replay has what they decided.
func (t *turnRun) hooks(event HookEvent, tools ...string) []Hook {
	if t.opts.Replay != nil && !t.opts.Replay.Live {
		return nil
	}
	return hooksFor(t.opts.Hooks, event, tools...)
}

// hookCalls asks the hooks about the calls of the last step that were not sent, and journals what
// they decided, before the calls are judged. An error leaves the turn open.
func (t *turnRun) hookCalls(ctx context.Context) error {
	turn := t.session.open()
	for i := range turn.last().calls {
		call := &turn.last().calls[i]
		hooks := t.hooks(HookBefore, call.Name)
		if len(hooks) == 0 || call.hook != nil || call.sent || call.content != nil || ctx.Err() != nil || t.opts.Replay.has(&call.ToolCall) || t.plan(call).failure != nil {
			continue
		}
		p := t.pending(turn, i)
		note, _, decided := askHooks(ctx, hooks, HookRequest{
			Event: HookBefore, Session: t.id, Turn: p.event.Turn, Step: p.event.Step, Tool: call.Name,
			Input: json.RawMessage(call.Arguments), ToolCallID: call.ID, CallID: p.event.CallID,
		})
		if !decided {
			return ifDetached(ctx)
		}
		event := p.as(EventHookDecided)
		event.Hook = &note
		if err := t.record(ctx, event); err != nil {
			return err
		}
	}
	return nil
}

// asksBefore returns the event of the turn for which its hooks have not been asked yet, before the
// first reply; "" if there is none.
func (t *turnRun) asksBefore(turn *turn) HookEvent {
	if len(turn.steps) > 0 {
		return ""
	}
	for _, event := range []HookEvent{HookSessionStart, HookPrompt} {
		if (event == HookPrompt || turn.number == 1) && len(t.hooks(event)) > 0 && !turn.asked(event) {
			return event
		}
	}
	return ""
}

// hookTurn asks the hooks of an event of the turn, and journals what they decided.
func (t *turnRun) hookTurn(ctx context.Context, event HookEvent) error {
	turn := t.session.open()
	request := HookRequest{Event: event, Session: t.id, Turn: turn.number, Step: len(turn.steps)}
	switch event {
	case HookSessionStart:
		request.Prompt, request.Source = turn.input.Text, "startup"
	case HookPrompt:
		request.Prompt = turn.input.Text
	case HookStop:
		request.Answer, request.Again = turn.text(), turn.stops > 0
	case HookBeforeModel:
		asked := t.shown.request()
		request.Step, request.Request = asked.Step, requestForHooks(t.opts.ModelName, &asked)
	case HookBefore, HookAfter, HookAfterModel, HookCompact:
	}
	note, _, decided := askHooks(ctx, t.hooks(event), request)
	if !decided {
		return ifDetached(ctx)
	}
	return t.record(ctx, Event{Type: EventHookDecided, Turn: turn.number, Step: len(turn.steps), NoteFields: NoteFields{Hook: &note}})
}

// finish settles the result of a call, after its hooks were asked. They do not hold up the results
// of other calls, and what becomes of a result whose hooks are stopped is unknown.
func (b *batch) finish(ctx context.Context, p *pendingCall, event Event) {
	if len(b.hooks(HookAfter, event.Name)) == 0 {
		b.settle(event)
		return
	}
	b.hooked.Go(func() {
		if b.hookResult(ctx, p.input, &event) {
			b.settle(event)
		}
	})
}

// hookResult has the hooks of a result decide what the model reads of it. With false, ctx has ended
// before.
func (t *turnRun) hookResult(ctx context.Context, input string, event *Event) bool {
	hooks := t.hooks(HookAfter, event.Name)
	if len(hooks) == 0 {
		return true
	}
	request := HookRequest{
		Event: HookAfter, Session: t.id, Turn: event.Turn, Step: event.Step, Tool: event.Name, ToolCallID: event.ToolCallID, CallID: event.CallID,
		Result: &HookResult{Status: protocol.Status(event.Status), Content: event.Content, Error: event.Error},
	}
	if json.Valid([]byte(input)) {
		request.Input = json.RawMessage(input)
	}
	note, result, decided := askHooks(ctx, hooks, request)
	if !decided {
		return false
	}
	event.Hook = &note
	if result = note.shown(result); note.changesResult() {
		event.Image, event.Diff = nil, ""
	}
	event.Content, event.Error = result.Content, result.Error
	return true
}

// changesResult reports whether the reader of a result gets another one.
func (n *HookNote) changesResult() bool { return n.Decision == policy.Denied || n.Replaced }

// shown is a result as its reader gets it.
func (n *HookNote) shown(result *HookResult) *HookResult {
	shown := *result
	if n.Decision == policy.Denied {
		shown.Content = "[A hook withheld the result: " + n.Reason + "]"
		if shown.Error != nil {
			shown.Error = &protocol.Error{Code: shown.Error.Code, Message: "withheld by a hook"}
		}
	}
	if n.Context != "" {
		shown.Content += "\n" + n.context()
	}
	return &shown
}

// hookReply has the hooks of a reply decide whether it is shown and journaled. With nil and no
// error, it is not: it was refused, or the turn was stopped before they decided.
func (t *turnRun) hookReply(ctx context.Context, at Event, reply *Reply) (*HookNote, error) {
	hooks := t.hooks(HookAfterModel)
	if len(hooks) == 0 {
		return &HookNote{}, nil
	}
	said := &HookModelReply{Model: reply.Model, Content: reply.Text, ToolCalls: reply.ToolCalls, Usage: reply.Usage}
	if reply.Reasoning != nil {
		said.Reasoning = reply.Reasoning.Text
	}
	note, _, decided := askHooks(ctx, hooks, HookRequest{Event: HookAfterModel, Session: t.id, Turn: at.Turn, Step: at.Step, Reply: said})
	switch {
	case detached(ctx):
		return nil, context.Cause(ctx)
	case !decided:
		return nil, t.record(ctx, t.failedEvent(reply, t.opts.Price, t.opts.ModelName, "the turn was stopped before hooks had decided about the reply"))
	case note.Decision == policy.Denied: // what the reply took comes first: without the decision the model is asked again
		at.Type, at.Step, at.Hook = EventHookDecided, at.Step-1, &note
		return nil, t.record(ctx, t.failedEvent(reply, t.opts.Price, t.opts.ModelName, "a hook withheld the reply"), at)
	}
	return &note, nil
}

// hookSummary has the hooks of a request for a summary decide, and journals that. The error says
// why the request is not made.
func (c *conversation) hookSummary(ctx context.Context, model string, request *Request) error {
	hooks := c.hooks(HookCompact)
	if len(hooks) == 0 {
		return nil
	}
	last := &c.session.turns[len(c.session.turns)-1]
	asked := HookRequest{Event: HookCompact, Session: c.id, Turn: last.number, Step: len(last.steps), Request: requestForHooks(model, request)}
	note, _, decided := askHooks(ctx, hooks, asked)
	if !decided {
		return context.Cause(ctx)
	}
	err := c.record(ctx, Event{Type: EventHookDecided, Turn: last.number, Step: len(last.steps), NoteFields: NoteFields{Hook: &note}})
	if err == nil && note.Decision == policy.Denied {
		err = fmt.Errorf("a hook refused it: %s", note.Reason)
	}
	return err
}

// requestForHooks is what hooks see of a request to a model.
func requestForHooks(model string, r *Request) *HookModelRequest {
	seen := &HookModelRequest{Model: model, Messages: make([]HookMessage, len(r.Messages))}
	for i := range r.Messages {
		m := &r.Messages[i]
		shown := HookMessage{Role: m.Role, Content: m.Text, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID, Name: m.Name}
		if m.Image != nil {
			shown.Media = append(shown.Media, m.Image.MediaType)
		}
		for _, a := range m.Attachments {
			shown.Media = append(shown.Media, a.MediaType)
		}
		seen.Messages[i] = shown
	}
	for i := range r.Tools {
		seen.Tools = append(seen.Tools, r.Tools[i].Name)
	}
	return seen
}

// noteHook folds what hooks decided.
func (s *session) noteHook(e *Event) error {
	t := s.open()
	if e.Hook != nil && e.Hook.Event == HookCompact {
		return nil // a summary changes the session, or there is none
	}
	if e.Hook == nil || t == nil || e.Turn != t.number || e.Step != len(t.steps) {
		return errors.New("it is not about the last step")
	}
	if e.Hook.Event == HookBefore {
		err := s.updateCall(e, func(c *stepCall) error { c.hook = e.Hook; return nil })
		if err == nil && len(e.Hook.Input) > 0 {
			t.addNote(fmt.Sprintf("[A hook changed the arguments of the call %s of %s to %s]", e.ToolCallID, e.Name, argument.Compact(e.Hook.Input)))
		}
		if err != nil {
			return err
		}
	}
	denied := e.Hook.Decision == policy.Denied
	switch {
	case denied && e.Hook.Event == HookStop && !e.Hook.Failed:
		t.stops++
		t.last().continued = true
		t.addNote("[A hook does not let you end here: " + e.Hook.Reason + "]")
	case denied && e.Hook.Event != HookBefore:
		t.blocked = e.Hook
	}
	if e.Hook.Context != "" {
		t.addNote(e.Hook.context())
	}
	if e.Hook.Event != HookBefore {
		t.hooked = append(t.hooked, t.hookedNow(e.Hook.Event))
	}
	return nil
}

// hookedAt is an event for which hooks were asked behind a step. Those of a request to the model
// have seen so many notes and additions behind it.
type hookedAt struct {
	event HookEvent
	step  int
	seen  int
}

func (t *turn) hookedNow(event HookEvent) hookedAt {
	now := hookedAt{event: event, step: len(t.steps)}
	if event == HookBeforeModel {
		notes := t.notes
		if last := t.last(); last != nil {
			notes = last.notes
		}
		now.seen = len(notes) + len(t.addedBehind(now.step))
	}
	return now
}

// asked reports whether the hooks of an event have decided behind the last step.
func (t *turn) asked(event HookEvent) bool { return slices.Contains(t.hooked, t.hookedNow(event)) }

// input are the arguments with which a call is made.
func (c *stepCall) input() string {
	if c.hook != nil && len(c.hook.Input) > 0 {
		return string(argument.Compact(c.hook.Input))
	}
	return c.Arguments
}

// recordedHooks is what hooks decided behind the last step of a replay, as far as the turn has not.
func (t *turnRun) recordedHooks() []Event {
	r, turn := t.opts.Replay, t.session.open()
	if r == nil || r.Live {
		return nil
	}
	had := 0
	for _, h := range turn.hooked {
		if h.step == len(turn.steps) {
			had++
		}
	}
	recorded := r.hooks[position{turn.number, len(turn.steps)}]
	return slices.Clone(recorded[min(had, len(recorded)):])
}

// hookBefore has the hooks of a call decide that belongs to no turn, as a call of each of the tools
// in names. It reports whether they changed its arguments, which only a call that has some allows:
// others were planned without them. The error says that ctx ended before.
func (s *Single) hookBefore(ctx context.Context, session protocol.SessionID, names []string, arguments string) (changed bool, failure *protocol.Error) {
	s.names, s.arguments = names, arguments
	hooks := hooksFor(s.hooks, HookBefore, names...)
	if len(hooks) == 0 {
		return false, nil
	}
	request := HookRequest{Event: HookBefore, Session: session, Tool: names[0], Input: s.input(), CallID: s.id, Interface: s.origin}
	note, _, decided := askHooks(ctx, hooks, request)
	switch s.before = note; {
	case !decided:
		return false, protocol.Errorf(protocol.CodeCancelled, "The call was stopped before hooks had decided whether it may be made.")
	case len(note.Input) == 0:
		return false, nil
	case s.tool == nil:
		s.before.Decision, s.before.Input, s.before.Failed = policy.Denied, nil, true
		s.before.Reason = "the hook failed: changed arguments: the call was planned before, and has none"
		return false, nil
	}
	s.arguments = string(note.Input)
	return true, nil
}

// input is what hooks see of the arguments: of a call that was planned without, its payload.
func (s *Single) input() json.RawMessage {
	if s.tool != nil && json.Valid([]byte(s.arguments)) {
		return json.RawMessage(s.arguments)
	}
	if s.plan.Payload == nil {
		return nil
	}
	payload, err := wire.EncodePayload(s.plan.Payload)
	if err != nil {
		return nil // such a call is not sent
	}
	return payload
}

// hookAfter has the hooks of the result of a call decide that was made. A result that was replaced
// or withheld has no typed value. One whose hooks were stopped is withheld.
func (s *Single) hookAfter(ctx context.Context, session protocol.SessionID) *Single {
	defer func() {
		if len(s.before.Input) > 0 {
			s.Text += fmt.Sprintf("\n[A hook changed the arguments of the call to %s]", s.arguments)
		}
		if s.before.Context != "" {
			s.Text += "\n" + s.before.context()
		}
	}()
	made := protocol.Result{CallID: s.id}
	if s.Result != nil {
		made = *s.Result
	}
	made.Status, made.Error, made.SessionID = s.Status, s.Error, session
	note, text := hookMade(ctx, s.hooks, &made, s.Text,
		HookRequest{Event: HookAfter, Session: session, Input: s.input(), CallID: made.CallID, Interface: s.origin},
		s.names...)
	if s.after = note; note.Event == "" {
		return s
	}
	if s.Text, s.Error = text, made.Error; s.Result != nil {
		s.Result = &made
	}
	return s
}

// ResultByHooks has the hooks of results (HookAfter) decide what the reader of a result gets, and
// returns the text for it. A result that was replaced or withheld has no typed value then.
func ResultByHooks(ctx context.Context, hooks []Hook, result *protocol.Result, text, origin string) string {
	request, names := HookRequest{Event: HookAfter, Session: result.SessionID, CallID: result.CallID, Interface: origin}, []string{result.Tool}
	if result.Tool == "" { // not known: any
		names = nil
	}
	_, text = hookMade(ctx, hooks, result, text, request, names...)
	return text
}

// hookMade changes a result as its hooks decide. The note has no event if there are none.
func hookMade(ctx context.Context, hooks []Hook, made *protocol.Result, text string, request HookRequest, names ...string) (HookNote, string) {
	hooks = hooksFor(hooks, HookAfter, names...)
	if len(hooks) == 0 {
		return HookNote{}, text
	}
	if len(names) > 0 {
		request.Tool = names[0]
	}
	request.Result = &HookResult{Status: made.Status, Content: text, Error: made.Error}
	note, result, decided := askHooks(ctx, hooks, request)
	if !decided {
		result, note.Decision, note.Reason = request.Result, policy.Denied, "the call was stopped before hooks had decided"
	}
	if result = note.shown(result); note.changesResult() {
		made.Value, made.Kept = nil, nil
	}
	made.Error = result.Error
	return note, result.Content
}

// decides reports whether hooks have more to say than that a call may be made as it is.
func (n *HookNote) decides() bool { return n.Decision != "" || len(n.Input) > 0 || n.Context != "" }
