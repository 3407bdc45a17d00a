package terminal

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

const (
	// defaultColumns is the width of what is no terminal, and minColumns the least width in which
	// bars are drawn.
	defaultColumns, minColumns = 80, 40
)

// Waterfall draws the trace of a turn as bars, with all that each took in words.
type Waterfall struct {
	Color bool
	Width int // columns; 0 means 80
}

// bars are the characters and styles of bars, so that they differ without colours too.
var bars = map[report.ReasonClass]struct { //nolint:gochecknoglobals // a constant
	char  string
	style style
}{
	report.ClassModel: {"▓", cyan}, report.ClassRun: {"█", green}, report.ClassWait: {"░", yellow}, report.ClassOverhead: {"─", dim},
}

// waterfall is a trace that is being drawn.
type waterfall struct {
	strings.Builder

	ink          ink
	trace        *report.Trace
	width, label int // columns
	bar          int // columns of a bar
}

// Write draws a trace.
func (o Waterfall) Write(to io.Writer, t *report.Trace) error {
	w := &waterfall{ink: ink(o.Color), trace: t, width: max(cmp.Or(o.Width, defaultColumns), minColumns)}
	const times = 2 * (maxDuration + 1)
	w.label = min(max((w.width-times)/2, 12), 48)
	w.bar = w.width - w.label - times - 1
	w.head()
	for i := range t.Spans {
		w.span(&t.Spans[i])
	}
	if t.LeftOut > 0 {
		w.line(dim, fmt.Sprintf("%s not shown", Plural(t.LeftOut, "more span")))
	}
	w.totals()
	_, err := io.WriteString(to, w.String())
	return err
}

// maxDuration is the width of the longest [Duration].
const maxDuration = 9

func (w *waterfall) line(st style, text string) {
	w.WriteString(w.ink.paint(st, strings.TrimRight(Fit(text, w.width), " ")) + "\n")
}

// head says what the turn is, and what the columns are.
func (w *waterfall) head() {
	t := w.trace
	state, took := report.StateWords(t.State), "took "
	if t.State == report.StateOpen {
		took = "for "
	}
	w.line(bold, fmt.Sprintf("session %s, turn %d: %s, %s%s", t.SessionID, t.Turn, state, took, Millis(t.DurationMS)))
	if t.Input != "" {
		w.line(plain, "› "+firstLine(t.Input))
	}
	end := Millis(t.DurationMS)
	w.line(dim, fmt.Sprintf("%s %*s %*s %s%*s", Pad("", w.label), maxDuration, "at", maxDuration, "took", "0", max(w.bar-1, 0), end))
}

// span draws a row, and below it what the span waited for.
func (w *waterfall) span(s *report.Span) {
	indent := strings.Repeat("  ", s.Depth)
	name := cmp.Or(s.About, s.Name)
	switch s.Kind {
	case report.SpanModel:
		name = "model " + name
	case report.SpanCompact:
		name = "summary by " + name
	case report.SpanCall, report.SpanAgent:
		name = position(s) + " " + name
	}
	mark, st := visualMarks().of(s.State)
	label := Pad(Fit(indent+"  "+name, w.label), w.label)
	label = strings.Replace(label, indent+"  ", indent+w.ink.paint(st, strings.TrimRight(mark, " "))+" ", 1)
	w.WriteString(strings.TrimRight(fmt.Sprintf("%s %*s %*s %s", label, maxDuration, Millis(s.StartMS), maxDuration, Millis(s.DurationMS), w.drawn(s)), " ") + "\n")
	w.words(s, indent+"    ")
}

// position is where in its turn a call is.
func position(s *report.Span) string { return fmt.Sprintf("%d.%d", s.Step, s.Index+1) }

// drawn is the bar of a span. What is too short to be seen is one character, that of its longest
// part.
func (w *waterfall) drawn(s *report.Span) string {
	length := max(w.trace.DurationMS, 1e-3)
	column := func(ms float64) int { return min(max(int(ms/length*float64(w.bar)), 0), w.bar) }
	var b strings.Builder
	at := min(column(s.StartMS), w.bar-1)
	b.WriteString(strings.Repeat(" ", at))
	parts := s.Parts
	if len(parts) > 0 && column(s.StartMS+s.DurationMS) <= at+1 {
		longest := slices.MaxFunc(parts, func(a, b report.Part) int { return cmp.Compare(a.MS, b.MS) })
		longest.StartMS, longest.MS = 0, w.trace.DurationMS*float64(at+1)/float64(w.bar)+length/1e6
		parts = []report.Part{longest}
	}
	for _, p := range parts {
		if end := column(p.StartMS + p.MS); end > at {
			look := bars[p.Reason.Class()]
			b.WriteString(w.ink.paint(look.style, strings.Repeat(look.char, end-at)))
			at = end
		}
	}
	return b.String()
}

