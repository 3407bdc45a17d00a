package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Turn is a request that a serving coordinator runs a turn of a session. Only Prompt is required;
// what is zero is that of the session's turn before, or the coordinator's default.
type Turn struct {
	// Session is continued, or begun; "" means a new session.
	Session protocol.SessionID
	Prompt  string
	// Attachments belong to the prompt; see [loop.NewAttachment] and [loop.Input.Check].
	Attachments []loop.Attachment
	// AnswerSchema is the JSON Schema of the answer; see [loop.Input]. The valid answer is
	// [loop.TurnResult].Answer.
	AnswerSchema json.RawMessage
	// Model is one that a coordinator serves; "" means that of the session, as far as the
	// coordinator that runs the turn serves it, else the default model of that coordinator.
	Model    string
	Settings loop.Settings
	// Toolsets are names of built-in toolsets; none means "core".
	Toolsets []string
	// MaxSteps, MaxTokens and Timeout bound the turn, and Budget the session.
	MaxSteps  int
	MaxTokens int64
	Timeout   time.Duration
	Budget    *protocol.Spending
	// PromoteAfter is when calls that have not ended become jobs; 0 means the setting of the
	// coordinator.
	PromoteAfter time.Duration
	// Policies bind the tool calls in addition to those of the coordinator: JSON objects, as in a
	// file of coordinator --policy.
	Policies []json.RawMessage
	Guard    protocol.Guard
	// System is the system prompt, and Project what files of the project say to agents; an empty
	// list removes these.
	System  string
	Project []protocol.InstructionFile
	// Author is who commits with git in commands.
	Author protocol.Author

	// ID is the caller's own id of the turn, as [Call].ID; "" means a new one.
	ID protocol.CallID
	// NotBefore delays the turn until that time, up to 366 days; zero means no delay. Timeout
	// starts then.
	NotBefore time.Time
	// Tenant and Priority are those of [Call].
	Tenant   protocol.Tenant
	Priority protocol.Priority
}

// call asks a coordinator for the turn.
func (t *Turn) call() protocol.Call {
	call := serve.NewCall(cmp.Or(t.Session, protocol.NewSessionID()), wire.TurnRun{
		Prompt: t.Prompt, Attachments: t.attachments(), AnswerSchema: t.AnswerSchema, Model: t.Model, Toolsets: t.Toolsets,
		TurnBounds: wire.TurnBounds{MaxSteps: t.MaxSteps, MaxTokens: t.MaxTokens, Budget: t.Budget, PromoteAfter: protocol.MillisOf(t.PromoteAfter)},
		Policies:   t.Policies, Guard: t.Guard,
		ReplySettings: wire.ReplySettings{Temperature: t.Settings.Temperature, Reasoning: t.Settings.Effort, MaxOutput: t.Settings.MaxOutput},
		System:        t.System, Project: t.Project, Author: t.Author,
	}, t.Timeout)
	call.NotBefore, call.Tenant, call.Priority = t.NotBefore, t.Tenant, t.Priority
	if t.ID != "" {
		call.ID, call.Again = t.ID, true
	}
	return call
}

func (t *Turn) attachments() (list []wire.Attachment) {
	for _, a := range t.Attachments {
		list = append(list, wire.Attachment{Name: a.Name, Data: a.Data})
	}
	return list
}

// CheckModel returns an error for a model that no coordinator serves, which wraps [ErrInvalid]. It
// is nil if no coordinator runs, or the user may not ask them: a turn then waits.
func (s Sessions) CheckModel(ctx context.Context, model string) error {
	f := s.client.inner
	err := act(ctx, s.client, []natsio.Rights{natsio.WorkersRights(f.Name, protocol.SessionPool)}, func(ctx context.Context) error {
		if why := calls.Unserved(ctx, f.NC, f.Name, model); why != "" {
			return invalid(fmt.Errorf("model %s: %s", model, why))
		}
		return context.Cause(ctx)
	})
	if errors.Is(err, ErrRights) {
		return nil
	}
	return err
}

