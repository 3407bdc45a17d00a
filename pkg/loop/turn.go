package loop

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// turnRun is one run of the open turn of a session.
type turnRun struct {
	*Runner
	*recorder

	followed  followers
	failed    []Event   // attempts that gave no reply, and are not journaled yet
	since     time.Time // when it began, or its last reply was journaled
	request   requestTimes
	account   account // of what its sub-agents use
	tree      *tree
	sentEarly map[protocol.CallID]Handle // calls that were sent while their reply streamed
	shown     conversation
}

// requestTimes are when the reply was first requested that is next, and the pauses until now.
type requestTimes struct {
	begun  time.Time // zero while none is requested
	paused time.Duration
	why    string
}

// maxWaitFor bounds [ReplyFields].WaitFor, in bytes.
const maxWaitFor = 200

// note describes the request of the reply, and forgets it.
func (r *requestTimes) note(e *Event) {
	if !r.begun.IsZero() {
		e.RequestMS, e.WaitMS = float64(time.Since(r.begun))/float64(time.Millisecond), float64(r.paused)/float64(time.Millisecond)
		e.WaitFor = prose.Cut(prose.Valid(r.why), maxWaitFor)
	}
	*r = requestTimes{}
}

func newTurnRun(r *Runner, rec *recorder) *turnRun {
	t := &turnRun{Runner: r, recorder: rec, since: time.Now(), tree: cmp.Or(r.lineage.tree, &tree{asking: make(chan struct{}, 1)})}
	t.followed.turnRun, t.shown.turnRun = t, t
	return t
}

// ending is a decision to end the turn.
type ending struct {
	outcome Outcome
	failure *protocol.Error
}

// startTurn starts the span of a turn. A turn that was begun in another trace continues it.
func (r *Runner) startTurn(ctx context.Context, rec *recorder, number int, begun trace.SpanContext) (context.Context, trace.Span) {
	t := &turnRun{Runner: r, recorder: rec}
	options := []trace.SpanStartOption{trace.WithAttributes(append(t.attributes(genaiconv.OperationAgent), keyTurn.Int(number))...)}
	if begun.IsValid() && begun.TraceID() != trace.SpanContextFromContext(ctx).TraceID() {
		options = append(options, trace.WithLinks(trace.LinkFromContext(ctx)))
		ctx = trace.ContextWithRemoteSpanContext(ctx, begun)
	}
	return r.opts.Tracer.Start(ctx, spanName(genaiconv.OperationAgent, r.agentName()), options...) //nolint:spancheck // the caller ends it
}

// runTurn brings the open turn to its end.
func (r *Runner) runTurn(ctx context.Context, rec *recorder) (TurnResult, error) {
	open := rec.session.open()
	ctx, span := r.startTurn(ctx, rec, open.number, open.span)
	defer span.End()
	return r.runIn(ctx, span, rec)
}

// runIn is [Runner.runTurn] in a span.
func (r *Runner) runIn(ctx context.Context, span trace.Span, rec *recorder) (TurnResult, error) {
	bound, err := r.under(rec.session.open().terms)
	if err != nil {
		return unfinished(ctx, rec.session.open().resultSoFar("", nil), err), err
	}
	t := newTurnRun(bound, rec)
	t.account.rec, t.account.above, t.account.began, t.account.alone = rec, r.lineage.above, r.lineage.began, ports.UnattendedOf(ctx)
	if r.opts.Timeout > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, r.opts.Timeout, codes.TimeLimit(r.opts.Timeout))
		defer cancel()
		ctx = limited
	}
	result, err := t.run(ctx)
	span.SetAttributes(
		keyOutcome.String(string(result.Outcome)),
		keySteps.Int(result.Steps),
		genaiconv.InputTokens.Int64(result.Usage.InputTokens),
		genaiconv.OutputTokens.Int64(result.Usage.OutputTokens),
	)
	if result.Error != nil {
		failSpan(span, result.Error)
	}
	return result, err
}

