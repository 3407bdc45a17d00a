package terminal

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of what is shown live.
const (
	maxLive      = 14 // lines
	maxLiveCalls = 4
	maxLiveText  = 8       // lines of the model's text
	maxSaidLive  = 4 << 10 // bytes of it
	frameTime    = 120 * time.Millisecond
)

// region is the lines at the end of the screen that are written again and again. It computes where
// they begin from the text that it wrote last and the current width, because terminals wrap lines
// when they get narrower.
type region struct {
	shown []string // painted
	stop  chan struct{}
	done  chan struct{}
	over  bool
}

func newRegion() *region {
	return &region{stop: make(chan struct{}), done: make(chan struct{})}
}

// end stops the animation; more than once is fine.
func (r *region) end() {
	if !r.over {
		r.over = true
		close(r.stop)
		<-r.done
	}
}

// around returns what puts text before the region, whose lines become those given. It is empty
// when nothing changes.
func (r *region) around(text []byte, lines []string, columns int) []byte {
	if len(text) == 0 && slices.Equal(lines, r.shown) {
		return nil
	}
	var out bytes.Buffer
	rows := 0
	for _, line := range r.shown {
		rows += max(1, (paintedColumns(line)+columns-1)/columns)
	}
	if rows > 0 {
		out.WriteByte('\r')
		if rows > 1 {
			fmt.Fprintf(&out, "\x1b[%dA", rows-1)
		}
		out.WriteString("\x1b[J")
	}
	out.Write(text)
	out.WriteString(strings.Join(lines, "\n"))
	r.shown = lines
	return out.Bytes()
}

// paintedColumns is the width of a line with styles.
func paintedColumns(s string) int { return Columns(sequence.ReplaceAllString(s, "")) }

// animate writes the region again and again until it ends.
func (v *View) animate() {
	defer close(v.live.done)
	ticker := time.NewTicker(frameTime)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			v.update(func() {})
		case <-v.live.stop:
			return
		}
	}
}

// activity is what is waited for when no call is.
type activity struct {
	what  string // "" for nothing
	since time.Time
}

// onModelRequest notes that a request was sent to the model.
func (r *running) onModelRequest(at time.Time) { r.activity = activity{"thinking", at} }

// clearActivity notes that nothing runs.
func (r *running) clearActivity() { r.activity, r.calls = activity{}, nil }

// Waits shows what is waited for until the next event, as "waiting for a coordinator".
func (v *View) Waits(what string) { v.update(func() { v.activity = activity{what, v.now()} }) }

// Output shows a piece of a running call's output. It comes from the worker, the events of the call
// from the coordinator: so it may come late, never, or before the first event.
func (v *View) Output(id protocol.CallID, piece []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.open(id)
	if c == nil {
		c = v.unknown(id)
		v.early = append(v.early[max(0, len(v.early)-maxLiveCalls+1):], c) // the oldest of many is forgotten
	}
	if c.running.IsZero() { // it started before the view was opened
		c.running = v.now()
	}
	c.output.add(string(piece))
}

// unknown removes a call without an event so far, and returns it with its output.
func (r *running) unknown(id protocol.CallID) *call {
	i := slices.IndexFunc(r.early, func(c *call) bool { return c.id == id })
	if i < 0 {
		return &call{id: id}
	}
	c := r.early[i]
	r.early = slices.Delete(r.early, i, i+1)
	return c
}

// Waiting describes a call that has not begun: what it is about, and which call of its session it
// waits for, "" for none. about is "" for a call that has begun, or is not known.
func (v *View) Waiting(id protocol.CallID) (about, behind string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.open(id)
	if c == nil || !c.running.IsZero() {
		return "", ""
	}
	return c.about(), v.behind(v.now())
}

// behind is what runs of the session, and for how long.
func (r *running) behind(now time.Time) string {
	for _, c := range r.calls {
		if !c.running.IsZero() {
			return Fit(c.about(), maxName) + ", " + elapsed(now.Sub(c.running))
		}
	}
	return ""
}

// typing is a line that is being typed while something runs.
type typing struct {
	line string
	pos  int // of the cursor, in bytes
}

