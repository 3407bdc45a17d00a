package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/argument"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// HookEvent says when a hook runs.
type HookEvent string

// The events of hooks. Their names are those of Claude Code.
const (
	// HookSessionStart is the beginning of the first turn of a session.
	HookSessionStart HookEvent = "SessionStart"
	// HookPrompt is the beginning of a turn, before its first request to the model. A hook that
	// denies it ends the turn as failed.
	HookPrompt HookEvent = "UserPromptSubmit"
	// HookBefore is before a tool call is judged and sent. A hook can change the arguments, deny
	// the call, or have a person asked. What the policies demand holds in any case.
	HookBefore HookEvent = "PreToolUse"
	// HookAfter is before the result of a call that was made is journaled. A hook can replace what
	// the model reads of it; one that denies it withholds the result.
	HookAfter HookEvent = "PostToolUse"
	// HookStop is when the model has answered. A hook that denies the end has the model continue,
	// with the reason. If a hook fails, the turn ends as failed.
	HookStop HookEvent = "Stop"
)

// HookEvents are all events.
func HookEvents() []HookEvent {
	return []HookEvent{HookSessionStart, HookPrompt, HookBefore, HookAfter, HookStop}
}

// Hook sees, changes or refuses what a session and its sub-agents do ([Options].Hooks). What it
// decided is journaled before it has an effect, so a resumed turn does not ask it again; it runs
// again only if the process ended before that.
type Hook struct {
	Event HookEvent
	// Matches selects the tools of HookBefore and HookAfter; nil means all.
	Matches func(tool string) bool
	// Run answers the request. An error, a panic, and an answer that cannot be used, deny.
	Run func(ctx context.Context, request HookRequest) (HookAnswer, error)
	// Timeout bounds Run; 0 means 10 s. The maximum is 10 minutes.
	Timeout time.Duration
}

// HookRequest is what a hook reads.
type HookRequest struct {
	Event   HookEvent          `json:"hook_event_name"`
	Session protocol.SessionID `json:"session_id"`
	Turn    int                `json:"turn"`
	Step    int                `json:"step"`
	// Prompt is what the person says (SessionStart, UserPromptSubmit).
	Prompt string `json:"prompt,omitempty"`
	// Source is "startup" (SessionStart).
	Source string `json:"source,omitempty"`
	// Tool, Input, ToolCallID and CallID are those of the call (PreToolUse, PostToolUse).
	Tool       string          `json:"tool_name,omitempty"`
	Input      json.RawMessage `json:"tool_input,omitempty"`
	ToolCallID string          `json:"tool_use_id,omitempty"`
	CallID     protocol.CallID `json:"call_id,omitempty"`
	// Result is the result of the call (PostToolUse).
	Result *HookResult `json:"tool_response,omitempty"`
	// Answer is the answer of the model, and Again reports that a hook has denied an end of this
	// turn before (Stop).
	Answer string `json:"last_assistant_message,omitempty"`
	Again  bool   `json:"stop_hook_active,omitempty"`

	kept *HookResult // gets the content that replaces that of Result
}

// HookResult is the result of a call.
type HookResult struct {
	Status  protocol.Status `json:"status"`
	Content string          `json:"content"` // what the model reads
	Error   *protocol.Error `json:"error,omitempty"`
}

// HookAnswer is what a hook decides. The zero answer changes nothing.
type HookAnswer struct {
	// Decision is [policy.Denied], or [policy.Ask] of PreToolUse; anything else allows.
	Decision policy.Decision
	Reason   string
	// Input replaces the arguments of the call (PreToolUse): a JSON object.
	Input json.RawMessage
	// Output replaces what the model reads of the result (PostToolUse).
	Output *string
	// Context is text for the model.
	Context string
}

