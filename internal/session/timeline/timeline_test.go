package timeline_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/session/timeline"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const session = protocol.SessionID("s")

// journal is the events of a session, whose times are given in milliseconds.
type journal []loop.Event

var begun = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func at(ms float64) time.Time { return begun.Add(time.Duration(ms * float64(time.Millisecond))) }

func (j *journal) add(ms float64, e loop.Event) {
	e.SessionID, e.Time = session, at(ms)
	if e.Turn == 0 {
		e.Turn = 1
	}
	*j = append(*j, e)
}

func (j *journal) begin() {
	j.add(0, loop.Event{Type: loop.EventTurnStarted, StartFields: loop.StartFields{Model: "m"}})
}

func (j *journal) reply(ms float64, step int, request float64, calls ...string) {
	e := loop.Event{Type: loop.EventModelReply, Step: step, ReplyFields: loop.ReplyFields{RequestMS: request, Usage: &protocol.Usage{InputTokens: 10}, CostUSD: new(0.5)}}
	for _, name := range calls {
		e.ToolCalls = append(e.ToolCalls, loop.ToolCall{ID: name, Name: name, Arguments: `{}`})
	}
	j.add(ms, e)
}

func fields(index int, name string) loop.CallFields {
	return loop.CallFields{Index: index, Name: name, CallID: protocol.CallID("c-" + name), Arguments: `{}`}
}

func (j *journal) call(ms float64, step, index int, name, lane string) {
	j.add(ms, loop.Event{Type: loop.EventToolCall, Step: step, CallFields: fields(index, name), HandleFields: loop.HandleFields{Lane: lane}})
}

func (j *journal) result(ms float64, step, index int, name string, r loop.ResultFields) {
	j.add(ms, loop.Event{Type: loop.EventToolResult, Step: step, Status: "ok", CallFields: fields(index, name), ResultFields: r})
}

func (j *journal) end(ms float64) {
	j.add(ms, loop.Event{Type: loop.EventTurnEnded, Status: "answered"})
}

func of(t require.TestingT, j journal, now float64) *report.Trace {
	trace, err := timeline.Of(timeline.Source{Events: j, Now: at(now)}, 0)
	require.NoError(t, err)
	return trace
}

// parts are the parts of a span as a short text.
func parts(s report.Span) (all []string) {
	for _, p := range s.Parts {
		text := string(p.Reason) + " " + time.Duration(p.MS*float64(time.Millisecond)).String()
		if p.For != "" {
			text += " for " + p.For
		}
		if p.Open {
			text += " …"
		}
		all = append(all, text)
	}
	return all
}

func find(t *testing.T, trace *report.Trace, name string) report.Span {
	t.Helper()
	for _, s := range trace.Spans {
		if s.Name == name {
			return s
		}
	}
	require.Failf(t, "no span", "%s in %+v", name, trace.Spans)
	return report.Span{}
}

func TestOf_SaysWhatEachMomentWasFor(t *testing.T) {
	t.Parallel()
	var j journal
	j.begin()
	j.reply(500, 1, 490, "one", "two")
	j.call(505, 1, 0, "one", "default/sandbox/s")
	j.call(505, 1, 1, "two", "default/sandbox/s")
	j.result(1005, 1, 0, "one", loop.ResultFields{
		QueueMS: new(20.0), RunMS: new(470.0), SandboxMS: 70, StoreMS: 10, WorkerID: "w", Attempt: 1, Level: "full",
		Waits: protocol.Waits{SlotMS: 20}, CallTimes: loop.CallTimes{SendMS: 5},
	})
	j.result(1105, 1, 1, "two", loop.ResultFields{
		QueueMS: new(490.0), RunMS: new(90.0), WorkerID: "w", Attempt: 1,
		Waits: protocol.Waits{SlotMS: 20, LaneMS: 470, HeldBy: "c-one"}, CallTimes: loop.CallTimes{SendMS: 5},
	})
	j.reply(2000, 2, 890)
	j.end(2002)
	trace := of(t, j, 9999)
	require.Equal(t, "answered", trace.State)
	require.InDelta(t, 2002, trace.DurationMS, 0.01)
	require.Equal(t, []string{"store 10ms", "model 490ms"}, parts(trace.Spans[0]))
	one, two := find(t, trace, "one"), find(t, trace, "two")
	require.Equal(t, []string{"store 5ms", "send 5ms", "slot 20ms", "sandbox 70ms", "run 390ms", "store 10ms", "result 5ms"}, parts(one))
	require.Equal(t, []string{"store 5ms", "send 5ms", "slot 20ms", "lane 470ms for c-one", "run 90ms", "result 15ms"}, parts(two))
	require.Equal(t, "full", one.Level)
	require.Equal(t, []string{"store 5ms", "model 890ms"}, parts(trace.Spans[3]))
	require.InDelta(t, 1.0, *trace.CostUSD, 1e-9)
	require.Equal(t, int64(20), trace.Usage.InputTokens)
	for _, total := range trace.Totals {
		switch total.Reason {
		case report.ReasonModel:
			require.InDelta(t, 1380, total.TurnMS, 0.01)
		case report.ReasonLane: // while the other call ran
			require.InDelta(t, 470, total.MS, 0.01)
			require.Less(t, total.TurnMS, 1.0)
		case report.ReasonRun:
			require.InDelta(t, 480, total.MS, 0.01)
		default:
		}
	}
}

