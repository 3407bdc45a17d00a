package terminal

import (
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

func (v *View) turnEnded(e *loop.Event) {
	v.turns++
	v.ended = e.Status
	if e.Step > 0 {
		v.turn.steps = e.Step
	}
	v.summary("", e, &v.turn)
}

// sessionEnded sums the session up, unless the end of its only turn just did.
func (v *View) sessionEnded(e *loop.Event) {
	switch {
	case v.ended == e.Status && v.turns == 1:
	case v.ended == "":
		v.summary("", e, &v.turn)
	default:
		v.summary("session: "+Plural(v.turns, "turn")+v.marks.separator, e, &v.session)
	}
}

// summary shows how something ended, and what it came to.
func (v *View) summary(what string, e *loop.Event, t *tally) {
	v.gap = true
	mark, st := v.outcomeMark(loop.Outcome(e.Status))
	outcome := fit(strings.ReplaceAll(e.Status, "_", " "), maxName)
	parts := []part{{st, mark + what + outcome}, {plain, Plural(t.steps, "step")}, {plain, t.callsText()}}
	if u := e.Usage; u != nil {
		parts = append(parts, part{plain, fmt.Sprintf("%s tokens (%s in, %s out)",
			count(u.Total()), count(u.InputTokens), count(u.OutputTokens))})
		for _, cost := range v.cost(*u) {
			parts = append(parts, part{plain, cost})
		}
	}
	parts = append(parts, part{plain, duration(e.Time.Sub(t.since))})
	if e.TraceID != "" {
		parts = append(parts, part{dim, "trace " + fit(e.TraceID, maxWorker)})
	}
	v.heading(parts...)
	if e.Error != nil {
		text := v.flow("  ", "  ")
		text.add(string(e.Error.Code) + ": " + e.Error.Message)
		text.end()
	}
	if v.held = nil; v.opts.Copied && !v.back {
		v.held = t.files
	} else {
		v.files(t.files)
	}
	v.gap = true
}

// CameBack shows what the last turn has changed: it is here now.
func (v *View) CameBack() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.measure()
	v.back, v.gap = true, false
	v.files(v.held)
	v.held, v.gap = nil, true
	v.flush()
}

func (v *View) outcomeMark(outcome loop.Outcome) (string, style) {
	switch outcome {
	case loop.OutcomeAnswered:
		return v.marks.ok, green
	case loop.OutcomeFailed:
		return v.marks.failed, red
	default:
		return v.marks.stopped, yellow
	}
}

// files shows which files were written and edited, in columns.
func (v *View) files(all []change) {
	const before = "  changed  "
	shown := all[:min(len(all), maxFiles)]
	room := max(min(v.width/2, v.width-30), minWidth/2)
	paths, added, removed := 0, 0, 0
	for i := range shown {
		paths = max(paths, columns(fit(shown[i].path, room)))
		added = max(added, len(plus(&shown[i])))
		removed = max(removed, columns(v.minus(&shown[i])))
	}
	for i := range shown {
		c := &shown[i]
		prefix := before
		if i > 0 {
			prefix = strings.Repeat(" ", len(before))
		}
		v.line(prefix + pad(fit(c.path, room), paths) + "  " +
			v.ink.paint(green, strings.Repeat(" ", added-len(plus(c)))+plus(c)) + " " +
			v.ink.paint(red, pad(v.minus(c), removed)) + c.remark())
	}
	if more := len(all) - len(shown); more > 0 {
		v.line(strings.Repeat(" ", len(before)) + "… " + Plural(more, "more file"))
	}
}

func plus(c *change) string { return "+" + count(c.added) }

func (v *View) minus(c *change) string { return v.marks.minus + count(c.removed) }

// remark says what the numbers do not.
func (c *change) remark() string {
	text := ""
	switch {
	case c.gone:
		text = "  deleted"
	case c.created:
		text = "  new"
	}
	if c.partial {
		text += "  and more"
	}
	return text
}
