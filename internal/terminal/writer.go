package terminal

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// IsTerminal reports whether f is a terminal; nil is none.
func IsTerminal(f *os.File) bool { return f != nil && term.IsTerminal(descriptor(f)) }

// Visible returns a text of any number of lines in a form that a terminal shows and does nothing
// else with. Line ends and tabs stay.
func Visible(s string) string {
	var b strings.Builder
	for _, r := range strings.ReplaceAll(s, "\r\n", "\n") {
		b.WriteString(shown(r))
	}
	return b.String()
}

// Writer returns what commands print to for people: f itself, unless it is a terminal, where all
// that others wrote is made visible as by [Visible].
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
	return visible(r)
}

// escaped is a character of JSON: only strings have any that are not shown as they are.
func escaped(r rune) string {
	if r == '\n' || r == '\t' || visible(r) == string(r) {
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
	hold []byte // the beginning of a character, of which the rest is to come
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

// heading adds a line of parts, with separators between them. A part that does not fit begins
// another line, as a whole.
func (v *View) heading(all ...part) {
	var parts []part
	used := 0
	for i, p := range all {
		if i > 0 {
			between := part{dim, v.marks.separator}
			if used += columns(between.text); v.wrap > 0 && used+columns(p.text) > v.wrap {
				between, used = part{plain, "\n"}, columns("  ")
			}
			parts = append(parts, between)
		}
		used += columns(p.text)
		parts = append(parts, p)
	}
	v.parts("  ", parts...)
}

// parts adds a line, which is wrapped on a screen. What its parts contain must be bounded.
func (v *View) parts(indent string, all ...part) {
	text := v.flow("", indent)
	for _, p := range all {
		text.restyle(func(piece string) string { return v.ink.paint(p.style, piece) })
		text.add(p.text)
	}
	text.end()
}

// line adds a line of the view itself. Its parts must be safe already.
func (v *View) line(s string) {
	v.space()
	v.buf.WriteString(strings.TrimRight(s, " "))
	v.buf.WriteByte('\n')
}

// space adds the empty line that is due.
func (v *View) space() {
	if v.gap && v.begun {
		v.buf.WriteByte('\n')
	}
	v.gap, v.begun = false, true
}

// flow returns a text of any length whose first line begins with first, and all
// others with indent.
func (v *View) flow(first, indent string) *flow {
	f := &flow{out: &v.buf, start: v.space, margin: margin{first: first, indent: indent, lead: max(0, paintedColumns(first)-paintedColumns(indent))}}
	if v.wrap > 0 {
		f.limit = max(v.wrap-paintedColumns(indent), minWidth/2)
	}
	return f
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
