package terminal

import (
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

const (
	// tabStop is how many columns a tab fills up to.
	tabStop = 4
	// runesPerColumn bounds what one column can hold: marks that are put above and
	// below a letter take no room of their own.
	runesPerColumn = 8
)

// visible returns r in a form that a terminal shows and does nothing else with.
func visible(r rune) string {
	switch {
	case r < ' ':
		return string('\u2400' + r)
	case r < 0x7f:
		return string(r)
	case r == 0x7f:
		return "\u2421"
	case r == '\u00ad', r == '\u200c', r == '\u200d': // hyphens, and joiners of scripts and of emoji
		return string(r)
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
		return fmt.Sprintf("<U+%04X>", r)
	default:
		return string(r)
	}
}

// columnsOf returns how many columns a visible rune takes.
func columnsOf(r rune) int {
	switch {
	case r < 0x7f:
		return 1
	case r == '\u200c', r == '\u200d', unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}

// columns returns the width of a string without escape sequences.
func columns(s string) int {
	sum := 0
	for _, r := range s {
		sum += columnsOf(r)
	}
	return sum
}

// pad returns s with spaces up to a width.
func pad(s string, to int) string {
	return s + strings.Repeat(" ", max(0, to-columns(s)))
}

// fit makes s one safe line of at most limit columns, which must be 1 or more. A line that was
// cut ends with "…"; it is cut between characters only.
func fit(s string, limit int) string {
	var b strings.Builder
	col, runes, cut := 0, 0, 0 // cut is where "…" would fit in
	for _, r := range s {
		piece := visible(r)
		if r == '\t' {
			piece = strings.Repeat(" ", tabStop-col%tabStop)
		}
		wide := columns(piece)
		if runes++; col+wide > limit || runes > limit*runesPerColumn {
			return b.String()[:cut] + "…"
		}
		b.WriteString(piece)
		if col += wide; col < limit {
			cut = b.Len()
		}
	}
	return b.String()
}
