// Package terminal shows people a session while it runs: line by line, only ever
// adding to what stands there already, so that it reads the same on a screen, in
// a pipe and in the log of a build.
//
//	› Make the tests pass.                          what the user said
//
//	● I run the tests first.                        what the model says, as it comes
//	[1.1 bash] › go test ./...                      a tool call: step 1, its first call
//	[1.2 grep] › "Count" in .
//	[1.1 bash] ▸ running on w1
//	[1.2 grep] ✓ ok · on w1, attempt 1 · ran 3 ms   calls run side by side; each line
//	           │ stats.go:7:func Count() int        says whose it is
//	[1.1 bash] ✓ ok · on w1, attempt 1 · ran 1.2 s
//	           │ FAIL
//
// A [View] gets everything as [loop.Event] values and keeps only what its next
// line and its summary need. It is for reading only: the journal is
// the truth, and `--json` is for programs.
//
// # What is shown is never trusted
//
// Models, tools and the files they read may contain anything. Whatever comes from
// them is made visible before it is written: escape sequences and other control
// characters, marks that turn the direction of text, and what is not UTF-8. Only
// the view itself writes in the first column; the model's text is indented, and
// what a tool returned stands behind a bar. So neither can draw lines that look
// like the view's.
//
// # What happens on failure
//
// Nothing: a session does not fail because its view does. After the first
// write that fails, the view is silent.
package terminal

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// Bounds of the width, in columns.
const (
	defaultWidth = 120
	minWidth     = 20
)

// Options are how a [View] writes. The zero value and nil are for a log.
type Options struct {
	// Color allows colours; see [ColorWanted].
	Color bool
	// Width is how many columns there are; see [Width]. With 0 the model's text is not wrapped, and
	// all that is cut to one line is cut at 120 columns. Less than 20 counts as 20.
	Width int
	// Size returns the columns and rows before each write; it wins
	// over Width. nil is for what keeps its width.
	Size func() (columns, rows int)
	// Live shows at the end, in lines that are written again and again, what runs at the moment,
	// and the model's Markdown as it is meant. It needs a Size, and a Close.
	Live bool
	// Plain is for screen readers: words instead of marks and colours, and every line is written
	// once. It wins over Color and Live.
	Plain bool
	// Workers says, when Live, which worker ran a call.
	Workers bool
	// Cost is what tokens cost, in dollars; nil when that is not known.
	Cost func(protocol.Usage) float64
	// Now is the clock for events that carry no time; nil means time.Now.
	Now func() time.Time
}

// View shows one session. Its methods are safe for concurrent use.
type View struct {
	now func() time.Time

	mu sync.Mutex // guards what follows
	page
	reply  reply
	above  above
	labels labels
	running
	totals
	changes
	live   *region
	typing *typing // nil while nothing is typed below what runs
}

// running is what runs.
type running struct {
	calls    []*call         // without a result, in their order
	said     map[callAt]bool // the calls of the turn that were shown
	early    []*call         // that have written something before their event came
	activity activity
}

// totals counts what has been done.
type totals struct {
	turn    tally
	session tally
	turns   int    // that ended
	ended   string // outcome of the last turn; "" while one is open
}

// changes is what the last turn has changed in the workspace.
type changes struct {
	deferred bool // changes are shown by [View.ShowChanges]
	awaited  bool // the turn has ended, and its changes have not arrived
	arrived  bool // they have
	found    []Changed
	look     FileState
}

// New returns a View that writes to w.
func New(w io.Writer, o *Options) *View {
	if o == nil {
		o = &Options{}
	}
	v := &View{page: page{opts: *o, w: w, ink: ink(o.Color && !o.Plain), marks: visualMarks()}, now: o.Now}
	if v.now == nil {
		v.now = time.Now
	}
	v.look = func(string) (File, bool) { return File{Lines: -1}, true }
	if o.Plain {
		v.marks = screenReaderMarks()
	}
	v.measure()
	if o.Live && !o.Plain && o.Size != nil {
		v.live = newRegion()
		go v.animate()
	}
	return v
}

