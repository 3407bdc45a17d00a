package terminal

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/width"

	"github.com/toolfleet/toolfleet/internal/prose"
)

const (
	// tabStop is how many columns a tab fills up to.
	tabStop = 4
	// runesPerColumn bounds what one column can hold: marks that are put above and
	// below a letter take no room of their own.
	runesPerColumn = 8
)

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
		piece := prose.VisibleRune(r)
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

// How much is shown of what, in lines.
const (
	maxInputLines  = 8
	maxResultLines = 8
	maxFoldedLines = 5
	maxDiffLines   = 60
	maxFiles       = 20
)

// lines splits a text at its line ends, CR LF too. The empty text has none.
func lines(s string) []string {
	if s == "" {
		return nil
	}
	all := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	for i := range all {
		all[i] = strings.TrimSuffix(all[i], "\r")
	}
	return all
}

// excerpt returns the head and the tail of a text, at most limit lines with the
// one that says how many are left out. Empty lines at its ends do not count.
func excerpt(s string, limit int) []string {
	all := lines(strings.Trim(s, "\r\n"))
	if len(all) <= limit {
		return all
	}
	head, tail := limit/2, limit-limit/2-1
	short := append([]string{}, all[:head]...)
	short = append(short, "… "+Plural(len(all)-head-tail, "more line")+" …")
	return append(short, all[len(all)-tail:]...)
}

// duration returns d for people, in two or three digits.
func duration(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(max(d, 0))/float64(time.Millisecond))
	case d.Round(time.Millisecond) < time.Second:
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	case d.Round(100*time.Millisecond) < time.Minute:
		return fmt.Sprintf("%.1f s", d.Round(100*time.Millisecond).Seconds())
	case d.Round(time.Second) < time.Hour:
		whole := int(d.Round(time.Second).Seconds())
		return fmt.Sprintf("%d min %d s", whole/60, whole%60)
	default:
		whole := int(d.Round(time.Minute).Minutes())
		return fmt.Sprintf("%d h %d min", whole/60, whole%60)
	}
}

// millis returns a number of milliseconds for people; "" for one that is none.
func millis(ms *float64) string {
	if ms == nil || math.IsNaN(*ms) || *ms < 0 || *ms > float64(math.MaxInt64/time.Millisecond) {
		return ""
	}
	return duration(time.Duration(*ms * float64(time.Millisecond)))
}

// count returns n with a comma before every third digit from the end.
func count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Plural is "1 tool", "2 tools".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return count(n) + " " + noun + "s"
}
