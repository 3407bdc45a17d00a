package timeline

import (
	"cmp"
	"math"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

// layout lays the parts of a span out, one behind the other.
type layout struct {
	from, length float64 // in milliseconds
	parts        []report.Part
	flexible     int  // the part that gets what the others leave, from 1; 0 is none
	open         bool // the last part has not ended
}

// add appends a part; one without a length is left out.
func (l *layout) add(reason report.Reason, ms float64, of string) {
	if ms > 0 {
		l.parts = append(l.parts, report.Part{Reason: reason, MS: ms, For: of})
	}
}

// rest appends the part that gets what all others leave.
func (l *layout) rest(reason report.Reason) { l.restFor(reason, "") }

func (l *layout) restFor(reason report.Reason, of string) {
	l.parts = append(l.parts, report.Part{Reason: reason, For: of})
	l.flexible = len(l.parts)
}

// into sets the parts and the position of a span. Parts that are longer together than the span lose
// the excess, the first one first.
func (l *layout) into(s *report.Span) {
	excess := -l.length
	for i := range l.parts {
		excess += l.parts[i].MS
	}
	if excess < 0 && l.flexible > 0 {
		l.parts[l.flexible-1].MS = -excess
	}
	for i := 0; i < len(l.parts) && excess > 0; i++ {
		cut := min(excess, l.parts[i].MS)
		l.parts[i].MS -= cut
		excess -= cut
	}
	at := l.from
	for i := range l.parts {
		l.parts[i].StartMS = at
		at += l.parts[i].MS
	}
	l.parts = slices.DeleteFunc(l.parts, func(p report.Part) bool { return p.MS <= 0 })
	if n := len(l.parts); l.open && n > 0 {
		l.parts[n-1].Open = true
	}
	s.StartMS, s.DurationMS, s.Parts = l.from, l.length, append([]report.Part{}, l.parts...)
}

// paint replaces what is in a time of those parts of a span whose reason is one of some.
func paint(s *report.Span, from, to float64, over []report.Reason, with report.Part) {
	var parts []report.Part
	for _, p := range s.Parts {
		end := p.StartMS + p.MS
		a, z := max(from, p.StartMS), min(to, end)
		if !slices.Contains(over, p.Reason) || a >= z {
			parts = append(parts, p)
			continue
		}
		before, middle, after := p, with, p
		before.MS, before.Open = a-p.StartMS, false
		middle.StartMS, middle.MS = a, z-a
		after.StartMS, after.MS = z, end-z
		if middle.Open = false; after.MS <= 0 {
			middle.Open = p.Open
		}
		for _, piece := range []report.Part{before, middle, after} {
			if piece.MS > 0 {
				parts = append(parts, piece)
			}
		}
	}
	s.Parts = parts
}

// move moves a span.
func move(s *report.Span, by float64) {
	s.StartMS += by
	for i := range s.Parts {
		s.Parts[i].StartMS += by
	}
}

// clip leaves out what of a span is not between two positions, and rounds it to microseconds.
func clip(s *report.Span, from, to float64) {
	start, end := min(max(s.StartMS, from), to), max(min(s.StartMS+s.DurationMS, to), from)
	s.StartMS, s.DurationMS = rounded(start), rounded(end-start)
	for i := range s.Parts {
		p := &s.Parts[i]
		a, z := max(p.StartMS, start), min(p.StartMS+p.MS, end)
		p.StartMS, p.MS = rounded(a), rounded(max(z-a, 0))
	}
	s.Parts = slices.DeleteFunc(s.Parts, func(p report.Part) bool { return p.MS <= 0 })
}

func rounded(ms float64) float64 { return math.Round(ms*1000) / 1000 }

// edge is where a part begins or ends.
type edge struct {
	at     float64
	reason int // in [report.Reasons]
	begins int // 1 or -1
}

// totals sums up the parts of spans. A sub-agent counts by its own spans, if it has any.
func totals(spans []report.Span, length float64) []report.Total {
	reasons := report.Reasons()
	all := make([]report.Total, len(reasons))
	var edges []edge
	for i := range spans {
		parent := i+1 < len(spans) && spans[i+1].Depth > spans[i].Depth
		for _, p := range spans[i].Parts {
			r := slices.Index(reasons, p.Reason)
			if parent && p.Reason == report.ReasonAgent {
				edges = append(edges, edge{p.StartMS, r, 1}, edge{p.StartMS + p.MS, r, -1})
				continue
			}
			all[r].MS += p.MS
			edges = append(edges, edge{p.StartMS, r, 1}, edge{p.StartMS + p.MS, r, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	between := slices.Index(reasons, report.ReasonStore) // nothing is open between spans but writes to the journal
	open, at := make([]int, len(reasons)), 0.0
	until := func(to float64) {
		first := slices.IndexFunc(open, func(n int) bool { return n > 0 })
		if first < 0 {
			first = between
		}
		if to > at {
			all[first].TurnMS += to - at
			at = to
		}
	}
	for _, e := range edges {
		until(min(e.at, length))
		open[e.reason] += e.begins
	}
	until(length)
	var used []report.Total
	for i := range all {
		if all[i].Reason = reasons[i]; all[i].MS > 0 || all[i].TurnMS > 0 {
			all[i].MS, all[i].TurnMS = rounded(max(all[i].MS, all[i].TurnMS)), rounded(all[i].TurnMS)
			used = append(used, all[i])
		}
	}
	slices.SortStableFunc(used, func(a, b report.Total) int {
		return cmp.Or(cmp.Compare(b.TurnMS, a.TurnMS), cmp.Compare(b.MS, a.MS))
	})
	return used
}