func TestOf_AnOlderRecordHasLess(t *testing.T) {
	t.Parallel()
	var j journal
	j.begin()
	j.reply(100, 1, 0, "one", "local")
	j.call(100, 1, 0, "one", "default/sandbox/s")
	j.call(100, 1, 1, "local", "")
	j.result(200, 1, 0, "one", loop.ResultFields{QueueMS: new(30.0), RunMS: new(60.0)})
	j.result(200, 1, 1, "local", loop.ResultFields{QueueMS: new(0.0), RunMS: new(40.0)})
	j.end(300)
	trace := of(t, j, 0)
	require.Equal(t, []string{"model 100ms"}, parts(trace.Spans[0]))
	require.Equal(t, []string{"slot 30ms", "run 60ms", "result 10ms"}, parts(find(t, trace, "one")))
	require.Equal(t, []string{"store 60ms", "run 40ms"}, parts(find(t, trace, "local")))
}

func TestOf_APersonAndALostWorker(t *testing.T) {
	t.Parallel()
	var j journal
	j.begin()
	j.reply(100, 1, 100, "one")
	j.add(110, loop.Event{Type: loop.EventApprovalAsked, Step: 1, CallFields: fields(0, "one")})
	j.add(1110, loop.Event{Type: loop.EventPolicyDecision, Step: 1, CallFields: fields(0, "one"), NoteFields: loop.NoteFields{By: "ann"}})
	j.call(1110, 1, 0, "one", "default/sandbox/s")
	j.add(9300, loop.Event{Type: loop.EventQuestionAsked, Step: 1, CallFields: fields(0, "one"), HandleFields: loop.HandleFields{Question: &protocol.Question{ID: "q"}}})
	j.add(9400, loop.Event{
		Type: loop.EventAnswered, Step: 1, CallFields: fields(0, "one"), NoteFields: loop.NoteFields{By: "bob"},
		HandleFields: loop.HandleFields{Question: &protocol.Question{ID: "q"}},
	})
	j.result(9510, 1, 0, "one", loop.ResultFields{
		QueueMS: new(8000.0), RunMS: new(400.0), WorkerID: "w-2", Attempt: 2,
		Waits:     protocol.Waits{SlotMS: 10, LostMS: 7990, LostWorker: "w-1"},
		CallTimes: loop.CallTimes{Starts: []loop.CallStart{{Attempt: 1, WorkerID: "w-1", AfterMS: 500}, {Attempt: 2, WorkerID: "w-2", AfterMS: 8000}}},
	})
	j.end(9510)
	s := find(t, of(t, j, 0), "one")
	require.Equal(t, []string{
		"store 10ms", "person 1s for ann", "slot 10ms", "lost 490ms for w-1", "lost 7.5s for w-1", "run 190ms", "person 100ms for bob", "run 110ms",
	}, parts(s))
	require.Equal(t, 1, s.Parts[4].Attempt)
}

