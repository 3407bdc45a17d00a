package terminal

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// IsTerminal reports whether f is a terminal; nil is none.
func IsTerminal(f *os.File) bool { return f != nil && term.IsTerminal(descriptor(f)) }

// Writer returns what commands print to for people: f itself, unless it is a terminal, where all
// that others wrote is made visible as by [prose.Visible].
func Writer(f *os.File) io.Writer { return writerTo(f, shown) }

// JSONWriter is [Writer] for JSON: on a terminal, characters that act on it are written as \u
// escapes, which changes no value.
func JSONWriter(f *os.File) io.Writer { return writerTo(f, escaped) }

func writerTo(f *os.File, form func(rune) string) io.Writer {
	if !IsTerminal(f) {
		return f
	}
	return &safeWriter{w: f, form: form}
}

// shown is a character of a text of several lines.
func shown(r rune) string {
	if r == '\n' || r == '\t' {
		return string(r)
	}
	return prose.VisibleRune(r)
}

// escaped is a character of JSON: only strings have any that are not shown as they are.
func escaped(r rune) string {
	if r == '\n' || r == '\t' || prose.VisibleRune(r) == string(r) {
		return string(r)
	}
	if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// safeWriter passes on each character in another form.
type safeWriter struct {
	w    io.Writer
	form func(rune) string
	hold []byte // the beginning of a character whose rest is to come
}

// Write implements [io.Writer].
func (s *safeWriter) Write(p []byte) (int, error) {
	rest := slices.Concat(s.hold, p)
	s.hold = nil
	var b strings.Builder
	for len(rest) > 0 {
		if !utf8.FullRune(rest) {
			s.hold = rest
			break
		}
		r, size := utf8.DecodeRune(rest)
		b.WriteString(s.form(r))
		rest = rest[size:]
	}
	if _, err := io.WriteString(s.w, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// style is the parameter of an SGR escape sequence.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	italic style = "3"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
	alert  style = "1;33"
)

// ink is whether there are colours.
type ink bool

// paint returns s in a style. What s contains must be safe already.
func (i ink) paint(st style, s string) string {
	if !i || st == plain || s == "" {
		return s
	}
	return "\x1b[" + string(st) + "m" + s + "\x1b[0m"
}

// part is a piece of a line in one style.
type part struct {
	style style
	text  string
}

// page writes lines, as wide as the screen.
type page struct {
	opts  Options
	ink   ink
	marks *marks

	w      io.Writer
	failed bool         // a write failed: be silent
	buf    bytes.Buffer // what the current event adds
	begun  bool         // something has been written
	gap    bool         // an empty line is due before the next line
	typed  bool         // the terminal shows the input of the next turn
	asking bool         // a question is open: nothing is written below it
	size
}

// size is the size of the screen.
type size struct {
	width int // of lines that are cut
	wrap  int // of the model's text; 0 for none
	rows  int // 0 when there is no screen
}

// heading adds a line of parts, with separators between them. A part that does not fit begins
// another line, as a whole.
func (p *page) heading(all ...part) {
	var parts []part
	used := 0
	for i, next := range all {
		if i > 0 {
			between := part{dim, p.marks.separator}
			if used += Columns(between.text); p.wrap > 0 && used+Columns(next.text) > p.wrap {
				between, used = part{plain, "\n"}, Columns("  ")
			}
			parts = append(parts, between)
		}
		used += Columns(next.text)
		parts = append(parts, next)
	}
	p.parts("  ", parts...)
}

// parts adds a line, which is wrapped on a screen. What its parts contain must be bounded.
func (p *page) parts(indent string, all ...part) {
	text := p.flow("", indent)
	for _, next := range all {
		text.restyle(next.style)
		text.add(next.text)
	}
	text.end()
}

// line adds a line of the view itself. Its parts must be safe already.
func (p *page) line(s string) {
	p.space()
	p.buf.WriteString(strings.TrimRight(s, " "))
	p.buf.WriteByte('\n')
}

// space adds the empty line that is due.
func (p *page) space() {
	if p.gap && p.begun {
		p.buf.WriteByte('\n')
	}
	p.gap, p.begun = false, true
}

// flow returns a text of any length whose first line begins with first, and all
// others with indent.
func (p *page) flow(first, indent string) *flow {
	f := &flow{out: &p.buf, start: p.space, ink: p.ink, margin: margin{first: first, indent: indent, lead: max(0, paintedColumns(first)-paintedColumns(indent))}}
	if p.wrap > 0 {
		f.limit = max(p.wrap-paintedColumns(indent), minWidth/2)
	}
	return f
}

// say adds a text of any length in a style, and reports whether it has anything.
func (p *page) say(first, indent string, st style, said string) bool {
	text := p.flow(first, indent)
	text.restyle(st)
	text.add(said)
	text.end()
	return text.begun
}

// flush writes what was added in one piece, so that other writers of the same terminal do not cut
// into it. Behind a question it waits for the answer.
func (v *View) flush() {
	if v.asking {
		return
	}
	defer v.buf.Reset()
	if v.failed {
		return
	}
	out := v.buf.Bytes()
	if v.live != nil {
		out = v.live.around(out, v.status(), v.width)
	}
	if len(out) == 0 {
		return
	}
	_, err := v.w.Write(out)
	v.failed = err != nil
}

// ColorWanted reports whether what is written to f should be in colours. The
// environment decides first: NO_COLOR against, then FORCE_COLOR and
// CLICOLOR_FORCE for (or against, when FORCE_COLOR is "0" or "false"), then
// CLICOLOR=0 and TERM=dumb against; otherwise f decides, by being a terminal. An
// empty variable counts as unset. getenv is os.Getenv or alike; f may be nil.
func ColorWanted(f *os.File, getenv func(string) string) bool {
	off := func(name string) bool { value := getenv(name); return value == "0" || value == "false" }
	switch {
	case getenv("NO_COLOR") != "", off("FORCE_COLOR"):
		return false
	case getenv("FORCE_COLOR") != "":
		return true
	case getenv("CLICOLOR_FORCE") != "" && !off("CLICOLOR_FORCE"):
		return true
	case off("CLICOLOR"), getenv("TERM") == "dumb":
		return false
	default:
		return f != nil && term.IsTerminal(descriptor(f))
	}
}

// Width returns how many columns f has; 0 when it is no terminal, or does not say.
func Width(f *os.File) int {
	columns, _ := Size(f)
	return columns
}

// Size returns how many columns and rows f has; 0 when it is no terminal, or does not say.
func Size(f *os.File) (columns, rows int) {
	if f == nil {
		return 0, 0
	}
	columns, rows, err := term.GetSize(descriptor(f))
	if err != nil {
		return 0, 0
	}
	return columns, rows
}

func descriptor(f *os.File) int { return int(f.Fd()) }

// marks are the symbols before and between entries of the view.
type marks struct {
	user, model, thought, call, queued, running string
	bar                                         string // before what a tool returned
	separator, minus                            string
	alert                                       string // before an alert
	endMarks
}

// endMarks are the marks of calls and turns that have ended.
type endMarks struct{ ok, failed, stopped, unknown string }

// of returns the mark of a state, and its style.
func (m *marks) of(state string) (string, style) {
	switch report.ClassOf(state) {
	case report.StateClassOK:
		return m.ok, green
	case report.StateClassRun:
		return m.running, plain
	case report.StateClassWait:
		return m.queued, yellow
	case report.StateClassStop:
		return m.stopped, yellow
	case report.StateClassBad:
		if state == string(protocol.StatusOutcomeUnknown) {
			return m.unknown, yellow
		}
		return m.failed, red
	default:
		return m.unknown, yellow
	}
}

// visualMarks are marks for eyes.
func visualMarks() *marks {
	return &marks{
		user: "› ", model: "● ", thought: "○ ", call: "› ", queued: "· ", running: "▸ ", bar: "│ ", separator: " · ", minus: "−",
		alert: "!", endMarks: endMarks{ok: "✓ ", failed: "✗ ", stopped: "■ ", unknown: "? "},
	}
}

// screenReaderMarks are marks for ears: a screen reader says nothing that means nothing.
func screenReaderMarks() *marks {
	return &marks{
		user: "You: ", model: "Model: ", thought: "Model thinks: ", call: "calls: ", bar: "  ", separator: ", ", minus: "-", alert: "Warning:",
	}
}
