package terminal

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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
		for _, cost := range v.cost(*u, e.CostUSD) {
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
	switch {
	case t != &v.turn || !v.holds:
		v.files(t.files)
	case v.back:
		v.files(v.merged())
	default:
		v.waits = true
	}
	v.gap = true
}

// Changed is a file of the workspace that differs from what it was before a turn.
type Changed struct {
	Path          string
	Created, Gone bool
}

// Hold defers the changes of each turn until [View.CameBack].
func (v *View) Hold() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.holds = true
}

// CameBack shows what the last turn has changed, by tools and by commands. Numbers of lines are
// known of what tools said; there reports whether a file exists now.
func (v *View) CameBack(found []Changed, there func(path string) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.measure()
	v.back, v.found, v.there, v.gap = true, found, there, false
	if v.waits { // else the turn's summary shows it
		v.waits = false
		v.files(v.merged())
	}
	v.gap = true
	v.flush()
}

// merged returns the changes that the turn's tools reported, and other differences found.
func (v *View) merged() []change {
	var all []change
	for _, c := range v.turn.files {
		gone := !v.there(c.path)
		if gone && c.created { // it came and went
			continue
		}
		c.gone = gone
		all = append(all, c)
	}
	for _, f := range v.found {
		if !slices.ContainsFunc(v.turn.files, func(c change) bool { return c.path == f.Path }) {
			c := change{path: f.Path, created: f.Created, gone: f.Gone, uncounted: true}
			all = append(all, c)
			v.session.change(c)
		}
	}
	return all
}

func (p *page) outcomeMark(outcome loop.Outcome) (string, style) {
	switch outcome {
	case loop.OutcomeAnswered:
		return p.marks.ok, green
	case loop.OutcomeFailed:
		return p.marks.failed, red
	default:
		return p.marks.stopped, yellow
	}
}

// files shows which files were written and edited, in columns.
func (p *page) files(all []change) {
	const before = "  changed  "
	shown := all[:min(len(all), maxFiles)]
	room := max(min(p.width/2, p.width-30), minWidth/2)
	paths, added, removed := 0, 0, 0
	for i := range shown {
		paths = max(paths, columns(fit(shown[i].path, room)))
		added = max(added, len(plus(&shown[i])))
		removed = max(removed, columns(p.minus(&shown[i])))
	}
	for i := range shown {
		c := &shown[i]
		prefix := before
		if i > 0 {
			prefix = strings.Repeat(" ", len(before))
		}
		p.line(prefix + pad(fit(c.path, room), paths) + "  " +
			p.ink.paint(green, strings.Repeat(" ", added-len(plus(c)))+plus(c)) + " " +
			p.ink.paint(red, pad(p.minus(c), removed)) + c.remark())
	}
	if more := len(all) - len(shown); more > 0 {
		p.line(strings.Repeat(" ", len(before)) + "… " + Plural(more, "more file"))
	}
}

func plus(c *change) string {
	if c.uncounted {
		return ""
	}
	return "+" + count(c.added)
}

func (p *page) minus(c *change) string {
	if c.uncounted {
		return ""
	}
	return p.marks.minus + count(c.removed)
}

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

// tally is what a turn or a session came to.
type tally struct {
	since        time.Time
	steps, calls int
	usage        protocol.Usage // of its replies
	cost         *float64       // of its replies; nil when the price of one is unknown
	notOK        map[string]int // calls by their status; one of a dozen
	files        []change       // in the order of their first change
}

func (t *tally) begin(at time.Time) {
	if t.since.IsZero() {
		t.since = at
	}
}

func (t *tally) result(e *loop.Event) {
	t.calls++
	status := e.Status
	if exitOf(e) != "" {
		status = "exit code not 0"
	}
	if status != string(protocol.StatusOK) {
		if t.notOK == nil {
			t.notOK = make(map[string]int)
		}
		t.notOK[fit(status, maxName)]++
	}
	for _, c := range changesOf(e.Diff) {
		t.change(c)
	}
}

func (t *tally) change(c change) {
	i := slices.IndexFunc(t.files, func(known change) bool { return known.path == c.path })
	if i < 0 {
		t.files = append(t.files, c)
		return
	}
	known := &t.files[i]
	known.added += c.added
	known.removed += c.removed
	known.gone = c.gone
	known.partial = known.partial || c.partial
	known.uncounted = known.uncounted && c.uncounted
	if known.created { // all of its lines are new, whichever they were at first
		known.added, known.removed = max(0, known.added-known.removed), 0
	}
}

// callsText is "6 tool calls (1 failed, 1 timeout)".
func (t *tally) callsText() string {
	text := Plural(t.calls, "tool call")
	if len(t.notOK) == 0 {
		return text
	}
	parts := make([]string, 0, len(t.notOK))
	for status, n := range t.notOK {
		parts = append(parts, count(n)+" "+strings.ReplaceAll(status, "_", " "))
	}
	slices.Sort(parts)
	return text + " (" + strings.Join(parts, ", ") + ")"
}