// Close removes what is shown only while something runs. Nothing more is shown live.
func (v *View) Close() {
	if v.live != nil {
		v.live.end()
		v.mu.Lock()
		defer v.mu.Unlock()
		v.endReply()
		v.clearActivity()
		v.flush()
	}
}

// measure takes the size that the screen has now.
func (p *page) measure() {
	columns := p.opts.Width
	if p.opts.Size != nil {
		columns, p.rows = p.opts.Size()
	}
	p.width, p.wrap = defaultWidth, 0
	if columns > 0 {
		p.width = max(columns, minWidth)
		p.wrap = p.width
	}
}

// update changes the view, and writes what that adds.
func (v *View) update(change func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.measure()
	change()
	v.flush()
}

// Observe shows one event; types that it does not know are passed over.
func (v *View) Observe(e loop.Event) { v.update(func() { v.observe(&e) }) }

func (v *View) observe(e *loop.Event) {
	if e.Time.IsZero() {
		e.Time = v.now()
	}
	v.turn.begin(e.Time)
	v.session.begin(e.Time)
	v.above.note(e, &v.reply)
	if e.Type != loop.EventTextDelta && e.Type != loop.EventReasoningDelta && e.Type != loop.EventModelReply {
		v.endReply()
	}
	v.show(e)
	v.turn.bill.Add(e)
	v.advance(e)
}

func (v *View) show(e *loop.Event) {
	switch e.Type {
	case loop.EventSessionStarted:
		v.sessionStarted(e)
	case loop.EventTurnStarted:
		v.turnStarted(e)
	case loop.EventInputAdded:
		v.inputAdded(e)
	case loop.EventTextDelta:
		v.textDelta(e)
	case loop.EventReasoningDelta:
		v.reasoningDelta(e)
	case loop.EventModelReply:
		v.modelReply(e)
	case loop.EventNativeCall:
		v.nativeCalled(e)
	case loop.EventToolCall, loop.EventToolQueued, loop.EventToolRunning, loop.EventWorkerLost:
		v.callAccepted(e)
	case loop.EventAgentMoved:
		if text := strings.Join(strings.Fields(e.Text), " "); text != "" {
			label := v.labels.of(e, v.width)
			v.line(v.ink.paint(dim, label+" "+Fit(text, max(v.width-Columns(label)-2, minWidth/2))))
		}
	case loop.EventToolResult:
		v.callEnded(e)
	case loop.EventPolicyDecision:
		v.decided(e)
	case loop.EventAnswered:
		v.answered(e)
	case loop.EventModelWaits:
		v.remark(e.Text)
	case loop.EventRewound:
		v.line(v.ink.paint(yellow, "  ("+rewound(e.KeptTurn)+")"))
	case loop.EventCompacted:
		v.line(v.ink.paint(yellow, "  (a summary replaces the older replies)"))
	case loop.EventBudgetLow, loop.EventBudgetSpent, loop.EventSessionMerged, loop.EventRevertEnded, loop.EventCallResolved, loop.EventTurnPostponed:
		v.line(v.ink.paint(yellow, "  ("+strings.Trim(e.Text, "[].")+")"))
	case loop.EventAnswerRefused:
		v.line(v.ink.paint(yellow, "  (the answer is not valid under the schema, so the model is asked again)"))
	case loop.EventTurnEnded:
		v.turnEnded(e)
	case loop.EventSessionEnded:
		v.sessionEnded(e)
	default:
	}
}

// nativeCalled shows a call that the model's provider ran: what the model asked, and how much came.
func (v *View) nativeCalled(e *loop.Event) {
	said := e.Name + " (by the provider)"
	if asked := strings.Join(strings.Fields(e.Text), " "); asked != "" {
		said += ": " + asked
	}
	v.reply.pause()
	v.line(v.ink.paint(dim, "  "+Fit(said, max(v.width-2, minWidth/2))))
	for i, line := range strings.Split(strings.TrimSpace(e.Content), "\n") {
		if i == nativeLines {
			v.line(v.ink.paint(dim, "    ..."))
			break
		}
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			v.line(v.ink.paint(dim, "    "+Fit(line, max(v.width-4, minWidth/2))))
		}
	}
}

// nativeLines bounds how many lines are shown of what a provider's tool returned.
const nativeLines = 5

