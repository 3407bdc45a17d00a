package loop

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// A call whose arguments are complete is sent while the rest of its reply streams, if all earlier
// calls of the reply were sent: so conflicting calls keep their order. Its tool_call is journaled
// before it is sent, and before its model_reply.
//
// Once the reply is there, its step holds the handles of the calls that were sent. After a crash a
// resumed turn sends them again: they have their ids, and do not run again. A reply that breaks
// off, by an error, a crash, or because the model began another one, is journaled with the calls
// that were sent.

// finishBroken is the [Event].Finish of a reply that broke off after some of its calls were sent.
const finishBroken = "broken_off"

const (
	// maxStreamed bounds the arguments of a reply's calls that are sent early, in bytes: the
	// journal stores them whole.
	maxStreamed = 64 << 10
	// acceptTimeout bounds how long a reply that streams waits until the fleet has a call.
	acceptTimeout = 5 * time.Second
)

// stream sends the calls of a reply while it streams.
type stream struct {
	turn     *turnRun
	calls    []ToolCall // as the model wrote them
	size     int        // of their arguments
	used     map[string]int
	done     bool            // no further call is sent
	text     strings.Builder // of the reply so far
	sentText string          // at the last call that was sent
}

// newStream begins the stream of a reply.
func (t *turnRun) newStream() *stream {
	turn := t.session.open()
	return &stream{turn: t, done: turn.lastAt > 0 || len(turn.streamed) > 0 || len(t.hooks(HookAfterModel)) > 0}
}

// detachEarly leaves the calls to themselves that were sent while their reply streamed, and that no
// step holds.
func (t *turnRun) detachEarly() {
	for _, h := range t.sentEarly {
		h.Detach()
		<-h.Done()
	}
	t.sentEarly = nil
}

// addText notes a piece of the text.
func (s *stream) addText(text string) { s.text.WriteString(text) }

// add adds the call at index of the reply, and sends it if it may be sent now. A reply that begins
// again repeats its calls.
func (s *stream) add(ctx context.Context, call ToolCall, index int) {
	switch {
	case s.done:
		return
	case index < len(s.calls):
		s.done = call != s.calls[index]
		return
	}
	if s.size += len(call.Arguments); index > len(s.calls) || s.size > maxStreamed || ctx.Err() != nil {
		s.done = true
		return
	}
	s.calls = append(s.calls, call)
	t, turn := s.turn, s.turn.session.open()
	unique := uniqueIDs(s.calls, t.session.taken, turn.number, len(turn.steps)+1)[index]
	p, sent, may := s.planned(ctx, &stepCall{ToolCall: unique}, index)
	if !may {
		s.done, s.calls = true, s.calls[:index]
		return
	}
	event := p.as(EventToolCall)
	event.Arguments, event.Lane, event.Bound = unique.Arguments, p.lane, boundBy(&sent)
	if t.record(ctx, event) != nil { // which the record of the reply repeats
		s.done = true
		return
	}
	s.sentText = s.text.String()
	s.done = !s.send(ctx, p, sent)
}

// planned plans a call, and reports whether it may be sent without asking anybody.
func (s *stream) planned(ctx context.Context, call *stepCall, index int) (*pendingCall, protocol.Call, bool) {
	t, turn := s.turn, s.turn.session.open()
	planned := t.plan(call)
	if planned.failure != nil || planned.plan.Payload == nil || planned.plan.Background ||
		len(t.hooks(HookBefore, call.Name)) > 0 || planned.about != "" || t.opts.Replay.has(&call.ToolCall) {
		return nil, protocol.Call{}, false
	}
	if s.used == nil {
		s.used = t.session.usedBefore(len(turn.steps))
		for name, n := range t.lineage.used {
			s.used[name] += n
		}
	}
	judged := t.judge(policy.Call{Tool: call.Name, Plan: planned.plan, Used: s.used}, "")
	if judged.Decision == policy.Denied || judged.Decision == policy.Ask {
		return nil, protocol.Call{}, false
	}
	s.used[call.Name]++
	place := t.session.place(t.id, turn.number, len(turn.steps)+1, index)
	sent, failure := planned.plan.Call(t.scope(t.id), place, call.ID, call.Name, time.Now().UTC())
	if failure != nil {
		return nil, protocol.Call{}, false
	}
	t.bind(ctx, &sent, binding(judged))
	endWith(ctx, &sent)
	return &pendingCall{place: place, tool: planned.tool, plan: planned.plan, lane: laneOf(&sent), event: Event{
		Turn: place.Turn, Step: place.Step, CallFields: CallFields{Index: index, CallID: place.ID, ToolCallID: call.ID, Name: call.Name},
	}}, sent, true
}