// Typing shows a line that is being typed below what runs, with the cursor in it, until
// [View.TypingEnds]. It is for views that are [Options].Live.
func (v *View) Typing(line string, pos int) { v.update(func() { v.typing = &typing{line, pos} }) }

// TypingEnds removes the line.
func (v *View) TypingEnds() { v.update(func() { v.typing = nil }) }

// Entered shows a line that was typed while something runs.
func (v *View) Entered(line string) {
	v.update(func() {
		v.reply.pause()
		v.line(v.userMark() + v.ink.paint(bold, Fit(line, max(v.width-Columns(v.marks.user), minWidth/2))))
		v.typing = &typing{}
	})
}

// userMark stands before what the user says.
func (p *page) userMark() string {
	return p.ink.paint(cyan, strings.TrimRight(p.marks.user, " ")) + " "
}

// typedNow is the line of the region that is being typed: as much of it as fits, with the cursor.
func (v *View) typedNow() string {
	before, after := strings.ReplaceAll(prose.Visible(v.typing.line[:v.typing.pos]), "\t", " "), v.typing.line[v.typing.pos:]
	room := max(v.width-Columns(v.marks.user)-1, minWidth/2)
	for Columns(before) > room {
		_, size := utf8.DecodeRuneInString(before)
		before = before[size:]
	}
	after = Fit(after, room-Columns(before))
	line := v.userMark() + before + after
	if n := Columns(after); n > 0 {
		line += fmt.Sprintf("\x1b[%dD", n)
	}
	return line
}

// status is the lines of the region.
func (v *View) status() []string {
	lines := v.runsNow()
	if v.typing != nil {
		lines = append(lines, v.typedNow())
	}
	return lines
}

// runsNow is what runs.
func (v *View) runsNow() []string {
	if len(v.calls) == 0 && v.activity.what == "" {
		return nil
	}
	now := v.now()
	most := max(2, min(maxLive, v.rows-3))
	var lines []string
	if len(v.calls) > 0 {
		lines = v.callsNow(now, most-1)
	} else {
		lines = v.textNow(min(maxLiveText, most-1))
	}
	return append(lines, v.progressNow(now))
}

// progressNow is the last line: the reason for waiting, and the usage so far.
func (v *View) progressNow(now time.Time) string {
	text := "  turn " + elapsed(now.Sub(v.turn.since))
	if len(v.calls) == 0 {
		what := v.activity.what
		if v.reply.said.Len() > 0 {
			what = "replying"
		}
		text = spinner(now) + " " + what + v.marks.separator + elapsed(now.Sub(v.activity.since))
	}
	for _, spent := range v.spent(&v.turn) {
		text += v.marks.separator + spent
	}
	return v.ink.paint(dim, Fit(text, v.width-1))
}

// spent is the tokens of a turn, and what they cost if that is known.
func (p *page) spent(t *tally) []string {
	var parts []string
	if t.bill.Usage.Total() > 0 {
		parts = append(parts, tokens(t.bill.Usage))
	}
	return append(parts, p.cost(t.bill.Usage, t.bill.CostUSD)...)
}

// tokens says how many tokens a usage has.
func tokens(u protocol.Usage) string {
	if u.Estimated {
		return "about " + count(u.Total()) + " tokens"
	}
	return count(u.Total()) + " tokens"
}

// cost is what tokens cost: as the session counts it, else by the price of the options.
func (p *page) cost(u protocol.Usage, known *float64) []string {
	if u.Total() <= 0 || p.opts.Cost == nil && known == nil {
		return nil
	}
	var dollars float64
	if p.opts.Cost != nil {
		dollars = p.opts.Cost(u)
	}
	if known != nil { // with the tokens of other models
		dollars = *known
	}
	if dollars < 1 {
		return []string{fmt.Sprintf("$%.4f", dollars)}
	}
	return []string{fmt.Sprintf("$%.2f", dollars)}
}

