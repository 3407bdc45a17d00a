package loop

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// SingleOptions bind a tool call that belongs to no turn; nil and zero are the documented
// default.
type SingleOptions struct {
	// Sandbox is where the call runs; "" means the sandbox of its session.
	Sandbox string
	// Guard is the check before the tool changes a file; "" is none.
	Guard protocol.Guard
	// Policy decides whether the call may be made; nil allows every call.
	Policy Policy
	// Hooks see, change and refuse the call (HookBefore) and its result (HookAfter), in their
	// order. They are asked each time that the call is planned, also again under its ID.
	Hooks []Hook
	// Ledger has the calls of the session before this one, for bounds of their number, and gets
	// what was decided. With nil no earlier call is known, so these bounds allow at least one.
	Ledger *Ledger
	// Interface names the way by which the call came, such as mcp, and By who made it, for the
	// journal.
	Interface, By string
	// ID is the caller's own id of the call: as long as results are kept, dispatching a call of the
	// session with this id again returns the first one's result. A call of another tool or with
	// other arguments is rejected then, with id_reused. "" means a new id. Tools that run in place
	// have no use for it.
	ID protocol.CallID
	// MinLevel is that of [Options].
	MinLevel string
	// Author is that of [Options].
	Author protocol.Author
	// Approve asks a person about a call that needs it; nil refuses such calls.
	Approve func(ctx context.Context, request ApprovalRequest) (protocol.Approval, error)
	// Ask puts a question of the tool ask_user to a person, until ctx ends; with nil such questions
	// fail.
	Ask func(ctx context.Context, question protocol.Question) (protocol.Answer, error)
	// Observe gets what the call asks a person while it runs ([EventQuestionAsked]); with nil
	// the question is declined. Calls never overlap, and the call waits for them.
	Observe func(Event)
	// Dispatcher stores what a tool that runs in place returned, if the model sees only a part and
	// the dispatcher is that of a fleet; nil stores nothing.
	Dispatcher Dispatcher
	// Logger gets the decisions of the policy; nil discards them.
	Logger *slog.Logger
}

// Single is one tool call that belongs to no turn: dispatch its Call and then [Single.Finish] it;
// or it has no Call, and its outcome already.
type Single struct {
	// Call is to be dispatched; nil when the call was refused or has run in place.
	Call *protocol.Call
	// Status is the outcome; "" until it is known.
	Status protocol.Status
	// Text is what a model would read.
	Text string
	// Error is set when, and only when, Status is not ok.
	Error *protocol.Error
	// Result is the worker's answer; nil for tools that run in place and for calls that were
	// refused before they were sent.
	Result *protocol.Result

	hooks         []Hook
	before, after HookNote // what they decided
	arguments     string   // with which the call is made
	names         []string // the call is judged as a call of each of these tools

	effect     *Effect // of the call; nil when it has none
	id         protocol.CallID
	tool       *tools.Tool // nil of an act
	plan       tools.Plan
	runner     *Runner // makes the effect of its result
	bound      verdict // what the policy demands
	note       string  // of the person who approved it
	logger     *slog.Logger
	origin, by string

	observe func(Event) // may be nil
}

// PlanSingle plans one tool call, in the sandbox of a session, has it judged as the
// calls of a turn are, and runs it when it runs in place. Nothing that a model could write
// is an error. A nil table has no tools.
func PlanSingle(
	ctx context.Context, table *tools.Table, session protocol.SessionID, tool, arguments string, options *SingleOptions,
) *Single {
	s, o := newSingle(table, options)
	var callErr *protocol.Error
	if s.tool, s.plan, callErr = s.runner.table.Plan(s.runner.scope(session), tool, arguments); callErr != nil {
		return s.Failed(protocol.StatusRejected, callErr)
	}
	if changed, err := s.hookBefore(ctx, session, []string{tool}, arguments); err != nil {
		return s.Failed(protocol.StatusCancelled, err)
	} else if changed {
		if s.tool, s.plan, callErr = s.runner.table.Plan(s.runner.scope(session), tool, s.arguments); callErr != nil {
			return s.Failed(protocol.StatusRejected, callErr)
		}
	}
	return s.planned(ctx, &o, session, tool)
}

