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
