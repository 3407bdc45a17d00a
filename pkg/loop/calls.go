package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxInline bounds how many inline tools of a step run at a time; more wait.
const maxInline = 8

// batch is what becomes of the tool calls of a step that have no result.
type batch struct {
	*turnRun

	settle func(Event) // journals the end of a call
	// events are the tool calls that were not journaled yet, and the results of
	// those that cannot be run.
	events []Event
	inline []*pendingCall
	asking []*pendingCall // about jobs
	jobs   []*pendingCall
	remote map[protocol.CallID]*pendingCall // run by workers
	calls  []protocol.Call                  // to be sent
	sent   []*Handle                        // the handles of calls and then of held
	held   []*pendingCall                   // sent while their reply streamed
	hooked sync.WaitGroup                   // hooks of results
}

// runCalls gets every missing result of the last step, and journals each as it
// comes. An error means that some are still missing.
func (t *turnRun) runCalls(ctx context.Context) error {
	if detached(ctx) {
		return context.Cause(ctx)
	}
	if err := t.hookCalls(ctx); err != nil {
		return err
	}
	verdicts, err := t.decide(ctx)
	if err != nil {
		return err
	}
	if detached(ctx) { // while a person was asked
		return context.Cause(ctx)
	}
	b, err := t.newBatch(ctx, verdicts)
	if err != nil {
		return err
	}
	if err := t.record(ctx, b.events...); err != nil {
		return err
	}
	if err := t.record(ctx, t.recordedEnds()...); err != nil {
		return err
	}
	if err := t.followed.startJobs(ctx, b.jobs); err != nil {
		return err
	}
	t.followed.resumeJobs(ctx)
	fleetErr := b.run(ctx)
	missing, cause := t.session.open().missing(), context.Cause(ctx)
	switch {
	case t.lost != nil:
		return t.lost
	case missing == 0:
		return nil
	case errors.Is(cause, ErrDetached):
		return cause
	case cause != nil:
		return t.record(ctx, t.unknownResults()...)
	case fleetErr == nil:
		fleetErr = fmt.Errorf("%d calls came back without result", missing)
	}
	last := t.session.open()
	return fmt.Errorf("dispatch step %d of turn %d: %w", len(last.steps), last.number, fleetErr)
}

// detached reports whether another process may run the session from now on. What is asked of ctx
// next may have another answer: code that treats other ends differently asks once, for the cause.
func detached(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrDetached) }

// ifDetached returns the cause of a context that ended so; nil for others.
func ifDetached(ctx context.Context) error {
	if detached(ctx) {
		return context.Cause(ctx)
	}
	return nil
}

// newBatch decides what becomes of each tool call without result. An error is one of the fleet.
func (t *turnRun) newBatch(ctx context.Context, verdicts map[int]verdict) (*batch, error) {
	b := &batch{turnRun: t, remote: make(map[protocol.CallID]*pendingCall)}
	turn := t.session.open()
	for i := range turn.last().calls {
		call := &turn.last().calls[i]
		if call.content != nil {
			continue
		}
		p, v := t.pending(turn, i), verdicts[i]
		if t.opts.Replay.has(&call.ToolCall) {
			b.events = append(b.events, t.recorded(p, call)...)
			continue
		}
		plan, at := t.plan(call), len(b.events)
		p.tool, p.derived = plan.tool, plan.derived
		switch {
		case v.denied != nil:
			b.refuse(ctx, p, cmp.Or(v.status, protocol.StatusRejected), v.denied)
		case ctx.Err() != nil && !detached(ctx) && !call.sent:
			b.refuse(ctx, p, protocol.StatusCancelled, notRunError())
		default:
			p.plan, p.note = plan.plan, v.note
			if err := b.planCall(ctx, p, plan.failure, v, call); err != nil {
				return nil, err
			}
		}
		event, refused := p.as(EventToolCall), len(b.events) > at
		event.Arguments, event.About, event.Lane, event.Bound = call.input(), plan.about, p.lane, boundBy(p.call)
		if refused {
			event.Status = b.events[at].Status
		}
		if !call.planned || !call.sent && !refused {
			b.events = slices.Insert(b.events, at, event)
		}
	}
	return b, nil
}