// callsNow is the open calls, with the end of what they write.
func (v *View) callsNow(now time.Time, most int) []string {
	shown := v.calls[:min(len(v.calls), maxLiveCalls, most)]
	output := min(maxTail, (most-len(shown))/max(1, len(shown)))
	var lines []string
	for _, c := range shown {
		mark, st, how := spinner(now), cyan, elapsed(now.Sub(c.running))
		if c.running.IsZero() {
			mark, st = "·", dim
			how = "waiting for a worker, " + elapsed(now.Sub(c.queued))
			if c.waits != "" {
				how = "no worker can run it, " + elapsed(now.Sub(c.queued))
			}
			if c.id == "" {
				how = "not sent yet, " + elapsed(now.Sub(c.queued))
			} else if behind := v.behind(now); behind != "" {
				how = "behind: " + behind
			}
		}
		if !c.lost.IsZero() {
			how = "its worker is lost, " + elapsed(now.Sub(c.lost))
		}
		room := max(v.width-Columns(how)-len(" ·  ·  "), minWidth/4)
		lines = append(lines, v.ink.paint(st, mark)+" "+Fit(c.about(), room)+v.ink.paint(dim, v.marks.separator+Fit(how, v.width*2/3)))
		for _, line := range c.output.lastLines(output) {
			lines = append(lines, v.ink.paint(dim, "  "+v.marks.bar+Fit(line, max(v.width-len("   │ "), minWidth/4))))
		}
	}
	if more := len(v.calls) - len(shown); more > 0 && len(lines) < most {
		lines = append(lines, v.ink.paint(dim, "  … "+Plural(more, "more call")))
	}
	return lines[:min(len(lines), most)]
}

// textNow is the end of what the model says.
func (v *View) textNow(most int) []string {
	said, mark, st := v.reply.said.String(), v.marks.model, plain
	if said == "" {
		said, mark, st = v.reply.thoughts.String(), v.marks.thought, dim
	}
	if over := len(said) - maxSaidLive; over > 0 {
		said = said[over:]
		said = said[prose.Start(said):]
	}
	var out bytes.Buffer
	text := &flow{out: &out, start: func() {}, margin: margin{first: mark, indent: "  ", limit: max(v.width-len("   "), minWidth/2)}}
	text.add(said)
	text.end()
	all := lines(out.String())
	all = all[max(0, len(all)-most):]
	for i := range all {
		all[i] = v.ink.paint(st, all[i])
	}
	return all
}

// spinner is one frame of the sign that something runs.
func spinner(now time.Time) string {
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	return string(frames[int(now.UnixMilli()/frameTime.Milliseconds())%len(frames)])
}

// elapsed is the time since a start, in whole seconds.
func elapsed(d time.Duration) string {
	d = max(d, 0).Truncate(time.Second)
	if d < time.Minute {
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return Duration(d)
}

// advance updates what is waited for.
func (v *View) advance(e *loop.Event) {
	switch e.Type {
	case loop.EventTurnStarted:
		v.onModelRequest(e.Time)
	case loop.EventModelReply, loop.EventTurnEnded, loop.EventSessionEnded:
		v.clearActivity()
	case loop.EventToolResult:
		if len(v.calls) == 0 {
			v.onModelRequest(e.Time)
		}
	default:
	}
}

// Bounds of what is kept of a running command's output.
const (
	maxTail    = 5    // lines
	maxPartial = 4096 // bytes of one line
)

// sequence matches an escape sequence: commands that know of a terminal write colours.
var sequence = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\^_])")

// tail is the last lines of an output that comes in pieces.
type tail struct {
	lines   []string
	partial string // of the line that is being written
}

// add takes the next piece.
func (t *tail) add(piece string) {
	all := strings.Split(t.partial+piece, "\n")
	t.partial = all[len(all)-1]
	if over := len(t.partial) - maxPartial; over > 0 {
		t.partial = t.partial[over:]
	}
	t.lines = append(t.lines, all[:len(all)-1]...)
	t.lines = slices.Clone(t.lines[max(0, len(t.lines)-maxTail):])
}

// lastLines returns at most n lines, as a terminal would show them.
func (t *tail) lastLines(n int) []string {
	all := t.lines
	if t.partial != "" {
		all = append(slices.Clone(all), t.partial)
	}
	var shown []string
	for _, line := range all {
		line = strings.TrimRight(sequence.ReplaceAllString(line, ""), "\r ")
		shown = append(shown, line[strings.LastIndexByte(line, '\r')+1:]) // a line that is written again and again
	}
	return shown[max(0, len(shown)-n):]
}
