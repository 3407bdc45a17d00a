package terminal

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/prose"
)

// flow writes a text that comes in pieces: safe, indented and, with a limit,
// wrapped between words. A word is written when it is known where it ends or,
// without a limit, as far as it came. Runs of empty lines become one, and those
// at the ends none.
type flow struct {
	out   *bytes.Buffer
	start func() // called before the first character
	margin
	style func(word string) string // paints what comes next; nil does not
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
		f.wide += columns(text)
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
func (f *flow) restyle(style func(string) string) {
	f.painted()
	f.style = style
}

// painted paints what there is of the word.
func (f *flow) painted() {
	piece := f.raw.String()
	if f.style != nil && piece != "" {
		piece = f.style(piece)
	}
	f.word.WriteString(piece)
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
