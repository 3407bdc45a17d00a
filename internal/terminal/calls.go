package terminal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Maximum widths of the sections of a line, in columns.
const (
	maxName   = 24
	maxWorker = 40
	maxWhat   = 200
)

// labels are the names of a step's tool calls, in a column of one width.
type labels struct {
	turn, step, width int
	room              int // of a name
}

// reset begins the column of the step of a reply.
func (l *labels) reset(reply *loop.Event, screen int) {
	*l = labels{turn: reply.Turn, step: reply.Step, room: min(maxName, screen*3/10)}
	for i := range reply.ToolCalls {
		l.width = max(l.width, Columns(l.label(i, reply.ToolCalls[i].Name)))
	}
}

// of returns the label of an event. Of calls whose reply was not seen the column
// grows as they come.
func (l *labels) of(e *loop.Event, screen int) string {
	if l.turn != e.Turn || l.step != e.Step || l.room == 0 {
		*l = labels{turn: e.Turn, step: e.Step, room: min(maxName, screen*3/10)}
	}
	text := l.label(e.Index, e.Name)
	l.width = max(l.width, Columns(text))
	return Pad(text, l.width)
}

func (l *labels) label(index int, name string) string {
	return "[" + strconv.Itoa(l.step) + "." + strconv.Itoa(index+1) + " " + Fit(name, l.room) + "]"
}

// callAt is where a tool call stands in its turn.
type callAt struct{ step, index int }

func atOf(e *loop.Event) callAt { return callAt{e.Step, e.Index} }

// call is a tool call without result.
type call struct {
	id      protocol.CallID // "" while only the reply has it
	at      callAt
	name    string // of its tool
	what    string // one line
	queued  time.Time
	running time.Time // zero while it waits
	attempt int
	waits   string    // what the workers lack that it needs
	lost    time.Time // when its worker was found to be lost; zero while that is there
	output  tail
}

// about is what a call is called in a sentence.
func (c *call) about() string {
	if c.name == "bash" && c.what != "" {
		return c.what
	}
	return strings.TrimSpace(c.name + " " + c.what)
}

// open returns a call that has no result; nil for an unknown call.
func (r *running) open(id protocol.CallID) *call {
	i := slices.IndexFunc(r.calls, func(c *call) bool { return c.id == id })
	if i < 0 {
		return nil
	}
	return r.calls[i]
}

// unsent is the call of an event that only the reply had until now; nil if there is none.
func (r *running) unsent(e *loop.Event) *call {
	i := slices.IndexFunc(r.calls, func(c *call) bool { return c.id == "" && c.at == atOf(e) })
	if i < 0 {
		return nil
	}
	return r.calls[i]
}

// callsAsked shows the calls of a reply, in their order, before any of them is sent: one may wait
// for a person.
func (v *View) callsAsked(reply *loop.Event) {
	v.calls = slices.DeleteFunc(v.calls, func(c *call) bool { return c.id == "" }) // of a reply before
	for i, asked := range reply.ToolCalls {
		e := &loop.Event{Turn: reply.Turn, Step: reply.Step, CallFields: loop.CallFields{Index: i, Name: asked.Name, Arguments: asked.Arguments}}
		if !v.said[atOf(e)] { // else it was sent before the reply was whole
			what := summary(e.Name, e.Arguments)
			v.calls = append(v.calls, &call{at: atOf(e), name: Fit(e.Name, maxName), what: Fit(what, maxWhat), queued: reply.Time})
			v.callAsked(e, what)
		}
	}
}

// callAsked shows what a call is about, once.
func (v *View) callAsked(e *loop.Event, what string) {
	if v.said[atOf(e)] {
		return
	}
	if v.said == nil {
		v.said = map[callAt]bool{}
	}
	v.said[atOf(e)] = true
	if label := v.labels.of(e, v.width); v.live == nil {
		room := max(v.width-Columns(label)-Columns(v.marks.call)-1, minWidth/2)
		v.line(v.ink.paint(bold, label) + " " + v.ink.paint(cyan, strings.TrimRight(v.marks.call, " ")) + " " + Fit(what, room))
	}
}

// callAccepted shows that a call came a step further.
func (v *View) callAccepted(e *loop.Event) {
	label := v.labels.of(e, v.width)
	what := ""
	if e.Type == loop.EventToolCall {
		what = summary(e.Name, e.Arguments)
	}
	c := v.open(e.CallID)
	if c == nil {
		known := v.unsent(e)
		c = v.unknown(e.CallID)
		c.at, c.name, c.what, c.queued = atOf(e), Fit(e.Name, maxName), Fit(what, maxWhat), e.Time
		if known == nil {
			v.calls = append(v.calls, c)
		} else {
			v.calls[slices.Index(v.calls, known)] = c
		}
	}
	switch e.Type {
	case loop.EventToolCall:
		v.callAsked(e, what)
	case loop.EventToolQueued:
		if c.waits != e.Text || e.Text != "" { // an earlier event said that it waits
			v.callWaits(c, e.Text, label)
			return
		}
		c.queued = e.Time
		if v.live == nil {
			v.line(v.ink.paint(dim, label+" "+v.marks.queued+"queued"))
		}
	case loop.EventWorkerLost:
		v.workerLost(c, e, label)
	default:
		if !c.lost.IsZero() && e.Attempt == c.attempt {
			c.lost = time.Time{}
			v.heading(part{yellow, label + " still runs: its worker is back"})
			return
		}
		c.running, c.attempt, c.lost = e.Time, e.Attempt, time.Time{}
		if e.Attempt > 1 { // output of the first one may come before its event
			c.output = tail{}
		}
		v.callRuns(e, label)
	}
}