// words says what took the time of a span, in lines that are not wider than the screen.
func (w *waterfall) words(s *report.Span, indent string) {
	var facts []string
	if s.Kind == report.SpanCall || s.Kind == report.SpanAgent {
		facts = append(facts, w.outcome(s))
	}
	for _, p := range s.Parts {
		isModel := s.Kind == report.SpanModel && p.Reason != report.ReasonModelLimit
		if !IsSaid(&p) || isModel {
			continue
		}
		text := PartWords(&p)
		if p.For != "" {
			text += " (" + w.about(&p) + ")"
		}
		facts = append(facts, text)
	}
	line := ""
	for _, fact := range facts {
		fact = Fit(fact, w.width-len(indent))
		if line != "" && Columns(indent+line+" · "+fact) > w.width {
			w.line(dim, indent+line)
			line = ""
		}
		if line != "" {
			line += " · "
		}
		line += fact
	}
	if line != "" {
		w.line(dim, indent+line)
	}
}

// leastSaid is the least time of a part that is said in words, in milliseconds.
const leastSaid = 10

// IsSaid reports whether a part of a span, or what a call waited for, is worth its words.
func IsSaid(p *report.Part) bool { return p.MS >= leastSaid || p.Open }

// PartWords say what a part was for, and how long it took.
func PartWords(p *report.Part) string {
	words := p.Reason.Words() + " " + Millis(p.MS)
	if p.Open {
		words += " so far"
	}
	return words
}

// outcome is how a call ended, and where it ran.
func (w *waterfall) outcome(s *report.Span) string {
	text := report.StateWords(s.State)
	if s.Code != "" {
		text += " " + string(s.Code)
	}
	if s.WorkerID != "" {
		text += " on " + string(s.WorkerID)
	}
	if s.Attempt > 1 {
		text += fmt.Sprintf(", attempt %d", s.Attempt)
	}
	return text
}

// about says what a part waited for.
func (w *waterfall) about(p *report.Part) string {
	switch p.Reason {
	case report.ReasonLane, report.ReasonAfter:
		for i := range w.trace.Spans {
			if s := &w.trace.Spans[i]; string(s.CallID) == p.For {
				return position(s) + " " + s.Name
			}
		}
		return "call " + p.For
	case report.ReasonLost:
		if p.Attempt > 0 {
			return fmt.Sprintf("%s, attempt %d", p.For, p.Attempt)
		}
	default:
	}
	return prose.OneLine(p.For)
}

// totals says where the time of the turn went, and what it cost.
func (w *waterfall) totals() {
	t := w.trace
	w.WriteString("\n")
	w.line(bold, fmt.Sprintf("%s %*s  %5s %*s", Pad("where the time went", w.label), maxDuration, "of turn", "", maxDuration, "in all"))
	for _, total := range t.Totals {
		share := 0.0
		if t.DurationMS > 0 {
			share = total.TurnMS / t.DurationMS * 100
		}
		look := bars[total.Reason.Class()]
		fmt.Fprintf(&w.Builder, "%s %s %*s %5.1f%% %*s\n", w.ink.paint(look.style, look.char), Pad(Fit(total.Reason.Words(), w.label-2), w.label-2),
			maxDuration, Millis(total.TurnMS), share, maxDuration, Millis(total.MS))
	}
	cost := "no price is known"
	if t.CostUSD != nil {
		cost = fmt.Sprintf("$%.4f", *t.CostUSD)
	}
	w.line(plain, fmt.Sprintf("%s (%s in, %s out), %s", tokens(t.Usage), count(t.Usage.InputTokens), count(t.Usage.OutputTokens), cost))
	if t.TraceID != "" {
		w.line(dim, "trace "+t.TraceID)
	}
}