// send calls a method that sends the call of a turn. An invalid turn is an error; any other error
// before the method is [ErrNotSent].
func send[T any](ctx context.Context, s Sessions, turn *Turn, method func(context.Context, *protocol.Call) (T, error)) (result T, err error) {
	call, began := turn.call(), false
	if err := call.Validate(); err != nil {
		return result, err
	}
	if err := (loop.Input{Attachments: turn.Attachments, AnswerSchema: turn.AnswerSchema}).Check(nil); err != nil {
		return result, invalid(err)
	}
	result, err = do(ctx, s.client, []natsio.Rights{natsio.CallRights(s.client.inner.Name, protocol.SessionPool)}, func(ctx context.Context) (T, error) {
		began = true
		if err := session.MayCall(ctx, s.client.inner, &call); err != nil {
			return result, err
		}
		call.MadeAfter = s.client.inner.Journal.Now(ctx)
		return method(ctx, &call)
	})
	if err != nil && !began {
		err = fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return result, err
}

// Submit stores a turn with the fleet, for a coordinator, and returns its reference.
// [Sessions.Follow] shows the turn, and [Sessions.Cancel] ends it. It continues whatever becomes of
// this process. Invalid attachments are [ErrInvalid]; other errors are those of [Client.Submit].
func (s Sessions) Submit(ctx context.Context, turn Turn) (protocol.CallRef, error) {
	return send(ctx, s, &turn, func(ctx context.Context, call *protocol.Call) (protocol.CallRef, error) {
		return protocol.CallRef{SessionID: call.SessionID, ID: call.ID}, mayRun(s.client.inner.Dispatcher.Submit(ctx, call))
	})
}

// Run has a coordinator run a turn, and waits for its end, also while no coordinator is free.
// observe gets the live events of the turn, from other goroutines, one at a time; nil ignores them.
// Some may be lost; [Sessions.Log] has those that are stored. An event [loop.EventToolQueued] with
// the ID of the turn has in Text why the turn waits. The end of ctx cancels the turn, which ends as
// interrupted.
func (s Sessions) Run(ctx context.Context, turn Turn, observe func(loop.Event)) (loop.TurnResult, error) {
	result, err := send(ctx, s, &turn, func(ctx context.Context, call *protocol.Call) (loop.TurnResult, error) {
		return s.run(ctx, call, orIgnore(observe))
	})
	if err != nil {
		result.Outcome = loop.OutcomeFailed
	}
	return result, err
}

// orIgnore is an observer, or one that ignores the events.
func orIgnore(observe func(loop.Event)) func(loop.Event) {
	if observe == nil {
		return func(loop.Event) {}
	}
	return observe
}

func (s Sessions) run(ctx context.Context, call *protocol.Call, observe func(loop.Event)) (loop.TurnResult, error) {
	f, ended := s.client.inner, make(chan struct{})
	over := sync.OnceFunc(func() { close(ended) })
	watch, err := calls.NewResults(f.NC, f.Name, nil).Watch(ctx, call.SessionID, func(*protocol.Result) {}, func(frame *wire.Frame) {
		var e loop.Event
		if frame.CallID == call.ID && frame.Kind == wire.FrameEvent && json.Unmarshal(frame.Data, &e) == nil {
			observe(e)
			if e.Type == loop.EventTurnEnded {
				over()
			}
		}
	})
	if err != nil {
		return loop.TurnResult{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	defer watch.Stop()
	result, err := f.Dispatcher.CallWith(ctx, call, calls.CallOptions{Observe: calls.OnWaits(func(waits string) {
		observe(loop.Event{Type: loop.EventToolQueued, SessionID: call.SessionID, CallFields: loop.CallFields{CallID: call.ID, Name: call.Tool}, Text: waits})
	})})
	if err == nil && s.client.closed() != nil && result.Status == protocol.StatusOutcomeUnknown {
		err = s.client.interrupted(ctx, result)
	}
	if err != nil {
		return loop.TurnResult{}, mayRun(err)
	}
	if _, ran := result.Value.(wire.TurnRunResult); ran { // its last events may come a moment later
		select {
		case <-ended:
		case <-time.After(lastEvents):
		}
	}
	return turnResult(result), nil
}

// lastEvents is how long the live events of a turn may come after its result.
const lastEvents = time.Second

// turnResult reads the outcome of a turn from its call's result.
func turnResult(r *protocol.Result) loop.TurnResult {
	value, ok := r.Value.(wire.TurnRunResult)
	t := loop.TurnResult{Outcome: loop.Outcome(value.Outcome), Text: value.Text, Answer: value.Answer, Steps: value.Steps, Usage: value.Usage, Error: r.Error}
	switch known := ok && t.Outcome != ""; {
	case r.Status == protocol.StatusTimeout: // before the turn began
		t.Outcome = loop.OutcomeLimitReached
	case !known && r.Status == protocol.StatusCancelled:
		t.Outcome = loop.OutcomeInterrupted
	case !known:
		t.Outcome = loop.OutcomeFailed
	}
	return t
}
