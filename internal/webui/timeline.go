package webui

import (
	"time"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

// bar is a span of a turn: what the model took, or a call.
type bar struct {
	Label string
	Call  *call     // nil of the model
	From  time.Time // when it was asked for
	Run   time.Time // when it started; From if it waited for nothing
	To    time.Time // zero while it runs
}

// replied adds what a reply took.
func (t *turn) replied(e *loop.Event) {
	from := t.Begun
	for _, b := range t.Bars { // the model answers what ended before
		if b.Call == nil || b.To.Before(e.Time) {
			from = latest(from, b.To)
		}
	}
	t.Bars = append(t.Bars, bar{Label: "model", From: from, Run: from, To: e.Time})
}

// timed keeps the bar of a call.
func (t *turn) timed(c *call) {
	b := bar{Label: about(c.Tool, c.Arguments), Call: c, From: c.Asked, Run: c.Started, To: c.Ended}
	if c.RunMS != nil && !c.Ended.IsZero() {
		b.Run = c.Ended.Add(-time.Duration(*c.RunMS * float64(time.Millisecond)))
	}
	if b.Run.Before(b.From) {
		b.Run = b.From
	}
	for i := range t.Bars {
		if t.Bars[i].Call == c {
			t.Bars[i] = b
			return
		}
	}
	t.Bars = append(t.Bars, b)
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// drawn is a bar as a page draws it, in thousandths of the turn.
type drawn struct {
	bar

	Class              string
	WaitX, WaitW, X, W int
	Waited, Ran, Took  string
}

// Length is how long the turn took until now.
func (t *turn) Length() time.Duration {
	end := t.Ended
	if end.IsZero() {
		end = time.Now()
		if n := len(t.Bars); n > 0 && t.Outcome != "" {
			end = t.Bars[n-1].To
		}
	}
	return max(end.Sub(t.Begun), time.Millisecond)
}

// Timeline draws the bars of the turn.
func (t *turn) Timeline() []drawn {
	length := t.Length()
	place := func(at time.Time) int { return min(max(int(at.Sub(t.Begun)*1000/length), 0), 1000) }
	all := make([]drawn, 0, len(t.Bars))
	for _, b := range t.Bars {
		end := b.To
		if end.IsZero() {
			end = t.Begun.Add(length)
		}
		run := b.Run
		if b.Call != nil && b.Call.Open() && b.Call.Started.IsZero() {
			run = end // it has not started
		}
		d := drawn{bar: b, WaitX: place(b.From), X: place(run), Class: "model", Waited: span(run.Sub(b.From)), Ran: span(end.Sub(run)), Took: span(end.Sub(b.From))}
		d.WaitW, d.W = d.X-d.WaitX, max(place(end)-d.X, 2)
		if b.Call != nil {
			if d.Class = stateOf(b.Call.Now()).Class; b.Call.Open() && d.Class != "wait" {
				d.Class = "run"
			}
		}
		all = append(all, d)
	}
	return all
}
