package terminal

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

// Bounds of the width, in columns.
const (
	defaultWidth = 120
	minWidth     = 40
)

// Options are how a [View] writes. The zero value and nil are for a log.
type Options struct {
	// Color allows colours; see [ColorWanted].
	Color bool
	// Width is how many columns there are; see [Width]. With 0 the model's text is not wrapped, and
	// all that is cut to one line is cut at 120 columns. Less than 40 counts as 40.
	Width int
	// Now is the clock for events that carry no time; nil means time.Now.
	Now func() time.Time
}

// View shows one session. Its methods are safe for concurrent use.
type View struct {
	now   func() time.Time
	ink   ink
	width int // of lines that are cut
	wrap  int // of the model's text; 0 for none

	mu     sync.Mutex
	w      io.Writer
	failed bool         // a write failed: be silent
	buf    bytes.Buffer // what the current event adds
	begun  bool         // something has been written
	gap    bool         // an empty line is due before the next line

	reply   reply
	labels  labels
	turn    tally
	session tally
	turns   int    // that ended
	ended   string // outcome of the last turn; "" while one is open
}

// New returns a View that writes to w.
func New(w io.Writer, o *Options) *View {
	if o == nil {
		o = &Options{}
	}
	v := &View{w: w, ink: ink(o.Color), now: o.Now, width: defaultWidth}
	if v.now == nil {
		v.now = time.Now
	}
	if o.Width > 0 {
		v.width = max(o.Width, minWidth)
		v.wrap = v.width
	}
	return v
}

// Observe shows one event; types that it does not know are passed over.
func (v *View) Observe(e loop.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e.Time.IsZero() {
		e.Time = v.now()
	}
	v.turn.begin(e.Time)
	v.session.begin(e.Time)
	if e.Type != loop.EventTextDelta && e.Type != loop.EventReasoningDelta && e.Type != loop.EventModelReply {
		v.endReply()
	}
	v.show(&e)
	v.flush()
}

func (v *View) show(e *loop.Event) {
	switch e.Type {
	case loop.EventSessionStarted:
		v.sessionStarted(e)
	case loop.EventTurnStarted:
		v.turnStarted(e)
	case loop.EventTextDelta:
		v.textDelta(e)
	case loop.EventReasoningDelta:
		v.reasoningDelta(e)
	case loop.EventModelReply:
		v.modelReply(e)
	case loop.EventToolCall, loop.EventToolQueued, loop.EventToolRunning:
		v.callMoved(e)
	case loop.EventToolResult:
		v.callEnded(e)
	case loop.EventTurnEnded:
		v.turnEnded(e)
	case loop.EventSessionEnded:
		v.sessionEnded(e)
	default:
	}
}

// Notice shows a warning of the command itself. It may come at any time, also in
// the middle of the model's text.
func (v *View) Notice(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.reply.thought.pause()
	v.reply.text.pause()
	text := v.flow(v.ink.paint(yellow, "!")+" ", "  ")
	text.add(fmt.Sprintf(format, args...))
	text.end()
	v.flush()
}

func (v *View) sessionStarted(e *loop.Event) {
	parts := []string{v.ink.paint(bold, "session "+fit(string(e.SessionID), v.width))}
	if e.Model != "" {
		parts = append(parts, "model "+fit(e.Model, v.width))
	}
	parts = append(parts, Plural(len(e.Tools), "tool"))
	if e.Workspace != "" {
		parts = append(parts, "workspace "+fit(e.Workspace, 2*v.width))
	}
	if len(e.Instructions) > 0 {
		parts = append(parts, "follows "+fit(strings.Join(e.Instructions, ", "), v.width))
	}
	v.line(strings.Join(parts, separator))
}

func (v *View) turnStarted(e *loop.Event) {
	v.turn, v.ended = tally{since: e.Time}, ""
	v.labels = labels{}
	for i, line := range excerpt(e.Input, maxInputLines) {
		prefix := "  "
		if i == 0 {
			prefix = v.ink.paint(cyan, "›") + " "
		}
		v.line(prefix + v.ink.paint(bold, fit(line, v.width-2)))
	}
	v.gap = true
}
