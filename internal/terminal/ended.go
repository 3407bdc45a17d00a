package terminal

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
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

// AddHistory counts what the session did in earlier processes, so that its sum covers the
// session.
func (v *View) AddHistory(events []loop.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range events {
		e := &events[i]
		v.session.before += e.ElapsedMS.Duration()
		switch e.Type {
		case loop.EventSessionForked:
			v.turns, v.session = 0, tally{}
		case loop.EventTurnEnded:
			v.turns++
		case loop.EventModelReply:
			v.session.steps++
		case loop.EventToolResult:
			v.session.result(&loop.Event{Status: e.Status, CallFields: e.CallFields, ResultFields: loop.ResultFields{Content: e.Content}})
		default:
		}
	}
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
	mark, st := v.marks.of(e.Status)
	outcome := Fit(report.StateWords(e.Status), maxName)
	parts := []part{{st, mark + what + outcome}, {plain, Plural(t.steps, "step")}, {plain, t.callsText()}}
	if u := e.Usage; u != nil {
		parts = append(parts, part{plain, fmt.Sprintf("%s (%s in, %s out)", tokens(*u), count(u.InputTokens), count(u.OutputTokens))})
		for _, cost := range v.cost(*u, e.CostUSD) {
			parts = append(parts, part{plain, cost})
		}
	}
	parts = append(parts, part{plain, Duration(e.Time.Sub(t.since) + t.before)})
	if e.TraceID != "" {
		parts = append(parts, part{dim, "trace " + Fit(e.TraceID, maxWorker)})
	}
	v.heading(parts...)
	if e.Error != nil {
		v.say("  ", "  ", plain, string(e.Error.Code)+": "+e.Error.Message)
	}
	switch {
	case !v.deferred:
		v.files(t.files)
	case t != &v.turn:
		v.files(v.settled(t.files))
	case v.arrived:
		v.files(v.merged())
	default:
		v.awaited = true
	}
	v.gap = true
}

// Changed is a file of the workspace that differs from what it was before a turn.
type Changed struct {
	Path          string
	Created, Gone bool
}

// File is what a file of the workspace is now.
type File struct {
	Lines    int       // of a text; -1 is unknown
	Modified time.Time // by the clock of this process; zero is unknown
}

// FileState returns what a file of the workspace is now; there is false if there is none.
type FileState func(path string) (f File, there bool)

// DeferChanges defers the changes of each turn until [View.ShowChanges].
func (v *View) DeferChanges() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.deferred = true
}

// ShowChanges shows what the last turn has changed, by tools and by commands.
func (v *View) ShowChanges(found []Changed, look FileState) {
	v.update(func() {
		v.arrived, v.found, v.look, v.gap = true, found, look, false
		if v.awaited { // else the turn's summary shows it
			v.awaited = false
			v.files(v.merged())
		}
		v.gap = true
	})
}

// merged returns the changes that the turn's tools reported, and other differences found.
func (v *View) merged() []change {
	reported := slices.Clone(v.turn.files)
	var more []change
	for _, f := range v.found {
		i := slices.IndexFunc(reported, func(c change) bool { return c.path == f.Path })
		if i >= 0 {
			reported[i].created = reported[i].created || f.Created
			continue
		}
		c := change{path: f.Path, created: f.Created, gone: f.Gone, uncounted: true}
		more = append(more, c)
		v.session.change(c)
	}
	all := v.settled(reported)
	shown := min(len(more), max(maxFiles-len(all), 0))
	return slices.Concat(all, v.settled(more[:shown]), more[shown:])
}

// settled corrects what tools reported by what the files are now, because commands change them too.
func (v *View) settled(files []change) []change {
	var all []change
	for _, c := range files {
		now, there := v.look(c.path)
		if c.gone = !there; c.gone && c.created && !c.uncounted { // it came and went
			continue
		}
		switch {
		case c.gone:
		case c.created && now.Lines >= 0:
			c.added, c.removed, c.partial, c.uncounted = now.Lines, 0, false, false
		case !c.uncounted && now.Modified.After(c.at):
			c.partial = true
		}
		all = append(all, c)
	}
	return all
}

// files shows which files were written and edited, in columns.
func (p *page) files(all []change) {
	const before = "  changed  "
	shown := all[:min(len(all), maxFiles)]
	room := max(min(p.width/2, p.width-30), minWidth/2)
	paths, added, removed := 0, 0, 0
	for i := range shown {
		paths = max(paths, Columns(Fit(shown[i].path, room)))
		added = max(added, len(plus(&shown[i])))
		removed = max(removed, Columns(p.minus(&shown[i])))
	}
	for i := range shown {
		c := &shown[i]
		prefix := before
		if i > 0 {
			prefix = strings.Repeat(" ", len(before))
		}
		p.line(prefix + Pad(Fit(c.path, room), paths) + "  " +
			p.ink.paint(green, strings.Repeat(" ", added-len(plus(c)))+plus(c)) + " " +
			p.ink.paint(red, Pad(p.minus(c), removed)) + c.remark())
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
	before       time.Duration // what earlier processes took
	steps, calls int
	bill         loop.Bill
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
	if e.Exit != "" {
		status = "exit code not 0"
	}
	if status != string(protocol.StatusOK) {
		if t.notOK == nil {
			t.notOK = make(map[string]int)
		}
		t.notOK[Fit(status, maxName)]++
	}
	for _, c := range changesOf(e.Diff) {
		c.at = e.Time
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
	known.gone, known.at = c.gone, c.at
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