// PlanAct is [PlanSingle] for an interface without tool calls, such as the reading of a resource.
// The policy judges the plan, which has a payload, as a call of each of the tools in as, which do
// the same; the first one stands for all of them where calls are counted. The call names the tool.
func PlanAct(ctx context.Context, session protocol.SessionID, tool string, as []string, plan tools.Plan, arguments string, options *SingleOptions) *Single {
	s, o := newSingle(nil, options)
	s.plan = plan
	if _, err := s.hookBefore(ctx, session, as, arguments); err != nil {
		return s.Failed(protocol.StatusCancelled, err)
	}
	return s.planned(ctx, &o, session, tool)
}

// JudgeCall has a call judged that was planned before, such as the call of a schedule, and puts
// into it what the policy demands besides what the call has. One that is judged again under its id
// counts once. The error says why the call must not be sent.
func JudgeCall(ctx context.Context, call *protocol.Call, options *SingleOptions) *protocol.Error {
	s, o := newSingle(nil, options)
	s.id, s.plan = call.ID, tools.Plan{Payload: call.Payload, Resources: call.Resources}
	if _, err := s.hookBefore(ctx, call.SessionID, []string{cmp.Or(call.Tool, string(wire.KindOf(call.Payload)))}, ""); err != nil {
		return err
	}
	v := s.judge(ctx, &o, call)
	if v.denied != nil {
		return v.denied
	}
	v.roots = slices.Concat(call.Roots, v.roots)
	if v.bind(call, call.MinLevel); v.once {
		call.Retry = nil
	}
	return nil
}

func newSingle(table *tools.Table, options *SingleOptions) (*Single, SingleOptions) {
	var o SingleOptions
	if options != nil {
		o = *options
	}
	s := &Single{id: cmp.Or(o.ID, wire.RandomCallID()), hooks: o.Hooks, logger: o.Logger, observe: o.Observe, origin: o.Interface, by: prose.Valid(o.By)}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	table = cmp.Or(table, &tools.Table{})
	s.runner = &Runner{table: table, opts: Options{Logger: s.logger, MinLevel: o.MinLevel, Sandbox: o.Sandbox, Guard: o.Guard}}
	return s, o
}

// planned has the plan judged as a call of some tools, and makes the call or runs it.
func (s *Single) planned(ctx context.Context, o *SingleOptions, session protocol.SessionID, tool string) *Single {
	var callErr *protocol.Error
	call := protocol.Call{ID: s.id, SessionID: session}
	request, asks := s.plan.Session.(wire.PersonRequest)
	if asks = asks && o.Ask != nil; s.plan.Inline == nil && !asks {
		if call, callErr = s.plan.Call(s.runner.scope(session), tools.Place{ID: call.ID}, "", tool, time.Now().UTC()); callErr != nil {
			return s.Failed(protocol.StatusRejected, callErr)
		}
		if call.Again = o.ID != ""; call.Again {
			call.Digest, _ = wire.DigestOf(&call) // a payload that cannot be encoded is not sent
		}
	}
	v := s.judge(ctx, o, &call)
	switch {
	case v.denied != nil:
		return s.Failed(protocol.StatusRejected, v.denied)
	case asks:
		return s.ask(ctx, o.Ask, request).hookAfter(ctx, session)
	case s.plan.Inline == nil:
		v.bind(&call, o.MinLevel)
		s.bound = v
		call.Payload = wire.WithAuthor(call.Payload, o.Author)
		s.Call = &call
		return s
	}
	text, failure := s.plan.RunInline(ctx)
	fleet, _ := o.Dispatcher.(ports.Fleet)
	keep := fullOutput{s.tool, fleet, s.logger, session}
	if failure != nil {
		s.Failed(protocol.StatusFailed, failure)
		s.Text = s.tool.WithNote(keep.failed(ctx, call.ID, protocol.StatusFailed, failure), s.note)
		return s.hookAfter(ctx, session)
	}
	s.Status, s.Text = protocol.StatusOK, s.tool.WithNote(keep.textFor(ctx, call.ID, text), s.note)
	return s.hookAfter(ctx, session)
}