func (t *turnRun) run(ctx context.Context) (TurnResult, error) {
	t.followed.ctx = ctx //nolint:fatcontext // it is set once
	defer t.followed.leaveJobs()
	defer t.detachEarly()
	defer t.opts.Additions.during(t.recorder)()
	for {
		end, err := t.next(ctx)
		if err == nil && (end == nil || !t.seal(end)) {
			continue
		}
		if err == nil {
			var result TurnResult
			if result, err = t.end(ctx, end); err == nil {
				return result, nil
			}
		}
		return unfinished(ctx, t.session.turns[len(t.session.turns)-1].resultSoFar("", nil), err), err
	}
}

// next does what the turn needs next. It returns an ending when that is its end.
// An error leaves the turn open.
func (t *turnRun) next(ctx context.Context) (*ending, error) {
	if err := t.collectAdditions(false); err != nil {
		return nil, err
	}
	turn := t.session.open()
	if ctx.Err() != nil && !detached(ctx) && turn.missing() == 0 && len(turn.streamed) == 0 {
		t.followed.resumeJobs(ctx) // its sub-agents end with a turn that is stopped, all at once
		if waited, err := t.followed.awaitAgent(ctx); waited || err != nil {
			return nil, err
		}
	}
	switch {
	case len(turn.streamed) > 0 && detached(ctx):
		return nil, context.Cause(ctx)
	case len(turn.streamed) > 0: // an earlier run was lost meanwhile
		return nil, t.recordBrokenReply(ctx, "", t.estimated(""))
	case turn.missing() > 0:
		return nil, t.runCalls(ctx)
	case len(t.recordedHooks()) > 0:
		return nil, t.record(ctx, t.recordedHooks()...)
	case turn.blocked != nil:
		return &ending{OutcomeFailed, protocol.Errorf(protocol.CodePolicyDenied, "a hook refused the turn (%s): %s", turn.blocked.Event, turn.blocked.Reason)}, nil
	case turn.lastAnswer():
		return t.overBudget(), nil
	case len(t.recordedAdditions()) > 0:
		return nil, t.record(ctx, t.recordedAdditions()...)
	case turn.cutAgain():
		return &ending{OutcomeLimitReached, limitReached("output tokens of a reply (max_output), twice in a row")}, nil
	case turn.answered():
		if ends := t.recordedEnds(); len(ends) > 0 { // of sub-agents in the background
			return nil, t.record(ctx, ends...)
		}
		if waited, err := t.followed.awaitAgent(ctx); waited || err != nil {
			return nil, err
		}
		return t.answer(ctx)
	case ctx.Err() != nil:
		return t.stopped(ctx)
	case t.asksBefore(turn) != "":
		return nil, t.hookTurn(ctx, t.asksBefore(turn))
	case len(turn.steps) >= t.opts.MaxSteps:
		return &ending{OutcomeLimitReached, limitReached("%d steps (max_steps)", t.opts.MaxSteps)}, nil
	case t.opts.MaxTokens > 0 && turn.bill.Usage.Total() >= t.opts.MaxTokens:
		return &ending{OutcomeLimitReached, limitReached("%d tokens (max_tokens), with %d used",
			t.opts.MaxTokens, turn.bill.Usage.Total())}, nil
	default:
		may, end, err := t.budgeted(ctx)
		if !may || err != nil {
			return end, err
		}
		if err := t.followed.recordEndedJobs(ctx); err != nil {
			return nil, err
		}
		if shorter, err := t.shown.compactLong(ctx); shorter || err != nil {
			return nil, err // a summary has its price
		}
		return t.ask(ctx)
	}
}

// stopped says how the turn ends now that ctx is over.
func (t *turnRun) stopped(ctx context.Context) (*ending, error) {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, ErrDetached):
		return nil, cause
	case isTimeLimit(cause):
		failure, _ := errors.AsType[*protocol.Error](cause)
		return &ending{OutcomeLimitReached, failure}, nil
	default:
		return &ending{OutcomeInterrupted, protocol.Errorf(protocol.CodeCancelled,
			"the turn was interrupted: %v", cause)}, nil
	}
}