// decided shows what a person, or the time for an answer, has decided about a call. What a rule
// denies is in the call's result.
func (v *View) decided(e *loop.Event) {
	if e.Status == string(policy.Denied) {
		return
	}
	said := e.Name + ": " + e.Status
	if e.By != "" {
		said += " by " + e.By
	}
	if e.Note != "" {
		said += ", who said: " + e.Note
	}
	v.remark(said)
}

// answered shows what came of a question of a running call.
func (v *View) answered(e *loop.Event) {
	said := e.Name + ": " + map[string]string{
		string(protocol.ActionAccept): "answered", string(protocol.ActionDecline): "answer refused",
	}[e.Status]
	switch {
	case e.Status == string(protocol.ActionCancel):
		said += "nobody answered"
	case e.By != "":
		said += " by " + e.By
	}
	v.remark(said)
}

// remark shows what became of a question to a person, or of one to a model.
func (v *View) remark(said string) {
	v.reply.pause()
	v.say(v.ink.paint(yellow, "?")+" ", "  ", plain, said)
}

// Notice shows a warning of the command itself. It may come at any time, also in
// the middle of the model's text.
func (v *View) Notice(format string, args ...any) {
	v.notice(v.ink.paint(yellow, "!")+" ", plain, fmt.Sprintf(format, args...))
}

// Alert is a Notice that is highlighted as a whole.
func (v *View) Alert(text string) { v.notice(v.ink.paint(alert, v.marks.alert)+" ", alert, text) }

func (v *View) notice(first string, st style, said string) {
	v.update(func() {
		v.reply.pause()
		v.say(first, "  ", st, said)
	})
}

// SetWriter has all be written to w from now on.
func (v *View) SetWriter(w io.Writer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.w = w
}

// Write shows lines of a log, each of them whole: it implements [io.Writer] for loggers. What is
// no screen gets them as they are.
func (v *View) Write(p []byte) (int, error) {
	v.update(func() {
		v.reply.pause()
		v.space()
		if v.wrap > 0 {
			v.buf.WriteString(prose.Visible(string(p)))
		} else {
			v.buf.Write(p)
		}
	})
	return len(p), nil
}

func (p *page) sessionStarted(e *loop.Event) {
	parts := []part{{dim, "session " + Fit(string(e.SessionID), p.width)}}
	if e.Model != "" {
		parts = append(parts, part{dim, "model " + Fit(e.Model, p.width)})
	}
	parts = append(parts, part{dim, Plural(len(e.Tools), "tool")})
	if e.Workspace != "" {
		parts = append(parts, part{dim, "workspace " + Fit(e.Workspace, 4*p.width)})
	}
	if len(e.Instructions) > 0 {
		parts = append(parts, part{dim, "follows " + Fit(strings.Join(e.Instructions, ", "), 2*p.width)})
	}
	p.heading(parts...)
	p.gap = true
}

// rewound says how far a conversation goes back.
func rewound(turn int) string {
	if turn == 0 {
		return "the conversation begins again"
	}
	return fmt.Sprintf("the conversation goes back to the end of turn %d", turn)
}

// inputAdded shows what a person says, unless the terminal shows it already.
func (v *View) inputAdded(e *loop.Event) {
	input := excerpt(e.Input, maxInputLines)
	if v.typed {
		v.typed, input = false, nil
	}
	for i, line := range input {
		prefix := "  "
		if i == 0 {
			prefix = v.userMark()
		}
		v.line(prefix + v.ink.paint(bold, Fit(line, max(v.width-Columns(v.marks.user), minWidth/2))))
	}
}

// Typed says that the next input was typed on this terminal, which shows it already.
func (v *View) Typed() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.typed = true
}

func (v *View) turnStarted(e *loop.Event) {
	v.turn, v.ended, v.awaited, v.arrived = tally{since: e.Time}, "", false, false
	v.labels, v.calls, v.said = labels{}, nil, nil
	v.inputAdded(e)
	for i := range e.Attachments {
		v.line("  " + v.ink.paint(dim, Fit("attached "+e.Attachments[i].Name, max(v.width-Columns(v.marks.user), minWidth/2))))
	}
	v.gap = true
}