// ask puts the question of the tool ask_user to a person.
func (s *Single) ask(ctx context.Context, put func(context.Context, protocol.Question) (protocol.Answer, error), request wire.PersonRequest) *Single {
	ctx, cancel := context.WithTimeout(ctx, request.Timeout)
	defer cancel()
	answer, err := put(ctx, request.Question)
	if err == nil && answer.Action != protocol.ActionAccept {
		return s.Failed(protocol.StatusFailed, protocol.Errorf(protocol.CodeToolFailed, askedDeclined))
	}
	if err == nil {
		err = request.Fits(answer)
	}
	if err != nil {
		return s.Failed(protocol.StatusFailed, protocol.Errorf(protocol.CodeToolFailed, "There is no answer (%v). Go on without one.", err))
	}
	s.Status, s.Text = protocol.StatusOK, textOf(answer)
	return s
}

// Update is to be told what happens to the call while it is dispatched.
func (s *Single) Update(u Update) {
	if u.Question == nil || s.observe == nil {
		return
	}
	s.observe(Event{
		Type: EventQuestionAsked, SessionID: s.Call.SessionID, Time: time.Now().UTC(), CallFields: CallFields{CallID: s.Call.ID, Name: s.Call.Tool},
		HandleFields: HandleFields{Lane: laneOf(s.Call), Question: u.Question},
	})
}

// Bind puts what the policy demands into the call again, after its sender has changed it.
func (s *Single) Bind(call *protocol.Call) { s.bound.bind(call, call.MinLevel) }

// Failed sets and returns the outcome of a call without a result.
func (s *Single) Failed(status protocol.Status, callErr *protocol.Error) *Single {
	s.Status, s.Text, s.Error = status, s.tool.Failure(&protocol.Result{Status: status, Error: callErr}), callErr
	return s
}

// ErrAnsweredLater is returned by [SingleOptions].Approve when the person was asked, and the answer
// comes with the same call, sent again. Nothing is decided until then, and the call is not made.
var ErrAnsweredLater = errors.New("the answer comes later")

// judge has the principal judged, the policy decide, and a person where it says so. What was
// decided, and what counts, is in the ledger before the call is sent.
func (s *Single) judge(ctx context.Context, o *SingleOptions, call *protocol.Call) (v verdict) {
	act := judge.Use
	if s.reads() {
		act = judge.See
	}
	for _, session := range []protocol.SessionID{call.SessionID, protocol.SessionID(o.Sandbox)} {
		if err := o.Ledger.may(ctx, act, session); err != nil {
			denied := policyDenied(err.Error())
			if _, refused := errors.AsType[*judge.RefusalError](err); !refused && !errors.Is(err, ErrRemoved) { // the journal says who may
				denied.Code = protocol.CodeFleetUnavailable
			}
			return verdict{denied: denied}
		}
	}
	counts, hooked := countsCalls(o.Policy), s.before.decides()
	if o.Policy == nil && !hooked {
		return v
	}
	j := judging{
		policy: o.Policy, asked: policy.Call{Tool: s.names[0], Plan: s.plan, Used: map[string]int{}}, also: s.names[1:], approve: o.Approve, later: true,
		request: ApprovalRequest{SessionID: call.SessionID, CallID: call.ID, Tool: s.names[0], Arguments: s.arguments},
		event:   s.decision(call, s.names[0]), logger: s.logger, counts: counts || hooked,
		journal: func(ctx context.Context, decided func(map[string]int) Event) error {
			return o.Ledger.enter(context.WithoutCancel(ctx), call.SessionID, call.ID, decided)
		},
	}
	var err error
	if counts {
		if j.asked.Used, err = o.Ledger.used(ctx, call.SessionID, call.ID); err != nil {
			return verdict{denied: policyDenied(uncounted(err))}
		}
	}
	if hooked {
		j.event.Hook = &s.before
	}
	v, err = j.decide(ctx, s.before.verdict().And(judgedAs(j.policy, j.asked, j.also...)))
	if s.note = v.note; errors.Is(err, errUndecided) {
		v.denied = protocol.Errorf(protocol.CodeCancelled, "The call was stopped before anybody answered whether it may be made.")
		return v
	}
	if err != nil {
		s.logger.WarnContext(ctx, "decision is not journaled", slog.String("call_id", string(call.ID)), slog.Any("error", err))
	}
	if err != nil && counts && v.denied == nil {
		v.denied = policyDenied(uncounted(err))
		audit(ctx, s.logger, j.event.decided("max_calls", answer{status: decisionDenied, reason: v.denied.Message}))
	}
	return v
}

