package timeline

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

const (
	// maxAgents bounds the sub-agents of a trace, and maxDepth how deep they are.
	maxAgents = 64
	maxDepth  = 8
)

// finishCall lays the parts of a call out.
func (t *turnSpans) finishCall(s *span) {
	if isAgent(s) {
		s.Kind = report.SpanAgent
	}
	background := s.result != nil && s.result.Type == loop.EventToolResult && s.result.Job != ""
	end, open := s.ended, false
	if end.IsZero() || background {
		if end = t.end; end.IsZero() {
			end, open = t.now, true
		}
	}
	begun := firstOf(s.replied, s.asked, s.sent, end)
	l := layout{from: t.at(begun), length: max(millis(end.Sub(begun)), 0), open: open}
	t.judged(s, &l, begun)
	switch {
	case s.sent.IsZero():
		t.unsent(s, &l)
	case background:
		s.State = report.SpanBackground
		l.rest(t.runs(s))
	case s.result != nil:
		t.ended(s, &l)
	case !open:
		s.State = report.SpanUnfinished
		l.rest(report.ReasonResult)
	default:
		t.unended(s, &l)
	}
	l.into(&s.Span)
	t.paintStarts(s)
	t.paintPersons(s, end)
	for _, d := range s.dialogs {
		to := t.at(end)
		if !d.to.IsZero() {
			to = t.at(d.to)
		}
		paint(&s.Span, t.at(d.from), to, []report.Reason{report.ReasonRun, report.ReasonAgent}, report.Part{Reason: report.ReasonPerson, For: d.by})
	}
	if n := len(s.Parts); n > 0 && s.State == report.SpanRunning && s.Parts[n-1].Reason == report.ReasonPerson {
		s.State = report.SpanWaiting
	}
	t.loadAgent(s)
}

// paintPersons adds what a call waited for a person who was asked about another call of its reply:
// the calls of a reply are sent when all of them were judged.
func (t *turnSpans) paintPersons(s *span, end time.Time) {
	to := firstOf(s.sent, end)
	for _, other := range t.spans {
		if other == s || other.Step != s.Step || other.asked.IsZero() || !other.asked.Before(to) {
			continue
		}
		until := t.at(to)
		switch {
		case !other.approved.IsZero():
			until = min(until, t.at(other.approved))
		case s.sent.IsZero():
			until = math.Inf(1) // to the end of the span, however that is rounded
		}
		paint(&s.Span, t.at(other.asked), until, []report.Reason{report.ReasonStore}, report.Part{Reason: report.ReasonPerson, For: other.by})
	}
}

// firstOf returns the first time that is set.
func firstOf(times ...time.Time) time.Time { return cmp.Or(times...) }

// judged adds what came before a call was journaled: policies, hooks, and a person who was asked.
func (t *turnSpans) judged(s *span, l *layout, begun time.Time) {
	if s.asked.IsZero() {
		if !s.sent.IsZero() {
			l.add(report.ReasonStore, millis(s.sent.Sub(begun)), "")
		}
		return
	}
	l.add(report.ReasonStore, millis(s.asked.Sub(begun)), "")
	answered := firstOf(s.approved, s.sent) // it may have been cancelled without an answer
	if answered.IsZero() {
		return
	}
	l.add(report.ReasonPerson, millis(answered.Sub(s.asked)), s.by)
	if !s.sent.IsZero() {
		l.add(report.ReasonStore, millis(s.sent.Sub(answered)), "")
	}
}

// unsent is a call that has not been judged yet, or never was.
func (t *turnSpans) unsent(s *span, l *layout) {
	s.State = report.SpanWaiting
	if !l.open {
		s.State = report.SpanUnfinished
	}
	if !s.asked.IsZero() && s.approved.IsZero() {
		l.rest(report.ReasonPerson)
	} else {
		l.rest(report.ReasonStore)
	}
}

// runs is the reason of the time in which a call runs.
func (t *turnSpans) runs(s *span) report.Reason {
	if s.Kind == report.SpanAgent {
		return report.ReasonAgent
	}
	return report.ReasonRun
}

// ended is a call with a result.
func (t *turnSpans) ended(s *span, l *layout) {
	r := s.result
	s.State, s.WorkerID, s.Attempt, s.Level = r.Status, r.WorkerID, r.Attempt, r.Level
	if r.Error != nil {
		s.Code = r.Error.Code
	}
	if s.Kind == report.SpanAgent {
		s.Usage, s.CostUSD = r.Usage, r.CostUSD
	}
	switch {
	case r.RunMS == nil: // of an older version, or refused
		l.rest(t.runs(s))
	case s.Lane == "" && r.Type == loop.EventJobEnded: // its end is journaled between two steps
		l.add(t.runs(s), *r.RunMS, "")
		l.rest(report.ReasonResult)
	case s.Lane == "": // this process ran it
		l.rest(report.ReasonStore)
		l.add(t.runs(s), *r.RunMS, "")
	default:
		t.queued(l, r)
		l.add(report.ReasonSandbox, min(r.SandboxMS, *r.RunMS), "")
		l.add(report.ReasonRun, *r.RunMS-r.SandboxMS-r.StoreMS, "")
		l.add(report.ReasonStore, min(r.StoreMS, *r.RunMS), "")
		l.rest(report.ReasonResult)
	}
}