// planCall records one planned tool call, or the error for which it has no plan. A call that an
// earlier run has sent may be in the fleet already: Again reports that to the worker. If it would
// be sent differently now, or not at all, it is followed as the fleet has it.
func (b *batch) planCall(ctx context.Context, p *pendingCall, failure *protocol.Error, v verdict, recorded *stepCall) error {
	var call protocol.Call
	if failure == nil && p.plan.Inline == nil && p.plan.Session == nil {
		if call, failure = p.plan.Call(b.scope(b.id), p.place, p.event.ToolCallID, p.event.Name, time.Now().UTC()); failure == nil {
			p.lane = laneOf(&call)
		}
	}
	status := protocol.StatusRejected
	// A job that was sent has a result, its handle; but maybe the call was none when it was sent.
	unsentJob := failure == nil && p.plan.Background && ctx.Err() != nil && !detached(ctx)
	switch {
	case recorded.sent && (failure != nil || unsentJob || recorded.lane != "" && recorded.lane != p.lane):
		found, result, err := b.findOrVoid(ctx, recorded.lane, p.place.ID)
		switch {
		case err != nil:
			return err
		case found != nil:
			p.call, p.lane, p.roots = found, recorded.lane, found.Roots
			b.sendLater(p)
			return nil
		case result != nil:
			event := p.result(result)
			b.decodeImage(ctx, p, &event)
			event.Effect = b.effectOf(ctx, b.scope(b.id), p.tool, recorded.bound.of(result), result)
			b.hookResult(context.WithoutCancel(ctx), p.input, &event)
			b.events = append(b.events, event)
			return nil
		}
		if status, failure = protocol.StatusOutcomeUnknown, lostCallError(failure); unsentJob && (recorded.lane == "" || recorded.lane == p.lane) {
			status, failure = protocol.StatusCancelled, notRunError()
		}
	case failure != nil && failure.Code == protocol.CodePanic:
		status = protocol.StatusFailed
	}
	switch {
	case failure != nil:
		b.refuse(ctx, p, status, failure)
		return nil
	case p.plan.Inline != nil:
		b.inline = append(b.inline, p)
		return nil
	case p.agent().Background:
		b.jobs = append(b.jobs, p)
		return nil
	case p.plan.Session != nil:
		if p.fork = b.newFork(ctx, p, recorded.sent); p.fork != nil {
			b.calls, b.sent = append(b.calls, p.fork.call), append(b.sent, &p.fork.sent)
		}
		b.asking = append(b.asking, p)
		return nil
	}
	call.Again = recorded.sent
	b.bind(ctx, &call, v)
	recorded.bound.applyTo(&call)
	p.call, p.roots = &call, call.Roots
	if p.plan.Background {
		b.jobs = append(b.jobs, p)
		return nil
	}
	endWith(ctx, &call)
	b.sendLater(p)
	return nil
}

// notRunError is the error of a call that was not sent when its turn was stopped.
func notRunError() *protocol.Error {
	return protocol.Errorf(protocol.CodeCancelled, "Not run: the turn was stopped before.")
}

// sendLater has a call sent with the others of the step, or held that was sent before.
func (b *batch) sendLater(p *pendingCall) {
	b.remote[p.call.ID] = p
	if h := b.sentEarly[p.call.ID]; h != nil && !unreached(h) {
		delete(b.sentEarly, p.call.ID)
		p.sent, b.held = h, append(b.held, p)
		return
	}
	b.calls, b.sent = append(b.calls, *p.call), append(b.sent, &p.sent)
}

// unreached reports whether a handle has ended because the fleet could not be reached.
func unreached(h Handle) bool {
	select {
	case <-h.Done():
		_, err := h.Result()
		return err != nil
	default:
		return false
	}
}

// refuse gives a call its result without running it.
func (b *batch) refuse(ctx context.Context, p *pendingCall, status protocol.Status, failure *protocol.Error) {
	_, span := b.startTool(ctx, p)
	defer span.End()
	failSpan(span, failure)
	b.events = append(b.events, p.localResult(status, "", failure, 0))
}

// run sends all calls at once and runs the inline tools concurrently. It returns when everything it
// started has ended. The error is the dispatcher's.
func (b *batch) run(ctx context.Context) error {
	ctx, detach := context.WithCancelCause(ctx)
	defer detach(nil)
	b.settle = func(e Event) {
		if err := b.record(ctx, e); err != nil {
			// Another process may run the calls by now: do not cancel them.
			detach(fmt.Errorf("%w: %w", ErrDetached, err))
		}
	}
	var group errgroup.Group
	group.SetLimit(maxInline + 1)
	if len(b.calls)+len(b.held) > 0 {
		b.repeatQuestions()
		group.Go(b.sendCalls(ctx))
	}
	b.detachEarly()
	var ordered []*pendingCall
	for _, p := range b.asking {
		order, do := b.own(p)
		switch order {
		case first:
			if err := b.runHere(ctx, p, do); err != nil {
				group.Go(func() error { return err })
			}
		case inOrder:
			ordered = append(ordered, p)
		case alongside:
			group.Go(func() error { return b.runHere(ctx, p, do) })
		case ofAgent:
			group.Go(func() error { return b.runAgent(ctx, p) })
		}
	}
	group.Go(func() (err error) {
		for i := 0; err == nil && i < len(ordered); i++ {
			_, do := b.own(ordered[i])
			err = b.runHere(ctx, ordered[i], do)
		}
		return err
	})
	for _, p := range b.inline {
		group.Go(func() error { return b.runHere(ctx, p, p.runInline) })
	}
	err := group.Wait()
	b.hooked.Wait()
	return err
}