// reads reports whether the call is known to change nothing, from more than the word of a server of
// others.
func (s *Single) reads() bool {
	switch s.plan.Payload.(type) {
	case protocol.FilesRead, protocol.FilesList, wire.ResultRead:
		return true
	}
	return s.tool != nil && s.tool.Effect.ReadOnly && !s.tool.Effect.Hinted
}

// uncounted is why a call is refused whose place in a bound is not known.
func uncounted(err error) string {
	return "The session's calls are bounded, and cannot be counted now: " + err.Error() + "."
}

// decision is the event of a decision about the call, without what was decided.
func (s *Single) decision(call *protocol.Call, tool string) Event {
	return Event{
		Type: EventCallJudged, SessionID: call.SessionID,
		CallFields: CallFields{CallID: call.ID, Name: tool}, NoteFields: NoteFields{Interface: s.origin},
	}
}

// Finish sets and returns the outcome of a call that was dispatched.
func (s *Single) Finish(ctx context.Context, result *protocol.Result) *Single {
	if rule := deniedByRoots(result, s.plan, s.Call.Roots); rule != "" {
		audit(ctx, s.logger, s.decision(s.Call, s.Call.Tool).decided(rule, answer{status: decisionDenied, reason: result.Error.Message}))
	}
	if s.tool != nil {
		s.effect = s.runner.effectOf(ctx, s.runner.scope(s.Call.SessionID), s.tool, s.Call, result)
	}
	s.Status, s.Text, s.Error, s.Result = result.Status, s.tool.WithNote(s.tool.Text(result), s.note), result.Error, result
	return s.hookAfter(ctx, s.Call.SessionID)
}

// Turn returns the events of a turn that is this call alone, for a journal: so the session of a
// client that brings its own model looks as any other. input is what the turn was asked for.
func (s *Single) Turn(session protocol.SessionID, turn int, input, tool, arguments string) []Event {
	r := s.Result
	if r == nil {
		r = &protocol.Result{}
	}
	id := cmp.Or(r.CallID, s.id, wire.RandomCallID())
	at := Event{SessionID: session, Time: time.Now().UTC(), Turn: turn}
	of := func(kind EventType, set func(*Event)) Event {
		e := at
		e.Type = kind
		set(&e)
		return e
	}
	call := func(e *Event) { e.Step, e.CallID, e.ToolCallID, e.Name = 1, id, string(id), tool }
	events := []Event{
		of(EventTurnStarted, func(e *Event) { e.Input, e.By, e.Interface = input, s.by, s.origin }),
		of(EventModelReply, func(e *Event) {
			e.Step, e.ToolCalls = 1, []ToolCall{{ID: string(id), Name: tool, Arguments: arguments}}
		}),
		of(EventToolCall, func(e *Event) { call(e); e.Arguments = cmp.Or(s.arguments, arguments) }),
		of(EventToolResult, func(e *Event) {
			call(e)
			e.Status, e.Content, e.Error, e.Diff = string(s.Status), s.Text, s.Error, render.Diff(r)
			if s.after.Event != "" {
				e.Hook = &s.after
			}
			if r.CallID != "" {
				e.WorkerID, e.Attempt, e.Tries, e.QueueMS, e.RunMS = r.WorkerID, r.Attempt, boundedTries(r.Tries), &r.QueueMS, &r.RunMS
				e.SandboxMS, e.StoreMS, e.Waits, e.Level, e.Exit = r.SandboxMS, r.StoreMS, r.Waits, r.Level, exitOf(r)
				e.Effect = s.effect
			}
		}),
		of(EventTurnEnded, func(e *Event) { e.Step, e.Status = 1, string(OutcomeAnswered) }),
	}
	return events
}