// end journals the end of the turn.
func (t *turnRun) end(ctx context.Context, end *ending) (TurnResult, error) {
	result := t.session.open().resultSoFar(end.outcome, end.failure)
	err := t.record(ctx, Event{
		Type: EventTurnEnded, Turn: result.Turn, Step: result.Steps,
		Status: string(result.Outcome), Text: result.Text, Answer: result.Answer,
		ReplyFields: ReplyFields{Usage: &result.Usage, CostUSD: result.CostUSD, ElapsedMS: t.elapsed()},
		StartFields: StartFields{TraceID: result.TraceID}, ResultFields: ResultFields{Error: result.Error},
	})
	return result, err
}

// ask gets the model's next reply. A model that fails ends the turn, and so does a reply that is
// empty twice, or that no journal takes.
func (t *turnRun) ask(ctx context.Context) (*ending, error) {
	if err := t.collectAdditions(true); err != nil {
		return nil, err
	}
	turn := t.session.open()
	if len(t.hooks(HookBeforeModel)) > 0 && !turn.asked(HookBeforeModel) {
		return nil, t.hookTurn(ctx, HookBeforeModel)
	}
	at := Event{Turn: turn.number, Step: len(turn.steps) + 1}
	streams := t.newStream()
	t.request = requestTimes{begun: time.Now()}
	reply, failed := t.nonEmptyReply(ctx, at, streams)
	t.request.note(&at)
	usage, reported := reply.Usage, len(t.failed) > 0
	if err := t.recordFailed(ctx); err != nil {
		return nil, err
	}
	if failed != nil && !reported {
		usage = t.estimated(streams.sentText)
	}
	if len(turn.streamed) > 0 && !detached(ctx) && (failed != nil || !turn.begins(uniqueIDs(reply.ToolCalls, t.session.taken, at.Turn, at.Step))) {
		return nil, t.recordBrokenReply(ctx, streams.sentText, usage)
	}
	if failed != nil && ctx.Err() != nil {
		return t.stopped(ctx)
	}
	if failed != nil && turn.lastAt > 0 {
		return t.overBudget(), nil
	}
	if failed != nil {
		return failed, nil
	}
	if turn.lastAt > 0 {
		reply.ToolCalls = nil // it was offered none
	}
	hooked, err := t.hookReply(ctx, at, &reply)
	if hooked == nil {
		return nil, err
	}
	if hooked.Event != "" {
		at.Hook = hooked
	}
	at.Type, at.Text, at.Usage = EventModelReply, prose.Valid(reply.Text), &usage
	native := t.nativeEvents(at, &reply)
	at.ToolCalls = uniqueIDs(reply.ToolCalls, t.session.taken, at.Turn, at.Step)
	at.Reasoning = reply.Reasoning.valid()
	price := t.opts.Price
	if reply.Fallback != nil {
		at.Model, price = reply.Fallback.Model, reply.Fallback.Price
	}
	t.spend(&at, price, reply.Native)
	if reply.Cut {
		at.Finish = FinishLength
	}
	for i := range native {
		if native[i].Arguments != "" {
			native[i].ToolCallID = at.ToolCalls[native[i].Index].ID
		}
	}
	err = t.record(ctx, append(append(t.shown.leftOutEvents(at), native...), at)...)
	if errors.Is(err, ErrEventTooLarge) && len(turn.streamed) > 0 {
		return nil, t.recordBrokenReply(ctx, "", usage)
	}
	if errors.Is(err, ErrEventTooLarge) {
		if err := t.record(ctx, t.failedEvent(&reply, t.opts.Price, t.opts.ModelName, err.Error())); err != nil {
			return nil, err
		}
		return &ending{OutcomeFailed, protocol.Errorf(codes.PayloadTooLarge,
			"the model's reply cannot be kept, ask for less at a time: %v", err)}, nil
	}
	t.shown.refused = nil // the session has it
	return nil, err
}

