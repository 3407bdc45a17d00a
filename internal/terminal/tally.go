package terminal

import (
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// tally is what a turn or a session came to.
type tally struct {
	since        time.Time
	steps, calls int
	usage        protocol.Usage // of its replies
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