// callWaits shows what a call waits for that no worker has.
func (p *page) callWaits(c *call, why, label string) {
	if c.waits = why; why != "" {
		p.heading(part{yellow, label + " waits for: " + why})
	}
}

// workerLost shows that the worker of a call is lost, whose start may not have been seen.
func (p *page) workerLost(c *call, e *loop.Event, label string) {
	if c.lost.IsZero() {
		c.lost, c.attempt = e.Time, e.Attempt
	}
	if c.running.IsZero() {
		c.running = e.Time
	}
	p.heading(part{yellow, label + " " + e.Text})
}

// callRuns shows where a call runs. When that is seen anyway, it shows only that it runs again.
func (v *View) callRuns(e *loop.Event, label string) {
	text := label + " " + v.marks.running + "running"
	if e.WorkerID != "" {
		text += " on " + Fit(string(e.WorkerID), maxWorker)
	}
	if e.Attempt > 1 {
		v.heading(part{yellow, fmt.Sprintf("%s, attempt %d", text, e.Attempt)})
	} else if v.live == nil {
		v.heading(part{dim, text})
	}
}

// callEnded shows a result.
func (v *View) callEnded(e *loop.Event) {
	v.turn.result(e)
	v.session.result(e)
	label := v.labels.of(e, v.width)
	what := ""
	if c := v.open(e.CallID); c != nil && v.live != nil {
		what = Fit(c.what, max(v.width-Columns(label)-len(" x "), minWidth/2))
	}
	v.calls = slices.DeleteFunc(v.calls, func(c *call) bool { return c.id == e.CallID || c.id == "" && c.at == atOf(e) })
	state := cmp.Or(e.Exit, e.Status)
	mark, st := v.marks.of(state)
	head := Fit(state, maxName)
	if e.Error != nil {
		head += " (" + Fit(string(e.Error.Code), maxName) + ")"
	}
	v.resultHead(e, label, what, part{st, mark + head})
	v.resultBody(e, v.indent(label))
}

// resultHead shows in a line how a call ended. For a call without an earlier line, it also shows
// what the call is about.
func (v *View) resultHead(e *loop.Event, label, what string, head part) {
	parts := []part{{bold, label}, {plain, " "}}
	mark, outcome, _ := strings.Cut(head.text, " ")
	switch {
	case what == "":
		parts = append(parts, head)
	case head.style == green:
		parts = append(parts, part{green, mark}, part{plain, " " + what})
	default:
		parts = append(parts, part{head.style, mark}, part{plain, " " + what + v.marks.separator}, part{head.style, outcome})
	}
	for _, fact := range v.facts(e) {
		parts = append(parts, part{dim, v.marks.separator + fact})
	}
	v.parts("  ", parts...)
}

// indent is before what a call returned: as much as its label takes, if that leaves room.
func (p *page) indent(label string) string {
	if wide := Columns(label) + 1; wide <= p.width*2/5 && !p.opts.Plain {
		return strings.Repeat(" ", wide)
	}
	return "  "
}

// facts are who ran a call and how long it took, as far as they are known.
func (v *View) facts(e *loop.Event) []string {
	var parts []string
	if e.WorkerID != "" && (v.live == nil || v.opts.Workers || e.Attempt > 1) {
		by := "on " + Fit(string(e.WorkerID), maxWorker)
		if e.Attempt > 0 && (v.live == nil || e.Attempt > 1) {
			by += ", attempt " + strconv.Itoa(e.Attempt)
		}
		parts = append(parts, by)
		if queued := millis(e.QueueMS); queued != "" && v.live == nil {
			parts = append(parts, "queued "+queued)
		}
	}
	if ran := millis(e.RunMS); ran != "" && *e.RunMS > 0 {
		if v.live == nil {
			ran = "ran " + ran
		}
		parts = append(parts, ran)
	}
	return parts
}

// arguments are the arguments of a tool call.
type arguments map[string]json.RawMessage

// maxAbout bounds a call in a sentence, in columns.
const maxAbout = 60

// LaneName is the name of a lane for people. A lane whose calls have left no name is known by its
// hash.
func LaneName(lane protocol.Lane, hash string) string {
	return cmp.Or(string(lane), "(hash "+hash+")")
}