// A turn that is cancelled while a person is asked waited for that person to its end.
func TestOf_APersonWhoNeverAnswered(t *testing.T) {
	t.Parallel()
	var j journal
	j.begin()
	j.reply(100, 1, 100, "one")
	j.add(110, loop.Event{Type: loop.EventApprovalAsked, Step: 1, CallFields: fields(0, "one")})
	j.end(1110)
	s := find(t, of(t, j, 0), "one")
	require.Equal(t, []string{"store 10ms", "person 1s"}, parts(s))
	require.Equal(t, report.SpanUnfinished, s.State)

	var cancelled journal // its call is in the journal, with a result
	cancelled.begin()
	cancelled.reply(100, 1, 100, "one")
	cancelled.add(110, loop.Event{Type: loop.EventApprovalAsked, Step: 1, CallFields: fields(0, "one")})
	cancelled.call(1110, 1, 0, "one", "default/sandbox/s")
	cancelled.result(1110, 1, 0, "one", loop.ResultFields{})
	cancelled.end(1110)
	require.Equal(t, []string{"store 10ms", "person 1s"}, parts(find(t, of(t, cancelled, 0), "one")))
}

// The calls of a reply are sent when a person has answered about each of them, so all wait for it.
func TestOf_ACallWaitsForThePersonOfAnother(t *testing.T) {
	t.Parallel()
	var j journal
	j.begin()
	j.reply(100, 1, 100, "one", "two")
	j.add(110, loop.Event{Type: loop.EventApprovalAsked, Step: 1, CallFields: fields(1, "two")})
	for now := 200.1; now < 1000; now += 7.77 { // whatever is rounded, it waits until now
		open := find(t, of(t, j, now), "one")
		require.Len(t, open.Parts, 2)
		require.Equal(t, report.ReasonPerson, open.Parts[1].Reason)
		require.True(t, open.Parts[1].Open, "%v", open.Parts)
		require.Equal(t, report.SpanWaiting, open.State)
	}
	j.add(1110, loop.Event{Type: loop.EventPolicyDecision, Step: 1, CallFields: fields(1, "two"), NoteFields: loop.NoteFields{By: "ann"}})
	j.call(1120, 1, 0, "one", "default/sandbox/s")
	j.call(1120, 1, 1, "two", "default/sandbox/s")
	j.result(1220, 1, 0, "one", loop.ResultFields{QueueMS: new(10.0), RunMS: new(50.0), StoreMS: 20})
	require.Equal(t, []string{"store 10ms", "person 1s for ann", "store 10ms"}, parts(find(t, of(t, j, 1300), "one"))[:3])
	require.Equal(t, []string{"store 10ms", "person 1s for ann", "store 10ms"}, parts(find(t, of(t, j, 1300), "two"))[:3])
}

func TestOf_AnOpenTurnSaysWhatItWaitsForNow(t *testing.T) {
	t.Parallel()
	var j journal
	j.begin()
	require.Equal(t, []string{"model 70ms …"}, parts(of(t, j, 70).Spans[0]))
	j.reply(100, 1, 100, "one", "two", "three")
	j.add(110, loop.Event{Type: loop.EventApprovalAsked, Step: 1, CallFields: fields(2, "three")})
	j.call(110, 1, 0, "one", "default/sandbox/s")
	j.call(110, 1, 1, "two", "default/sandbox/s")
	trace, err := timeline.Of(timeline.Source{Events: j, Now: at(1110), Open: func(e *loop.Event) timeline.Open {
		if e.Name == "one" {
			return timeline.Open{Running: true, RunMS: 900, WorkerID: "w", Attempt: 1, Waits: protocol.Waits{LimitMS: 50, Limit: "sandbox/*"}}
		}
		return timeline.Open{Reason: report.ReasonLane, For: "c-one"}
	}}, 1)
	require.NoError(t, err)
	require.Equal(t, report.StateOpen, trace.State)
	require.Len(t, trace.Spans, 4) // no request to the model before the calls have ended
	one, two, three := find(t, trace, "one"), find(t, trace, "two"), find(t, trace, "three")
	require.Equal(t, []string{"store 10ms", "limit 50ms for sandbox/*", "send 50ms", "run 900ms …"}, parts(one))
	require.Equal(t, []string{"store 10ms", "lane 1s for c-one …"}, parts(two))
	require.Equal(t, []string{"store 10ms", "person 1s …"}, parts(three))
	require.Equal(t, []string{report.SpanRunning, report.SpanWaiting, report.SpanWaiting}, []string{one.State, two.State, three.State})
	_, err = timeline.Of(timeline.Source{Events: j}, 2)
	require.ErrorIs(t, err, timeline.ErrNoTurn)
}

