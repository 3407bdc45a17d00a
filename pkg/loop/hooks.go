package loop

import (
	"bytes"
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

// The events of hooks. Their names are those of Claude Code, or of Gemini CLI for what Claude Code
// has none.
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
	// HookBeforeModel is before a model is asked for a reply. A hook that denies it ends the turn
	// as failed.
	HookBeforeModel HookEvent = "BeforeModel"
	// HookAfterModel is before a reply is shown and journaled. A hook that denies it withholds the
	// reply, and ends the turn as failed.
	HookAfterModel HookEvent = "AfterModel"
	// HookCompact is before a model is asked for a summary of the conversation. A hook that denies
	// it leaves the conversation as it is.
	HookCompact HookEvent = "PreCompact"
	// HookStop is when the model has answered. A hook that denies the end has the model continue,
	// with the reason. If a hook fails, the turn ends as failed.
	HookStop HookEvent = "Stop"
)

// HookEvents are all events.
func HookEvents() []HookEvent {
	return []HookEvent{HookSessionStart, HookPrompt, HookBeforeModel, HookAfterModel, HookBefore, HookAfter, HookCompact, HookStop}
}

// Hook sees, changes or refuses what a session and its sub-agents do ([Options].Hooks), or a call
// that belongs to no turn ([SingleOptions].Hooks). What it decided about a turn is journaled before
// it has an effect, so a resumed turn does not ask it again; it runs again only if the process
// ended before that.
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
	// Interface is the way by which a call came that no model made, as that of [SingleOptions].
	Interface string `json:"interface,omitempty"`
	// Request is the request to the model (BeforeModel, PreCompact), and Reply the reply
	// (AfterModel).
	Request *HookModelRequest `json:"llm_request,omitempty"`
	Reply   *HookModelReply   `json:"llm_response,omitempty"`
	// Answer is the answer of the model, and Again reports that a hook has denied an end of this
	// turn before (Stop).
	Answer string `json:"last_assistant_message,omitempty"`
	Again  bool   `json:"stop_hook_active,omitempty"`
}

// HookModelRequest is a request to a model. If the model's server refuses a part of it, or it is
// too long, the model gets less of it, without another question to the hooks.
type HookModelRequest struct {
	Model    string        `json:"model,omitempty"` // [Options].ModelName
	Messages []HookMessage `json:"messages"`
	Tools    []string      `json:"tools,omitempty"` // their names
}

// HookMessage is a [Message], without the data of images and documents.
type HookMessage struct {
	Role       Role       `json:"role"`
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
	Name       string     `json:"name,omitempty"`
	// Media are the media types of its images and documents.
	Media []string `json:"media,omitempty"`
}

// HookModelReply is a reply of a model.
type HookModelReply struct {
	Model     string         `json:"model,omitempty"` // as its provider names it
	Content   string         `json:"content"`
	Reasoning string         `json:"reasoning,omitempty"`
	ToolCalls []ToolCall     `json:"tool_calls,omitempty"`
	Usage     protocol.Usage `json:"usage"`
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

// hooksFor are the hooks of an event that match one of the tools; without tools, all of the event.
func hooksFor(hooks []Hook, event HookEvent, tools ...string) (found []Hook) {
	for _, h := range hooks {
		if h.Event == event && (h.Matches == nil || len(tools) == 0 || slices.ContainsFunc(tools, h.Matches)) {
			found = append(found, h)
		}
	}
	return found
}

// askHooks runs the hooks of an event in their order, each with what the one before has changed,
// until one denies. With false, ctx has ended before they have decided. result is that of the
// request, as they have changed it.
func askHooks(ctx context.Context, hooks []Hook, request HookRequest) (note HookNote, result *HookResult, decided bool) {
	note.Event = request.Event
	for _, h := range hooks {
		answer, err := h.ask(ctx, request)
		if ctx.Err() != nil {
			return note, nil, false
		}
		if err != nil {
			answer, note.Failed = HookAnswer{Decision: policy.Denied, Reason: fmt.Sprintf("the hook failed: %v", err)}, true
		}
		if changed := argument.Compact(answer.Input); len(changed) > 0 && !bytes.Equal(changed, argument.Compact(request.Input)) {
			request.Input, note.Input = changed, changed
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
	return note, request.Result, true
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
	case a.Context != "" && (event == HookAfterModel || event == HookCompact):
		return fmt.Errorf("context: not of %s", event)
	case len(a.Input) > maxHookInput:
		return fmt.Errorf("changed arguments of %d bytes: must be at most %d", len(a.Input), maxHookInput)
	case len(a.Input) > 0 && (json.Unmarshal(a.Input, &object) != nil || object == nil):
		return errors.New("changed arguments: must be a JSON object")
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

// context is what a model reads of the context of hooks.
func (n *HookNote) context() string { return "[A hook adds: " + n.Context + "]" }