// queued adds what a call waited for until its last start.
func (t *turnSpans) queued(l *layout, r *loop.Event) {
	if r.Full != "" {
		l.add(report.ReasonFull, r.SendMS, r.Full)
	} else {
		l.add(report.ReasonSend, r.SendMS, "")
	}
	retried := 0.0
	for _, try := range r.Tries {
		retried += try.RunMS + try.WaitMS
	}
	left := 0.0
	if r.QueueMS != nil {
		left = *r.QueueMS + r.Waits.NotBeforeMS
	}
	for _, p := range append(wire.Waits(&r.Waits, r.Attempt), report.Part{Reason: report.ReasonRetry, MS: retried}) {
		p.MS = min(p.MS, left)
		left -= p.MS
		l.addPart(p)
	}
	l.add(report.ReasonSlot, left, "") // an older worker said no more
}

// Waits returns the waits of calls in the fleet and for persons, also those that took no time.
// Attempt is the one that ran at last.
func Waits(w *report.CallWaits, attempt int) []report.Part {
	return append(wire.Waits(&w.Waits, attempt), report.Part{Reason: report.ReasonPerson, MS: w.PersonMS})
}

// Waited returns what a call of the log waited for, the longest wait first, without what took less
// than a millisecond. What no wait explains has a reason of its own.
func Waited(c *report.LoggedCall) []report.Part {
	all, rest := Waits(&c.Waits, c.Attempt), c.Waits.TotalMS()
	for i := range all {
		rest -= all[i].MS
	}
	reason := report.ReasonSend
	switch {
	case c.Attempt == 0: // no worker has started it
		reason = report.ReasonSlot
	case c.Attempt > 1:
		reason = report.ReasonRetry
	}
	all = slices.DeleteFunc(append(all, report.Part{Reason: reason, MS: rest}), func(p report.Part) bool { return p.MS < 1 })
	slices.SortStableFunc(all, func(a, b report.Part) int { return cmp.Compare(b.MS, a.MS) })
	return all
}

// unended is a call without a result in a turn that is open.
func (t *turnSpans) unended(s *span, l *layout) {
	s.State = report.SpanRunning
	var o Open
	if s.Lane != "" && t.source.Open != nil {
		o = t.source.Open(s.call)
	}
	switch {
	case s.Lane == "":
		l.rest(t.runs(s))
	case o.Running:
		s.WorkerID, s.Attempt = o.WorkerID, o.Attempt
		for _, p := range wire.Waits(&o.Waits, o.Attempt) {
			l.addPart(p)
		}
		l.rest(report.ReasonSend)
		l.add(report.ReasonRun, min(o.RunMS, l.length), "")
	default:
		s.State = report.SpanWaiting
		l.restFor(cmp.Or(o.Reason, report.ReasonSlot), o.For)
	}
}

func (l *layout) addPart(p report.Part) {
	if p.MS > 0 {
		l.parts = append(l.parts, p)
	}
}

// paintStarts shows which worker was lost, from its start of the call until the next one's.
func (t *turnSpans) paintStarts(s *span) {
	if s.result == nil || s.sent.IsZero() {
		return
	}
	starts, sent := s.result.Starts, t.at(s.sent)
	for i := range len(starts) - 1 {
		if a, b := starts[i], starts[i+1]; a.WorkerID != b.WorkerID {
			paint(&s.Span, sent+a.AfterMS, sent+b.AfterMS, []report.Reason{report.ReasonSlot, report.ReasonLost},
				report.Part{Reason: report.ReasonLost, For: string(a.WorkerID), Attempt: a.Attempt})
		}
	}
}

// loadAgent loads the events of a sub-agent.
func (t *turnSpans) loadAgent(s *span) {
	if s.Kind != report.SpanAgent || s.CallID == "" {
		return
	}
	if t.source.Agent != nil && t.agents < maxAgents && t.depth < maxDepth {
		t.agents++
		s.events = t.source.Agent(s.CallID)
	}
	if r := s.result; len(s.events) == 0 && r != nil { // its session was removed
		t.spend(r)
	}
}

// below returns the spans of a sub-agent, within the span of its call.
func (b *builder) below(s *span) []report.Span {
	events, _ := eventsOf(s.events, 0)
	if len(events) == 0 {
		return nil
	}
	times := straighten(events)
	if events[0].Model == "" {
		events[0].Model = model(s.events, &events[0])
	}
	spans := b.turn(events, times, s.Depth+1)
	from, to := b.at(times[0]), b.at(times[len(times)-1])
	first, last := s.StartMS, s.StartMS+s.DurationMS
	moved := 0.0
	switch {
	case from < first:
		moved = first - from
	case to > last:
		moved = -min(to-last, from-first)
	}
	for i := range spans {
		move(&spans[i], moved)
		clip(&spans[i], first, last)
	}
	return spans
}