func TestOf_ASubAgentIsInItsCall(t *testing.T) {
	t.Parallel()
	var j, child journal
	j.begin()
	j.reply(100, 1, 100, "agent")
	j.call(100, 1, 0, "agent", "")
	j.result(1100, 1, 0, "agent", loop.ResultFields{QueueMS: new(0.0), RunMS: new(1000.0)})
	j.end(1100)
	const ahead = 3_600_000 // its coordinator's clock
	child.add(ahead+100, loop.Event{Type: loop.EventTurnStarted})
	child.reply(ahead+400, 1, 300, "inner")
	child.call(ahead+400, 1, 0, "inner", "default/sandbox/s")
	child.result(ahead+1000, 1, 0, "inner", loop.ResultFields{QueueMS: new(0.0), RunMS: new(600.0)})
	child.end(ahead + 1000)
	trace, err := timeline.Of(timeline.Source{Events: j, Agent: func(id protocol.CallID) []loop.Event {
		require.Equal(t, protocol.CallID("c-agent"), id)
		return child
	}}, 0)
	require.NoError(t, err)
	agent, inner := find(t, trace, "agent"), find(t, trace, "inner")
	require.Equal(t, report.SpanAgent, agent.Kind)
	require.Equal(t, []int{0, 0, 1, 1}, []int{trace.Spans[0].Depth, trace.Spans[1].Depth, trace.Spans[2].Depth, trace.Spans[3].Depth})
	require.InDelta(t, 500, inner.StartMS, 0.01) // moved to the end of the span of its call
	for _, total := range trace.Totals {
		if total.Reason == report.ReasonRun {
			require.InDelta(t, 600, total.MS, 0.01)
		}
	}
	checkTrace(t, trace)
}

// Spans of a track do not overlap: a viewer shows one that begins within another as a part of it.
func TestWriteChrome_HasATrackForEachOverlap(t *testing.T) {
	t.Parallel()
	var j journal
	j.begin()
	j.reply(100, 1, 100, "one", "two", "three")
	for i, name := range []string{"one", "two", "three"} {
		j.call(100, 1, i, name, "default/sandbox/s")
	}
	for i, name := range []string{"one", "two", "three"} {
		j.result(float64(200+100*i), 1, i, name, loop.ResultFields{QueueMS: new(0.0), RunMS: new(90.0)})
	}
	j.reply(500, 2, 100)
	j.end(500)
	var out bytes.Buffer
	require.NoError(t, timeline.WriteChrome(&out, of(t, j, 0)))
	var file struct {
		Events []struct {
			Name, Cat, Ph string
			Ts, Dur       float64
			Tid           int
		} `json:"traceEvents"` //nolint:tagliatelle // as the format names it
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &file))
	end, tracks := map[int]float64{}, map[string]int{}
	for _, e := range file.Events {
		if e.Cat == string(report.SpanCall) || e.Name == "m" {
			require.LessOrEqual(t, end[e.Tid], e.Ts, "%+v", e)
			end[e.Tid] = e.Ts + e.Dur
			tracks[e.Name] = e.Tid
		}
	}
	require.Len(t, end, 3)
	require.Equal(t, map[string]int{"m": 0, "one": 0, "two": 1, "three": 2}, tracks)
	require.InDelta(t, 500_000, end[0], 1, "in microseconds")
}

// checkTrace checks what holds for every trace.
func checkTrace(t require.TestingT, trace *report.Trace) {
	const most = 0.02 // of rounding
	sum := 0.0
	for _, total := range trace.Totals {
		sum += total.TurnMS
	}
	require.InDelta(t, trace.DurationMS, sum, most, "the shares are the turn")
	for i := range trace.Spans {
		s := &trace.Spans[i]
		require.GreaterOrEqual(t, s.StartMS, 0.0, "%+v", s)
		require.LessOrEqual(t, s.StartMS+s.DurationMS, trace.DurationMS+most, "a span is in its turn: %+v", s)
		at, length := s.StartMS, 0.0
		for _, p := range s.Parts {
			require.InDelta(t, at, p.StartMS, most, "parts have no gap: %+v", s)
			require.Positive(t, p.MS)
			at, length = at+p.MS, length+p.MS
		}
		require.InDelta(t, s.DurationMS, length, most, "the parts are the span: %+v", s)
	}
}