// ToolName is the name of a tool for people. A turn that a coordinator runs is a call, too.
func ToolName(tool string) string {
	if tool == string(wire.KindTurnRun) {
		return "turn"
	}
	return tool
}

// About names a tool call in a few words, which are safe to print.
func About(tool, arguments string) string {
	if name := ToolName(tool); name != tool {
		return name
	}
	return Fit(strings.TrimSpace(tool+" "+firstLine(summary(tool, arguments))), maxAbout)
}

// summary says in one line what a tool call is about. It is not safe yet, and may be long.
// What is not as the tool wants it is shown as the model wrote it.
func summary(tool, written string) string {
	var args arguments
	if json.Unmarshal([]byte(written), &args) != nil || args == nil {
		return strings.TrimSpace(written)
	}
	if text, ok := args.summary(tool); ok {
		return text
	}
	var compact bytes.Buffer
	if len(args) == 0 || json.Compact(&compact, []byte(written)) != nil {
		return ""
	}
	return compact.String()
}

// aliases are tools of other tool sets, by what they are like.
var aliases = map[string]string{ //nolint:gochecknoglobals // a constant
	"edit_file": "edit", "read_file": "read", "read_workspace_file": "read", "run_shell_command": "bash",
	"workspace_path_exists": "exists", "write_file": "write", "write_workspace_file": "write",
}

// Builtin is the built-in tool that a tool of another tool set is like, or else the name itself.
func Builtin(tool string) string { return cmp.Or(aliases[tool], tool) }

func (a arguments) summary(tool string) (string, bool) {
	switch Builtin(tool) {
	case "bash":
		command, ok := a.command()
		return firstLine(command) + a.part(" (in %s)", "cwd"), ok
	case "run_code":
		code, ok := a.text("code")
		language, _ := a.text("language")
		return strings.TrimPrefix(language+": ", ": ") + firstLine(code), ok
	case "read":
		path, ok := a.text("path")
		return path + a.span(), ok
	case "write":
		path, ok := a.text("path")
		content, _ := a.text("content")
		return fmt.Sprintf("%s (%s)", path, Plural(len(lines(content)), "line")), ok
	case "multi_edit":
		path, ok := a.text("path")
		edits, all := a.edits()
		return fmt.Sprintf("%s (%s)", path, Plural(len(edits), "edit")), ok && all
	case "json_write":
		path, ok := a.text("path")
		return path + a.part(" at %s", "query"), ok
	case "edit", "exists":
		return a.text("path")
	case "list":
		return a.where(), true
	case "grep":
		pattern, ok := a.text("pattern")
		return `"` + pattern + `" in ` + a.where() + a.part(" (%s)", "glob"), ok
	default:
		return "", false
	}
}

// text returns an argument that is a string.
func (a arguments) text(name string) (string, bool) {
	var s *string
	if json.Unmarshal(a[name], &s) != nil || s == nil {
		return "", false
	}
	return *s, true
}

// command is a command line, or a program with its arguments as a command line.
func (a arguments) command() (string, bool) {
	if command, ok := a.text("command"); ok {
		return command, true
	}
	command, ok := a.text("cmd")
	var args []string
	if _, more := a["args"]; !more {
		return command, ok
	}
	if json.Unmarshal(a["args"], &args) != nil {
		return "", false
	}
	words := []string{quoted(command)}
	for _, arg := range args {
		words = append(words, quoted(arg))
	}
	return strings.Join(words, " "), ok
}

// quoted is a word as a person writes it for a shell.
func quoted(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("%+,-./:=@_", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// edits returns the edits of an argument that has several.
func (a arguments) edits() (edits []arguments, ok bool) {
	return edits, json.Unmarshal(a["edits"], &edits) == nil
}

// part formats an argument that says something; "" when it does not.
func (a arguments) part(format, name string) string {
	if s, _ := a.text(name); s != "" && s != "." {
		return fmt.Sprintf(format, s)
	}
	return ""
}

// where is the path of tools that look into the whole workspace without one.
func (a arguments) where() string {
	if path, _ := a.text("path"); path != "" {
		return path
	}
	return "."
}

// span says which lines are read, if not all.
func (a arguments) span() string {
	var offset, limit int
	_ = json.Unmarshal(a["offset"], &offset) // wrong ones are refused by the tool, which shows in the result
	_ = json.Unmarshal(a["limit"], &limit)
	switch {
	case offset > 0 && limit > 0:
		return fmt.Sprintf(", lines %d-%d", offset, offset+limit-1)
	case offset > 0:
		return fmt.Sprintf(", from line %d", offset)
	case limit > 0:
		return ", " + Plural(limit, "line")
	default:
		return ""
	}
}

// firstLine returns the first line of a text that has something on it, and how many follow.
func firstLine(s string) string {
	s = strings.TrimSpace(s)
	first, rest, more := strings.Cut(s, "\n")
	if !more {
		return first
	}
	return fmt.Sprintf("%s (+%s)", strings.TrimRight(first, "\r"), Plural(strings.Count(rest, "\n")+1, "line"))
}