// nonEmptyReply requests a reply, and once more if it is empty.
func (t *turnRun) nonEmptyReply(ctx context.Context, at Event, streams *stream) (Reply, *ending) {
	reply, failed := t.chat(ctx, at, "", streams)
	if failed != nil || !reply.empty() {
		return reply, failed
	}
	t.failed = append(t.failed, t.failedEvent(&reply, t.opts.Price, t.opts.ModelName, "the reply is empty"))
	if reply, failed = t.chat(ctx, at, emptyReply, streams); failed != nil {
		return reply, failed
	}
	if reply.empty() {
		t.failed = append(t.failed, t.failedEvent(&reply, t.opts.Price, t.opts.ModelName, "the reply is empty"))
		return reply, &ending{OutcomeFailed, protocol.Errorf(protocol.CodeModelFailed, "the model's reply was empty, twice in a row")}
	}
	return reply, nil
}

// recordFailed journals what attempts took that gave no reply.
func (t *turnRun) recordFailed(ctx context.Context) error {
	events := t.failed
	if t.failed = nil; detached(ctx) { // another process has the session
		return nil
	}
	return t.record(ctx, events...)
}

// provider is the provider of the model's native tools; "" without any.
func (t *turnRun) provider() string {
	if provider, is := t.model.(Provider); is {
		return provider.Provider()
	}
	return ""
}

// chat asks the model once, with a word to it behind the conversation unless that is "".
func (t *turnRun) chat(ctx context.Context, at Event, word string, streams *stream) (Reply, *ending) {
	turnCtx := ctx
	ctx, span := t.opts.Tracer.Start(ctx, spanName(genaiconv.OperationChat, t.opts.ModelName),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			append(t.attributes(genaiconv.OperationChat), keyTurn.Int(at.Turn), keyStep.Int(at.Step))...))
	defer span.End()
	begun, first := time.Now(), time.Duration(0)
	shows := len(t.hooks(HookAfterModel)) == 0 // while it streams
	reply, err := t.shown.reply(ctx, word, func(d Delta) {
		if first == 0 && d.Waits == "" && d.Failed == nil {
			first = time.Since(begun)
		}
		if d.Failed != nil {
			t.failed = append(t.failed, t.failedEvent(d.Failed, t.opts.Price, t.opts.ModelName, "the attempt gave no reply"))
			return
		}
		if d.Reasoning != "" && shows {
			t.notify(Event{Type: EventReasoningDelta, Turn: at.Turn, Step: at.Step, Text: d.Reasoning})
		}
		if d.Waits != "" {
			t.request.paused, t.request.why = t.request.paused+d.Pause, d.Waits
			t.notify(Event{Type: EventModelWaits, Turn: at.Turn, Step: at.Step, Text: prose.Valid(d.Waits)})
		}
		if d.Call != nil {
			streams.add(turnCtx, *d.Call, d.Index)
		}
		if d.Text != "" {
			streams.addText(d.Text)
		}
		if d.Text != "" && shows {
			t.notify(Event{Type: EventTextDelta, Turn: at.Turn, Step: at.Step, Text: d.Text})
		}
	})
	if err != nil {
		failSpan(span, err)
		return Reply{}, &ending{OutcomeFailed, boundedError(&protocol.Error{Code: protocol.CodeModelFailed, Message: err.Error()})}
	}
	names := make([]string, len(reply.ToolCalls))
	for i := range reply.ToolCalls {
		if tool, known := t.table.Lookup(reply.ToolCalls[i].Name); known { // one that the model made up stays out of it
			names[i] = tool.Name
		}
	}
	span.SetAttributes(
		genaiconv.ResponseModel.String(reply.Model),
		genaiconv.InputTokens.Int64(reply.Usage.InputTokens),
		genaiconv.OutputTokens.Int64(reply.Usage.OutputTokens),
		keyToolNames.StringSlice(names),
	)
	span.SetAttributes(replyAttributes(&reply, first)...)
	return reply, nil
}