// sendCalls sends the calls of a step. wait waits for them; those that have not ended after
// [Options].PromoteAfter become jobs.
func (b *batch) sendCalls(ctx context.Context) (wait func() error) {
	var mu pause.Mutex // held by updates and by the promotion
	held := make([]Handle, len(b.held))
	for i, p := range b.held {
		held[i] = p.sent
		b.sent = append(b.sent, &p.sent)
	}
	handles := b.dispatcher.Send(ctx, b.calls, func(u Update) {
		mu.Lock()
		defer mu.Unlock()
		b.update(ctx, u)
	}, held...)
	for i, h := range handles {
		*b.sent[i] = h
	}
	timer := time.NewTimer(cmp.Or(b.opts.PromoteAfter, math.MaxInt64))
	return func() (err error) {
		defer timer.Stop()
		for i := 0; i < len(handles); {
			select {
			case <-handles[i].Done():
				if _, failed := handles[i].Result(); failed != nil && (err == nil || errors.Is(err, ErrDetached)) {
					err = failed
				}
				i++
			case <-timer.C:
				mu.Lock()
				promoted := ctx.Err() == nil && b.promote(ctx)
				mu.Unlock()
				if promoted {
					return nil
				}
			}
		}
		return err
	}
}

// order says when a call that the session answers itself runs, compared with others of its step.
type order int

const (
	alongside order = iota
	first           // in the order of the step, before all others: one reads what those before it wrote
	inOrder         // in the order of the step
	ofAgent         // alongside, as a session of its own
)

// hereFunc carries out a call in this process, and returns the text for the model. A
// [protocol.Error] is the call's failure, with the status in noted or else the usual one; any other
// error leaves the call without result. noted has what else the event of the result says.
type hereFunc = func(ctx context.Context, noted *Event) (text string, err error)

// own returns how a tool call is carried out that the session answers itself.
func (b *batch) own(p *pendingCall) (order, hereFunc) {
	switch request := p.plan.Session.(type) {
	case wire.AgentRequest:
		return ofAgent, nil
	case wire.ScratchRequest:
		return first, func(_ context.Context, noted *Event) (string, error) { return b.scratched(request, noted) }
	case wire.SendRequest:
		return inOrder, func(ctx context.Context, _ *Event) (string, error) { return b.send(ctx, p, request) }
	case wire.ReadRequest:
		return inOrder, func(ctx context.Context, noted *Event) (string, error) { return b.readChannel(ctx, request, noted) }
	case wire.TriggerRequest:
		return inOrder, func(ctx context.Context, _ *Event) (string, error) { return b.addTrigger(ctx, p, request) }
	case wire.TriggersRequest:
		return inOrder, func(ctx context.Context, _ *Event) (string, error) { return b.triggers(ctx, request) }
	case wire.PersonRequest:
		return alongside, func(ctx context.Context, noted *Event) (string, error) { return b.askUser(ctx, p, request, noted) }
	case wire.JobRequest:
		return alongside, func(ctx context.Context, noted *Event) (string, error) {
			return b.followed.answerJobRequest(ctx, request, noted)
		}
	case wire.SearchRequest:
		return alongside, func(ctx context.Context, _ *Event) (string, error) { return b.search(ctx, request) }
	case wire.SessionSearchRequest:
		return alongside, func(ctx context.Context, _ *Event) (string, error) { return b.searchSessions(ctx, request) }
	default:
		return alongside, func(context.Context, *Event) (string, error) {
			return "", protocol.Errorf(protocol.CodeInternal, "The session does not know this request. Go on without it.")
		}
	}
}

// runHere carries out a call in this process, and settles it. An error leaves it without result.
func (b *batch) runHere(ctx context.Context, p *pendingCall, do hereFunc) error {
	if detached(ctx) {
		return context.Cause(ctx) // the next run of the session carries it out
	}
	ctx, span := b.startTool(ctx, p)
	defer span.End()
	start, keep := time.Now(), b.fullOutputOf(p)
	var noted Event
	text, err := do(ctx, &noted)
	failure, failed := errors.AsType[*protocol.Error](err)
	if err != nil {
		failSpan(span, err)
	}
	if err != nil && !failed {
		return fmt.Errorf("tool %s: %w", p.event.Name, err)
	}
	status := protocol.StatusOK
	switch {
	case failed && failure.Code == protocol.CodeCancelled:
		status = protocol.StatusCancelled
	case failed:
		status = protocol.StatusFailed
	case genaiconv.Captures():
		span.SetAttributes(genaiconv.Captured(genaiconv.ToolCallResult, text))
	}
	event := p.localResult(cmp.Or(protocol.Status(noted.Status), status), "", failure, time.Since(start))
	if failed {
		text = keep.failed(ctx, p.event.CallID, protocol.Status(event.Status), failure)
	} else {
		text = keep.textFor(ctx, p.event.CallID, prose.Valid(text))
	}
	event.Content = p.tool.WithNote(text, p.note)
	event.By, event.Read, event.Scratch = noted.By, noted.Read, noted.Scratch
	b.finish(ctx, p, event)
	return nil
}

