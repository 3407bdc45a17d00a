package terminal

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
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

// Columns returns the width of a safe text without escape sequences, a line end as one.
func Columns(s string) int {
	sum := 0
	for _, r := range s {
		sum += columnsOf(r)
	}
	return sum
}

// Pad returns a safe line with spaces up to a width.
func Pad(s string, to int) string { return s + spaces(s, to) }

// PadLeft is [Pad] with the spaces at the left.
func PadLeft(s string, to int) string { return spaces(s, to) + s }

func spaces(s string, to int) string { return strings.Repeat(" ", max(0, to-Columns(s))) }

// Fit makes s one safe line of at most limit columns, which must be 1 or more. A line that was cut
// ends with "…"; it is cut between characters only.
func Fit(s string, limit int) string {
	var b strings.Builder
	col, runes, cut := 0, 0, 0 // cut is where "…" would fit in
	for _, r := range s {
		piece := prose.VisibleRune(r)
		if r == '\t' {
			piece = strings.Repeat(" ", tabStop-col%tabStop)
		}
		wide := Columns(piece)
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

// Wrap makes s safe lines of at most limit columns, at most most of them, between words where it
// can. The last line of a text that does not fit ends with "…".
func Wrap(s string, limit, most int) (lines []string) {
	var safe strings.Builder
	for _, r := range strings.Join(strings.Fields(s), " ") {
		safe.WriteString(prose.VisibleRune(r))
	}
	for s = safe.String(); s != ""; {
		col, end := 0, len(s)
		for i, r := range s {
			if col += columnsOf(r); col > limit || i >= limit*runesPerColumn {
				end = i
				break
			}
		}
		if end == len(s) || end == 0 || len(lines) == most-1 {
			return append(lines, Fit(s, limit))
		}
		if at := strings.LastIndexByte(s[:end+1], ' '); at > 0 {
			end = at
		}
		lines = append(lines, s[:end])
		s = strings.TrimSpace(s[end:])
	}
	return lines
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

// Duration returns d for people, in two or three digits.
func Duration(d time.Duration) string {
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

// Millis is [Duration] of milliseconds.
func Millis(ms float64) string { return Duration(time.Duration(ms * float64(time.Millisecond))) }

// Ago returns how long ago a time was, in one unit, the way lists say it.
func Ago(at time.Time) string {
	switch d := max(time.Since(at), 0); {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}

// millis returns a number of milliseconds for people; "" for an invalid one.
func millis(ms *float64) string {
	if ms == nil || math.IsNaN(*ms) || *ms < 0 || *ms > float64(math.MaxInt64/time.Millisecond) {
		return ""
	}
	return Millis(*ms)
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

// flow writes a text that comes in pieces: safe, indented and, with a limit,
// wrapped between words. A word is written when it is known where it ends or,
// without a limit, as far as it came. Runs of empty lines become one, and those
// at the ends none.
type flow struct {
	out   *bytes.Buffer
	start func() // called before the first character
	margin
	ink   ink
	style style // of what comes next
	cursor
	pending
}

// margin is what stands before the lines of a [flow].
type margin struct {
	first  string // before the first line
	indent string // before every other line
	limit  int    // columns after the indent; 0 means no limit
	lead   int    // columns by which first is wider than indent
}

// cursor is where a [flow] writes next.
type cursor struct {
	begun, open bool // something was written; the last line is not ended
	newlines    int  // due before the next word
	col, space  int  // columns on the line; spaces due before the next word
}

// pending is the word that is not complete.
type pending struct {
	word, raw   strings.Builder // its painted beginning; its end, not painted yet
	wide, runes int             // columns and characters of the whole word
	hold        string          // possibly the beginning of a character
}

// add writes the next piece. A nil flow does nothing, here as in every method.
func (f *flow) add(piece string) {
	if f == nil {
		return
	}
	piece = f.hold + piece
	f.hold = ""
	for i := 0; i < len(piece); {
		if piece[i:] == "\r" || !utf8.FullRuneInString(piece[i:]) {
			f.hold = piece[i:]
			break
		}
		r, size := utf8.DecodeRuneInString(piece[i:])
		i += size
		if r == '\r' && piece[i] == '\n' {
			continue
		}
		f.rune(r)
	}
	if f.limit == 0 {
		f.endWord()
	}
}

func (f *flow) rune(r rune) {
	switch r {
	case '\n':
		f.endWord()
		f.newlines++
		f.space = 0
	case ' ':
		f.endWord()
		f.space++
	case '\t':
		f.endWord()
		f.space += tabStop - (f.col+f.space)%tabStop
	default:
		text := prose.VisibleRune(r)
		f.raw.WriteString(text)
		f.wide += Columns(text)
		f.runes++
		if f.limit > 0 && (f.wide >= f.limit || f.runes >= f.limit*runesPerColumn) {
			f.endWord()
		}
	}
}

// endWord writes the word, after what is due before it.
func (f *flow) endWord() {
	if f.runes == 0 {
		return
	}
	f.painted()
	f.lineStart()
	if f.limit > 0 && f.col > 0 && f.col+f.space+f.wide > f.limit {
		f.out.WriteString("\n" + f.indent)
		f.col, f.space = 0, 0
	}
	if f.limit > 0 {
		f.space = min(f.space, max(0, f.limit-f.wide))
	}
	f.out.WriteString(strings.Repeat(" ", f.space))
	f.out.WriteString(f.word.String())
	f.col += f.space + f.wide
	f.word.Reset()
	f.space, f.wide, f.runes = 0, 0, 0
}

// restyle changes how what comes next is painted, also inside a word.
func (f *flow) restyle(st style) {
	f.painted()
	f.style = st
}

// painted paints what there is of the word.
func (f *flow) painted() {
	f.word.WriteString(f.ink.paint(f.style, f.raw.String()))
	f.raw.Reset()
}

// lineStart ends the last line and begins one, if that is due.
func (f *flow) lineStart() {
	switch {
	case !f.begun:
		f.start()
		f.out.WriteString(f.first)
		f.begun, f.open = true, true
		f.col, f.newlines = f.lead, 0
		return
	case f.newlines == 0 && f.open:
		return
	default:
		if f.open {
			f.out.WriteByte('\n')
		}
		if f.newlines > 1 {
			f.out.WriteString(strings.TrimRight(f.indent, " ") + "\n")
		}
		f.out.WriteString(f.indent)
	}
	f.begun, f.open = true, true
	f.col, f.newlines = 0, 0
}

// pause ends the line that is being written; the text may go on below.
func (f *flow) pause() {
	if f == nil {
		return
	}
	f.endWord()
	if f.open {
		f.out.WriteByte('\n')
		f.open, f.col = false, 0
	}
}

// end ends the text.
func (f *flow) end() {
	if f == nil {
		return
	}
	if f.hold != "" && f.hold != "\r" {
		f.rune(utf8.RuneError)
	}
	f.hold = ""
	f.pause()
}
