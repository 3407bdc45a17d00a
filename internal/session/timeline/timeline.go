// Package timeline says where the time of a turn went: it makes the spans of a turn from the
// session's journal, and from what workers say about calls that have no result yet. It needs no
// trace backend, and reads nothing by itself.
//
//	journal (times of the coordinator)      turn_started  model_reply  tool_call  tool_result
//	durations in the result (of the worker)               └ request ┘  └ queue, lane, sandbox, run ┘
//
// # Clocks
//
// Positions are on one clock, that of the coordinator, which wrote the time of each event. A
// worker's measurements are durations: they are laid out one behind the other from where the call
// was sent, and what is left until its result was journaled is the way of the result. So a worker
// whose clock is an hour off changes nothing. How long a call waited until its worker claimed its
// lane is measured on the clock of the NATS server, by its worker; if that makes the parts longer
// than the call took, the first of them are shortened. A coordinator that continues a turn may have
// another clock: times in a journal never run backwards, so what seems to is moved behind what was
// journaled before. A sub-agent is moved into the span of its call.
package timeline

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrNoTurn says that a session does not have the turn.
var ErrNoTurn = errors.New("the session has no such turn")

const (
	// maxSpans bounds the spans of a trace.
	maxSpans = 5000
	// maxInput bounds the input of a trace, in bytes.
	maxInput = 200
)

// Open is what is known of a call without a result.
type Open struct {
	Running  bool
	RunMS    float64 // of the attempt that runs
	WorkerID protocol.WorkerID
	Attempt  int
	Waits    protocol.Waits // of the attempt that runs
	// Reason and For are what a call waits for that does not run.
	Reason report.Reason
	For    string
}

// Source is what a trace is made from.
type Source struct {
	Events []loop.Event // of the session
	// Agent returns the events of the sub-agent that a call has started; none if it is no
	// sub-agent. Nil knows of none.
	Agent func(protocol.CallID) []loop.Event
	// Open returns what is known of a call that has no result. Nil knows nothing.
	Open func(call *loop.Event) Open
	Now  time.Time
}

// Of returns the trace of a turn; 0 is the last one. The error wraps [ErrNoTurn].
func Of(s Source, number int) (*report.Trace, error) {
	events, number := eventsOf(s.Events, number)
	if len(events) == 0 {
		return nil, ErrNoTurn
	}
	times := straighten(events)
	started := &events[0]
	t := &report.Trace{
		SessionID: started.SessionID, Turn: number, State: report.StateOpen, StartedAt: times[0],
		Model: model(s.Events, started), Input: prose.Cut(started.Input, maxInput), TraceID: started.TraceID,
		Spans: []report.Span{}, Totals: []report.Total{},
	}
	b := &builder{source: s, trace: t, begun: times[0], now: latest(s.Now, times[len(times)-1])}
	own := b.turn(events, times, 0)
	end := b.now
	if ended := events[len(events)-1]; ended.Type == loop.EventTurnEnded {
		end, t.State = times[len(times)-1], ended.Status
	}
	t.DurationMS = rounded(millis(end.Sub(t.StartedAt)))
	for i := range own {
		clip(&own[i], 0, t.DurationMS)
	}
	if len(own) > maxSpans {
		own, t.LeftOut = own[:maxSpans], len(own)-maxSpans
	}
	t.Spans, t.Totals = append(t.Spans, own...), totals(own, t.DurationMS)
	t.Usage, t.CostUSD = b.usage, &b.cost
	if b.unpriced {
		t.CostUSD = nil
	}
	return t, nil
}

// eventsOf returns the events of a turn, from its start to its end, and its number.
func eventsOf(events []loop.Event, number int) (turn []loop.Event, _ int) {
	if number == 0 {
		for i := range events {
			if events[i].Type == loop.EventTurnStarted {
				number = events[i].Turn
			}
		}
	}
	for i := range events {
		e := &events[i]
		if e.Turn != number || number == 0 {
			continue
		}
		if e.Type == loop.EventTurnStarted {
			turn = turn[:0]
		} else if len(turn) == 0 {
			continue
		}
		if turn = append(turn, *e); e.Type == loop.EventTurnEnded {
			break
		}
	}
	return turn, number
}

// straighten returns the times of events, which never run backwards.
func straighten(events []loop.Event) []time.Time {
	times, moved := make([]time.Time, len(events)), time.Duration(0)
	for i := range events {
		times[i] = events[i].Time.Add(moved)
		if i > 0 && times[i].Before(times[i-1]) {
			moved += times[i-1].Sub(times[i])
			times[i] = times[i-1]
		}
	}
	return times
}