// send sends a call, and returns when the fleet has it, as the next one may conflict with it. The
// end of ctx does not stop the call.
func (s *stream) send(ctx context.Context, p *pendingCall, call protocol.Call) bool {
	accepted := make(chan struct{})
	accept := sync.OnceFunc(func() { close(accepted) })
	h := s.turn.dispatcher.Send(context.WithoutCancel(ctx), []protocol.Call{call}, func(u Update) {
		accept()
		if u.Question != nil || u.Answered != nil {
			return // the step gets a question that is not answered
		}
		switch event := p.as(EventToolQueued); u.State {
		case StateQueued:
			event.Text = u.Waits
			s.turn.notify(event)
		case StateRunning:
			s.turn.notify(p.running(u))
		case StateDone:
		}
	})[0]
	if s.turn.sentEarly == nil {
		s.turn.sentEarly = make(map[protocol.CallID]Handle)
	}
	s.turn.sentEarly[call.ID] = h
	timer := time.NewTimer(acceptTimeout)
	defer timer.Stop()
	select {
	case <-accepted:
		return true
	case <-h.Done():
		_, err := h.Result()
		if err != nil {
			s.turn.logger.WarnContext(ctx, "call of a reply that streams is not sent yet", slog.String("call_id", string(call.ID)), slog.Any("error", err))
		}
		return err == nil
	case <-timer.C:
		return false
	case <-ctx.Done():
		return false
	}
}

// begins reports whether a reply begins with the calls that were sent.
func (t *turn) begins(calls []ToolCall) bool {
	return len(calls) >= len(t.streamed) && slices.EqualFunc(calls[:len(t.streamed)], t.streamed, func(a ToolCall, b stepCall) bool { return a == b.ToolCall })
}

// estimated is the usage of a reply that broke off. Only the text and the calls that were
// sent are known.
func (t *turnRun) estimated(text string) protocol.Usage {
	reply := Reply{Text: text}
	for _, call := range t.session.open().streamed {
		reply.ToolCalls = append(reply.ToolCalls, call.ToolCall)
	}
	return reply.Counted(t.session.tokens())
}

// recordBrokenReply journals a reply that broke off, with the calls that were sent.
func (t *turnRun) recordBrokenReply(ctx context.Context, text string, usage protocol.Usage) error {
	turn := t.session.open()
	event := Event{Type: EventModelReply, Turn: turn.number, Step: len(turn.steps) + 1, Text: prose.Valid(text), ReplyFields: ReplyFields{Usage: &usage}}
	for i := range turn.streamed {
		event.ToolCalls = append(event.ToolCalls, turn.streamed[i].ToolCall)
	}
	event.Finish = finishBroken
	t.spend(&event, t.opts.Price, nil)
	return t.record(ctx, event)
}

// addStreamed adds a call of a reply that is not journaled yet; false for a call of the last step.
func (s *session) addStreamed(e *Event) bool {
	t := s.open()
	if t == nil || e.Turn != t.number || e.Step != len(t.steps)+1 || e.Index != len(t.streamed) || t.missing() > 0 || t.answered() {
		return false
	}
	t.streamed = append(t.streamed, stepCall{
		ToolCall: ToolCall{ID: e.ToolCallID, Name: e.Name, Arguments: e.Arguments}, planned: true, sent: true, lane: e.Lane, bound: e.Bound,
	})
	return true
}

// bind puts into a call what binds it on its worker, and whose it is.
func (t *turnRun) bind(ctx context.Context, call *protocol.Call, v verdict) {
	*call = wire.ApplyFlow(ctx, []protocol.Call{*call})[0]
	v.bind(call, t.opts.MinLevel)
	call.Payload = wire.WithAuthor(call.Payload, t.opts.Author)
}

// endWith gives a call the deadline of ctx.
func endWith(ctx context.Context, call *protocol.Call) {
	if deadline, ok := ctx.Deadline(); ok {
		call.Deadline = call.IssuedAt.Add(time.Until(deadline)) // whatever became of the clock since
	}
}
