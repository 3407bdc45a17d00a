package main

import (
	"regexp"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/vt"
)

// line is a row of the terminal: its text, and the style of each of its characters.
type line struct {
	text   []rune
	styles []uv.Style
}

// linesOf returns the rows of a terminal that have something on them, and those between.
func linesOf(screen *vt.Emulator) []line {
	var lines []line
	used := 0
	for y := range screen.Height() {
		var l line
		for x := 0; x < screen.Width(); x++ {
			cell := screen.CellAt(x, y)
			if cell == nil || cell.Content == "" {
				continue // the second half of a wide character
			}
			for _, r := range cell.Content {
				l.text, l.styles = append(l.text, r), append(l.styles, cell.Style)
			}
		}
		for len(l.text) > 0 && l.text[len(l.text)-1] == ' ' {
			l.text, l.styles = l.text[:len(l.text)-1], l.styles[:len(l.styles)-1]
		}
		if lines = append(lines, l); len(l.text) > 0 {
			used = len(lines)
		}
	}
	return lines[:used]
}

// masks are what differs from run to run.
var masks = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "01a20842-5c1e-7d09-a3f6-1b7e9d54c083"},
	{regexp.MustCompile(`\b\d+(\.\d+)?s\b`), "0.003s"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ms$`), "2 ms"},
	{regexp.MustCompile(`(\b\d+ min )?\b\d+(\.\d+)? s$`), "1.4 s"},
}

// masked replaces what differs from run to run, and the workspace's place.
func masked(lines []line, workspace string) []line {
	for i := range lines {
		for _, m := range masks {
			lines[i].replace(m.what, m.with)
		}
		lines[i].replace(regexp.MustCompile(regexp.QuoteMeta(workspace)), "~/src/wordstats")
	}
	return lines
}

// replace puts a text in the place of what matches, in the style in which that begins.
func (l *line) replace(what *regexp.Regexp, with string) {
	text := string(l.text)
	var out line
	at := 0
	for _, found := range what.FindAllStringIndex(text, -1) {
		begin, end := len([]rune(text[:found[0]])), len([]rune(text[:found[1]]))
		out.text, out.styles = append(out.text, l.text[at:begin]...), append(out.styles, l.styles[at:begin]...)
		for _, r := range with {
			out.text, out.styles = append(out.text, r), append(out.styles, l.styles[begin])
		}
		at = end
	}
	if at > 0 {
		l.text, l.styles = append(out.text, l.text[at:]...), append(out.styles, l.styles[at:]...)
	}
}