// model is the model of a turn: its own, or that of the session.
func model(events []loop.Event, turn *loop.Event) string {
	if turn.Model != "" {
		return turn.Model
	}
	for i := range events {
		if events[i].Type == loop.EventSessionStarted {
			return events[i].Model
		}
	}
	return ""
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// builder makes the spans of a turn and of its sub-agents.
type builder struct {
	source   Source
	trace    *report.Trace
	begun    time.Time // of the turn
	now      time.Time
	agents   int
	usage    protocol.Usage
	cost     float64
	unpriced bool
}

// at is the position of a time in the turn.
func (b *builder) at(t time.Time) float64 { return millis(t.Sub(b.begun)) }

// turnSpans are the spans of one session's turn while its events are read.
type turnSpans struct {
	*builder

	spans []*span
	calls map[protocol.CallID]*span
	ready time.Time // when the next reply could be requested: the last event that it has to wait for
	model string
	depth int
	end   time.Time // zero while the turn is open
	last  *span     // of the last reply
}

// span is a span while its events are read.
type span struct {
	report.Span

	call     *loop.Event // its tool_call; nil until it was judged
	replied  time.Time
	sent     time.Time // when its tool_call was journaled
	asked    time.Time // when a person was asked for an approval; zero if no person was
	approved time.Time
	by       string
	result   *loop.Event
	ended    time.Time // zero without a result
	dialogs  []dialog  // questions of the running call
	events   []loop.Event
}

// dialog is a question of a running call.
type dialog struct {
	id       string
	from, to time.Time // to is zero while there is no answer
	by       string
}

// turn returns the spans of a turn, with those of its sub-agents.
func (b *builder) turn(events []loop.Event, times []time.Time, depth int) []report.Span {
	t := &turnSpans{builder: b, calls: map[protocol.CallID]*span{}, ready: times[0], model: b.trace.Model, depth: depth}
	if events[0].Model != "" {
		t.model = events[0].Model
	}
	for i := range events {
		t.add(&events[i], times[i])
	}
	t.closeReply(events)
	var all []report.Span
	for _, s := range t.spans {
		if s.Kind == report.SpanCall || s.Kind == report.SpanAgent {
			t.finishCall(s)
		}
		all = append(all, s.Span)
		if len(s.events) > 0 {
			all = append(all, b.below(s)...)
		}
	}
	return all
}

// add reads an event.
func (t *turnSpans) add(e *loop.Event, at time.Time) {
	switch e.Type {
	case loop.EventModelReply:
		t.reply(e, at)
	case loop.EventCompacted:
		t.request(report.SpanCompact, e, at)
	case loop.EventToolCall, loop.EventToolResult, loop.EventApprovalAsked, loop.EventPolicyDecision,
		loop.EventQuestionAsked, loop.EventAnswered, loop.EventJobEnded:
		t.onCall(e, at)
	case loop.EventReplyFailed:
		t.spend(e)
		return // the request goes on
	case loop.EventTurnEnded:
		t.end = at
		return
	case loop.EventNativeCall, loop.EventPartLeftOut:
		return // with the reply
	default:
	}
	if e.Type != loop.EventToolCall && e.Type != loop.EventApprovalAsked && e.Type != loop.EventQuestionAsked {
		t.ready = at
	}
}

// reply adds the request of a reply, and the calls of the reply.
func (t *turnSpans) reply(e *loop.Event, at time.Time) {
	t.last = t.request(report.SpanModel, e, at)
	for i := range e.ToolCalls {
		call := &e.ToolCalls[i]
		s := t.streamed(e.Step, i)
		if s == nil { // it was not sent while the reply streamed
			s = &span{}
			s.Kind, s.Name, s.Step, s.Index = report.SpanCall, call.Name, e.Step, i
			t.own(s, e)
			t.spans = append(t.spans, s)
		}
		if s.About = terminal.About(call.Name, call.Arguments); s.sent.IsZero() {
			s.replied = at
		}
	}
}

// own says whose a span is.
func (t *turnSpans) own(s *span, e *loop.Event) {
	s.SessionID, s.Turn, s.Depth = e.SessionID, e.Turn, t.depth
}

// request adds the span of a request to the model.
func (t *turnSpans) request(kind report.SpanKind, e *loop.Event, at time.Time) *span {
	s := &span{ended: at}
	s.Kind, s.Name, s.Step, s.State = kind, cmp.Or(e.Model, t.model), e.Step, string(protocol.StatusOK)
	t.own(s, e)
	s.Usage, s.CostUSD = e.Usage, e.CostUSD
	t.spend(e)
	begun := t.ready
	if e.RequestMS > 0 {
		begun = latest(at.Add(-duration(e.RequestMS)), t.begun)
	}
	from := begun
	if t.ready.Before(begun) {
		from = t.ready
	}
	l := layout{from: t.at(from), length: millis(at.Sub(from))}
	l.add(report.ReasonStore, millis(begun.Sub(from)), "")
	l.add(report.ReasonModelLimit, min(e.WaitMS, millis(at.Sub(begun))), prose.Visible(e.WaitFor))
	l.rest(report.ReasonModel)
	l.into(&s.Span)
	i := len(t.spans)
	for i > 0 && t.spans[i-1].Step == e.Step && t.spans[i-1].Kind == report.SpanCall { // sent while it streamed
		i--
	}
	t.spans = slices.Insert(t.spans, i, s)
	return s
}

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// spend counts what a reply took.
func (t *turnSpans) spend(e *loop.Event) {
	if e.Usage == nil {
		return
	}
	t.usage = t.usage.Add(*e.Usage)
	if e.CostUSD == nil {
		t.unpriced = true
		return
	}
	t.cost += *e.CostUSD
}

// streamed returns a call of a reply that was sent before the reply was there; nil if it was not.
func (t *turnSpans) streamed(step, index int) *span {
	for _, s := range t.spans {
		if s.Step == step && s.Index == index && s.CallID != "" {
			return s
		}
	}
	return nil
}

// onCall reads an event of a call.
func (t *turnSpans) onCall(e *loop.Event, at time.Time) {
	s := t.calls[e.CallID]
	if s == nil {
		s = t.unbound(e)
		t.calls[e.CallID] = s
		s.CallID = e.CallID
	}
	switch e.Type {
	case loop.EventToolCall:
		s.call, s.sent, s.Lane = e, at, e.Lane
		if s.replied.IsZero() {
			s.replied = at
		}
		if s.About == "" {
			s.About = terminal.About(e.Name, e.Arguments)
		}
	case loop.EventApprovalAsked:
		if s.asked.IsZero() {
			s.asked = at
		}
	case loop.EventPolicyDecision:
		if !s.asked.IsZero() && s.approved.IsZero() {
			s.approved, s.by = at, e.By
		}
	case loop.EventQuestionAsked:
		if e.Question != nil && !slices.ContainsFunc(s.dialogs, func(d dialog) bool { return d.id == e.Question.ID }) {
			s.dialogs = append(s.dialogs, dialog{id: e.Question.ID, from: at})
		}
	case loop.EventAnswered:
		for i := range s.dialogs {
			if d := &s.dialogs[i]; e.Question != nil && d.id == e.Question.ID && d.to.IsZero() {
				d.to, d.by = at, e.By
			}
		}
	case loop.EventToolResult, loop.EventJobEnded:
		s.result, s.ended = e, at
	default:
	}
}

// unbound returns the span of a call whose id is not known yet.
func (t *turnSpans) unbound(e *loop.Event) *span {
	for _, s := range t.spans {
		if s.CallID == "" && s.Kind == report.SpanCall && s.Step == e.Step && s.Index == e.Index {
			return s
		}
	}
	s := &span{}
	s.Kind, s.Name, s.Step, s.Index = report.SpanCall, e.Name, e.Step, e.Index
	t.own(s, e)
	t.spans = append(t.spans, s)
	return s
}

// closeReply adds the request to the model that is open, or that ended the turn without a reply.
func (t *turnSpans) closeReply(events []loop.Event) {
	ended := events[len(events)-1]
	for _, s := range t.spans {
		if (s.Kind == report.SpanCall) && s.ended.IsZero() {
			return // the turn waits for it
		}
	}
	state, at := report.SpanRunning, t.now
	switch {
	case ended.Type != loop.EventTurnEnded && !t.answered():
	case ended.Type == loop.EventTurnEnded && ended.Error != nil && ended.Error.Code == protocol.CodeModelFailed:
		state, at = string(protocol.StatusFailed), t.end
	default:
		return
	}
	s := &span{ended: at}
	s.Kind, s.Name, s.State = report.SpanModel, t.model, state
	t.own(s, &events[0])
	if s.Step = 1; t.last != nil {
		s.Step = t.last.Step + 1
	}
	if ended.Error != nil {
		s.Code = ended.Error.Code
	}
	l := layout{from: t.at(t.ready), length: millis(at.Sub(t.ready)), open: state == report.SpanRunning}
	l.rest(report.ReasonModel)
	l.into(&s.Span)
	t.spans = append(t.spans, s)
}

// answered reports whether the last reply has no calls: the turn ends in a moment.
func (t *turnSpans) answered() bool {
	if t.last == nil || len(t.spans) == 0 {
		return false
	}
	return t.spans[len(t.spans)-1] == t.last && t.ready.Equal(t.last.ended)
}

// isAgent reports whether a call may have started a sub-agent.
func isAgent(s *span) bool {
	return s.Name == wire.AgentTool || s.result != nil && s.result.Spent != nil
}