// runInline runs a tool of this process. Its panics are failures.
func (p *pendingCall) runInline(ctx context.Context, noted *Event) (string, error) {
	text, failure := p.plan.RunInline(ctx)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrDetached):
		return "", cause // the next run of the session runs it again
	case failure == nil:
		return text, nil
	case cause != nil:
		noted.Status = string(protocol.StatusCancelled)
	}
	return "", failure
}

// update handles one update of a call that was sent. Updates of unknown calls and
// second results are dropped.
func (b *batch) update(ctx context.Context, u Update) {
	p, known := b.remote[u.CallID]
	if !known || p.done {
		return
	}
	switch u.State {
	case StateQueued:
		event := p.as(EventToolQueued)
		event.Text = u.Waits
		b.notify(event)
	case StateRunning:
		if u.Question != nil || u.Answered != nil {
			b.question(p, u, b.settle)
			return
		}
		b.notify(p.running(u))
	case StateDone:
		if u.Result == nil {
			return
		}
		p.done = true
		if rule := deniedByRoots(u.Result, p.plan, p.roots); rule != "" {
			event := b.decision(p).decided(rule, answer{status: decisionDenied, reason: u.Result.Error.Message})
			audit(ctx, b.logger, event)
			b.settle(event)
		}
		event := p.result(u.Result)
		event.CallTimes = u.Times
		b.decodeImage(ctx, p, &event)
		event.Effect = b.effectOf(ctx, b.scope(b.id), p.tool, p.call, u.Result)
		b.finish(ctx, p, event)
	}
}

// maxQuestions bounds the questions of a call that are journaled: only observers get more,
// because a holder of a worker's key could ask for ever.
const maxQuestions = 16

// question journals a call's question to a person, and its outcome.
func (t *turnRun) question(p *pendingCall, u Update, journal func(Event)) {
	if u.Question == nil {
		if p.asked[u.Answered.Question] == nil {
			return
		}
		delete(p.asked, u.Answered.Question)
		event := p.as(EventAnswered)
		event.Question = &protocol.Question{ID: u.Answered.Question}
		event.Status, event.By = string(u.Answered.Action), prose.Valid(u.Answered.By)
		journal(event)
		return
	}
	event := p.as(EventQuestionAsked)
	event.Question, event.Lane = u.Question, p.lane
	if p.logged++; p.logged > maxQuestions {
		t.notify(event)
		return
	}
	if p.asked == nil {
		p.asked = make(map[string]*protocol.Question)
	}
	p.asked[u.Question.ID] = u.Question
	journal(event)
}

// inOrder returns the calls that a worker runs in the order of the step.
func (b *batch) inOrder() []*pendingCall {
	return slices.SortedFunc(maps.Values(b.remote), func(a, b *pendingCall) int { return a.place.Index - b.place.Index })
}

// repeatQuestions repeats to observers what calls asked before the turn was resumed: a worker does
// not repeat its question.
func (b *batch) repeatQuestions() {
	for _, p := range b.inOrder() {
		for _, id := range slices.Sorted(maps.Keys(p.asked)) {
			event := p.as(EventQuestionAsked)
			event.Question, event.Lane = p.asked[id], p.lane
			b.notify(event)
		}
	}
}

// fullOutputOf stores what a tool that ran here returned, if a model is not shown all of it.
func (b *batch) fullOutputOf(p *pendingCall) fullOutput {
	return fullOutput{p.tool, b.fleet, b.opts.Logger, b.id}
}

// unknownResults are the results of the calls of a stopped turn whose outcome is unknown.
func (t *turnRun) unknownResults() []Event {
	var events []Event
	turn := t.session.open()
	for i, call := range turn.last().calls {
		if call.content != nil {
			continue
		}
		p := t.pending(turn, i)
		p.tool = t.plan(&call).tool
		events = append(events, p.localResult(protocol.StatusOutcomeUnknown, "", protocol.Errorf(
			protocol.CodeOutcomeUnknown, "The turn was stopped before a result came: the call may have had effects, or have them yet."), 0))
	}
	return events
}