// HookNote is what the hooks of one event decided.
type HookNote struct {
	Event    HookEvent       `json:"event"`
	Decision policy.Decision `json:"decision,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	// Failed reports that a hook failed, which is why it denies.
	Failed bool `json:"failed,omitempty"`
	// Input replaces the arguments of the call.
	Input json.RawMessage `json:"input,omitempty"`
	// Replaced reports that the content of the result is that of a hook.
	Replaced bool   `json:"replaced,omitempty"`
	Context  string `json:"context,omitempty"`
}

// Bounds of hooks.
const (
	hookTimeout    = 10 * time.Second
	maxHookTimeout = 10 * time.Minute
	maxHookInput   = 256 << 10
	maxHookText    = 32 << 10 // of a context, in characters
)

func validateHooks(hooks []Hook) error {
	var errs []error
	for i, h := range hooks {
		switch {
		case !slices.Contains(HookEvents(), h.Event):
			errs = append(errs, fmt.Errorf("hooks[%d]: event %q: must be one of %v", i, h.Event, HookEvents()))
		case h.Run == nil:
			errs = append(errs, fmt.Errorf("hooks[%d]: Run is missing", i))
		case h.Timeout < 0 || h.Timeout > maxHookTimeout:
			errs = append(errs, fmt.Errorf("hooks[%d]: timeout %s: must be at most %s", i, h.Timeout, maxHookTimeout))
		}
	}
	return errors.Join(errs...)
}

// hooks are the hooks of an event. A replay has what they decided.
func (t *turnRun) hooks(event HookEvent, tool string) (found []Hook) {
	if t.opts.Replay != nil && !t.opts.Replay.Live {
		return nil
	}
	for _, h := range t.opts.Hooks {
		if h.Event == event && (h.Matches == nil || tool == "" || h.Matches(tool)) {
			found = append(found, h)
		}
	}
	return found
}

// askHooks runs the hooks of an event in their order, each with what the one before has changed,
// until one denies. With false, ctx has ended before they have decided.
func (t *turnRun) askHooks(ctx context.Context, hooks []Hook, request HookRequest) (note HookNote, decided bool) {
	note.Event, request.Session = request.Event, t.id
	for _, h := range hooks {
		answer, err := h.ask(ctx, request)
		if ctx.Err() != nil {
			return note, false
		}
		if err != nil {
			answer, note.Failed = HookAnswer{Decision: policy.Denied, Reason: fmt.Sprintf("the hook failed: %v", err)}, true
		}
		if len(answer.Input) > 0 {
			request.Input = argument.Compact(answer.Input)
			note.Input = request.Input
		}
		if answer.Output != nil && request.Result != nil {
			changed := *request.Result
			changed.Content = prose.Valid(*answer.Output)
			request.Result, note.Replaced = &changed, true
		}
		if answer.Context != "" {
			note.Context = prose.Short(prose.Valid(note.Context+answer.Context+"\n"), maxHookText)
		}
		if answer.Decision == policy.Denied || answer.Decision == policy.Ask && note.Decision == "" {
			note.Decision, note.Reason = answer.Decision, prose.Short(prose.Valid(answer.Reason), maxNote)
		}
		if note.Decision == policy.Denied {
			break
		}
	}
	if note.Replaced {
		request.kept.Content = request.Result.Content
	}
	return note, true
}

// ask runs the hook within its time.
func (h *Hook) ask(ctx context.Context, request HookRequest) (answer HookAnswer, err error) {
	most := h.Timeout
	if most == 0 {
		most = hookTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	type answered struct {
		HookAnswer

		err error
	}
	done := make(chan answered, 1)
	go func() {
		var a answered
		defer func() {
			if p := recover(); p != nil {
				a.err = fmt.Errorf("panic: %v", p)
			}
			done <- a
		}()
		a.HookAnswer, a.err = h.Run(ctx, request)
	}()
	select {
	case a := <-done:
		if a.err == nil {
			a.err = a.check(request.Event)
		}
		return a.HookAnswer, a.err
	case <-ctx.Done():
		return answer, fmt.Errorf("no answer within %s", most)
	}
}

// check returns an error for an answer that cannot be used.
func (a *HookAnswer) check(event HookEvent) error {
	var object map[string]json.RawMessage
	switch {
	case !slices.Contains([]policy.Decision{"", policy.Allowed, policy.Denied, policy.Ask}, a.Decision):
		return fmt.Errorf("decision %q: must be allow, deny or ask", a.Decision)
	case a.Decision == policy.Ask && event != HookBefore:
		return fmt.Errorf("decision ask: only of %s", HookBefore)
	case len(a.Input) > 0 && event != HookBefore:
		return fmt.Errorf("changed arguments: only of %s", HookBefore)
	case a.Output != nil && event != HookAfter:
		return fmt.Errorf("a changed result: only of %s", HookAfter)
	case len(a.Input) > maxHookInput:
		return fmt.Errorf("changed arguments of %d bytes: must be at most %d", len(a.Input), maxHookInput)
	case len(a.Input) > 0 && (json.Unmarshal(a.Input, &object) != nil || object == nil):
		return errors.New("changed arguments: must be a JSON object")
	}
	return nil
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
		note, decided := t.askHooks(ctx, hooks, HookRequest{
			Event: HookBefore, Turn: p.event.Turn, Step: p.event.Step, Tool: call.Name, Input: json.RawMessage(call.Arguments), ToolCallID: call.ID, CallID: p.event.CallID,
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

// verdict is what hooks decided about a call, as a policy says it.
func (n *HookNote) verdict() policy.Verdict {
	if n == nil || n.Decision != policy.Denied && n.Decision != policy.Ask {
		return policy.Verdict{}
	}
	v := policy.Verdict{Decision: n.Decision, Rule: "hooks." + string(n.Event), Timeout: approvalTimeout, Reason: n.Reason}
	if n.Decision == policy.Denied {
		v.Reason = "A hook refused the call: " + n.Reason
	}
	return v
}

// asksBefore returns the event of the turn for which its hooks have not been asked yet, before the
// first reply; "" if there is none.
func (t *turnRun) asksBefore(turn *turn) HookEvent {
	if len(turn.steps) > 0 {
		return ""
	}
	for _, event := range []HookEvent{HookSessionStart, HookPrompt} {
		if (event == HookPrompt || turn.number == 1) && len(t.hooks(event, "")) > 0 && !turn.asked(event) {
			return event
		}
	}
	return ""
}

// hookTurn asks the hooks of an event of the turn, and journals what they decided.
func (t *turnRun) hookTurn(ctx context.Context, event HookEvent) error {
	turn := t.session.open()
	request := HookRequest{Event: event, Turn: turn.number, Step: len(turn.steps)}
	switch event {
	case HookSessionStart:
		request.Prompt, request.Source = turn.input.Text, "startup"
	case HookPrompt:
		request.Prompt = turn.input.Text
	case HookStop:
		request.Answer, request.Again = turn.text(), turn.stops > 0
	case HookBefore, HookAfter:
	}
	note, decided := t.askHooks(ctx, t.hooks(event, ""), request)
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
	result := &HookResult{Status: protocol.Status(event.Status), Content: event.Content, Error: event.Error}
	request := HookRequest{
		Event: HookAfter, Turn: event.Turn, Step: event.Step, Tool: event.Name, ToolCallID: event.ToolCallID, CallID: event.CallID, Result: result, kept: result,
	}
	if json.Valid([]byte(input)) {
		request.Input = json.RawMessage(input)
	}
	note, decided := t.askHooks(ctx, hooks, request)
	if !decided {
		return false
	}
	event.Hook = &note
	switch {
	case note.Decision == policy.Denied:
		event.Content, event.Image, event.Diff = "[A hook withheld the result: "+note.Reason+"]", nil, ""
		if event.Error != nil {
			event.Error = &protocol.Error{Code: event.Error.Code, Message: "withheld by a hook"}
		}
	case note.Replaced:
		event.Content, event.Image, event.Diff = result.Content, nil, ""
	}
	if note.Context != "" {
		event.Content += "\n" + note.context()
	}
	return true
}

// context is what a model reads of the context of hooks.
func (n *HookNote) context() string { return "[A hook adds: " + n.Context + "]" }

// noteHook folds what hooks decided.
func (s *session) noteHook(e *Event) error {
	t := s.open()
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
	} else {
		t.hooked = append(t.hooked, hookedAt{e.Hook.Event, e.Step})
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
	return nil
}

// hookedAt is an event for which hooks were asked behind a step.
type hookedAt struct {
	event HookEvent
	step  int
}

// asked reports whether the hooks of an event have decided behind the last step.
func (t *turn) asked(event HookEvent) bool {
	return slices.Contains(t.hooked, hookedAt{event, len(t.steps)})
}

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