// Whatever the clocks and the workers say, parts add up to their span, spans are in the turn, and
// the shares of the reasons are the turn.
func TestOf_PartsAddUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ms := func(label string) float64 { return rapid.Float64Range(0, 5000).Draw(t, label) }
		maybe := func(label string) float64 {
			if rapid.Bool().Draw(t, "has "+label) {
				return ms(label)
			}
			return 0
		}
		var j journal
		j.begin()
		now := 0.0
		pass := func() float64 {
			now += rapid.Float64Range(-200, 3000).Draw(t, "passes") // clocks are set, and differ
			return now
		}
		for step := 1; step <= rapid.IntRange(1, 3).Draw(t, "steps"); step++ {
			names := []string{"a", "b", "agent"}[:rapid.IntRange(0, 3).Draw(t, "calls")]
			for i, name := range names {
				names[i] = name + string(rune('0'+step))
			}
			j.reply(pass(), step, maybe("request"), names...)
			for i, name := range names {
				lane := rapid.SampledFrom([]string{"", "default/sandbox/s"}).Draw(t, "lane")
				if rapid.Bool().Draw(t, "asks") {
					j.add(pass(), loop.Event{Type: loop.EventApprovalAsked, Step: step, CallFields: fields(i, name)})
					if rapid.Bool().Draw(t, "answers") {
						j.add(pass(), loop.Event{Type: loop.EventPolicyDecision, Step: step, CallFields: fields(i, name)})
					}
				}
				if rapid.Bool().Draw(t, "sent") {
					j.call(pass(), step, i, name, lane)
				}
				if rapid.Bool().Draw(t, "ended") {
					j.result(pass(), step, i, name, loop.ResultFields{
						QueueMS: new(ms("queue")), RunMS: new(ms("run")), SandboxMS: maybe("sandbox"), StoreMS: maybe("store"), Attempt: 2, WorkerID: "w",
						Waits: protocol.Waits{SlotMS: maybe("slot"), LaneMS: maybe("lane"), LostMS: maybe("lost"), RateMS: maybe("rate"), NotBeforeMS: maybe("not before")},
						CallTimes: loop.CallTimes{SendMS: maybe("send"), Starts: []loop.CallStart{
							{Attempt: 1, WorkerID: "v", AfterMS: ms("first")}, {Attempt: 2, WorkerID: "w", AfterMS: ms("second")},
						}},
					})
				}
			}
		}
		if rapid.Bool().Draw(t, "over") {
			j.end(pass())
		}
		checkTrace(t, of(t, j, now+ms("later")))
	})
}

// TestWaited_AddsUp: the waits of a call of the log, the longest first, and what none of them
// explains.
func TestWaited_AddsUp(t *testing.T) {
	t.Parallel()
	call := report.LoggedCall{Attempt: 1}
	call.Waits.QueueMS, call.Waits.PersonMS = 100, 7
	call.Waits.Waits = protocol.Waits{NotBeforeMS: 5, LaneMS: 60, HeldBy: "c", HeldBySession: "s", LimitMS: 30, Limit: "api/*", PauseMS: 0.5}
	require.Equal(t, []report.Part{
		{Reason: report.ReasonLane, MS: 60, For: "s/c"},
		{Reason: report.ReasonLimit, MS: 30, For: "api/*"},
		{Reason: report.ReasonSend, MS: 9.5},
		{Reason: report.ReasonPerson, MS: 7},
		{Reason: report.ReasonNotBefore, MS: 5},
	}, timeline.Waited(&call))
	for attempt, rest := range map[int]report.Reason{0: report.ReasonSlot, 2: report.ReasonRetry} {
		never := report.LoggedCall{Attempt: attempt, Waits: report.CallWaits{QueueMS: 3}}
		require.Equal(t, []report.Part{{Reason: rest, MS: 3}}, timeline.Waited(&never))
	}
}
