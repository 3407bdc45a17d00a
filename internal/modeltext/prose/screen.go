package prose

import (
	"slices"
	"strconv"
	"strings"
)

// Size of the screens of terminals, and bounds of what programs can make of one.
const (
	screenRows   = 40
	screenColumn = 1000 // the last one that a cursor gets to
	screenMost   = 1 << 20
)

// Screen returns the output of a program as a terminal shows it: overwritten lines have their last
// content, and scrolled lines come first. Colours, titles and modes are dropped. Lines are as long
// as they were written.
func Screen(s string) string {
	if !strings.ContainsAny(s, "\x1b\b\r") {
		return Plain(s)
	}
	var t screen
	for s != "" {
		if at := terminalSequence.FindStringIndex(s); s[0] == 0x1b && at != nil && at[0] == 0 {
			t.control(s[:at[1]])
			s = s[at[1]:]
			continue
		}
		next := 1 + strings.IndexByte(s[1:], 0x1b)
		if next == 0 {
			next = len(s)
		}
		t.write(s[:next])
		s = s[next:]
	}
	return t.text()
}

// screen is the lines of a terminal, of which the last screenRows can be written to.
type screen struct {
	lines       [][]rune
	row, column int
	cells       int // of all lines
}

// write puts text where the cursor is.
func (t *screen) write(s string) {
	for _, r := range s {
		switch r {
		case '\n':
			t.row, t.column = t.row+1, 0
			t.line()
		case '\r':
			t.column = 0
		case '\b':
			t.column = max(t.column-1, 0)
		case '\a', 0x1b, 0:
		default:
			t.put(r)
		}
	}
}

// line is the line that the cursor is in.
func (t *screen) line() *[]rune {
	for len(t.lines) <= t.row {
		t.lines = append(t.lines, nil)
	}
	return &t.lines[t.row]
}

func (t *screen) put(r rune) {
	line := t.line()
	for len(*line) < t.column && t.cells < screenMost {
		*line = append(*line, ' ')
		t.cells++
	}
	switch {
	case t.column < len(*line):
		(*line)[t.column] = r
	default:
		*line = append(*line, r)
		t.cells++
	}
	t.column++
}

// top is the first line that is on the screen.
func (t *screen) top() int { return max(len(t.lines)-screenRows, 0) }

// control does what a sequence says, if that moves the cursor or removes something.
func (t *screen) control(sequence string) {
	parameters, isCSI := strings.CutPrefix(sequence, "\x1b[")
	if !isCSI {
		return
	}
	final := parameters[len(parameters)-1]
	numbers := strings.Split(parameters[:len(parameters)-1], ";")
	number := func(i, usual int) int {
		if i < len(numbers) {
			if n, err := strconv.Atoi(numbers[i]); err == nil && n > 0 {
				return min(n, screenColumn)
			}
		}
		return usual
	}
	switch final {
	case 'A':
		t.row = max(t.row-number(0, 1), t.top())
	case 'B':
		t.row = min(t.row+number(0, 1), t.top()+screenRows-1)
	case 'C':
		t.column = min(t.column+number(0, 1), screenColumn)
	case 'D':
		t.column = max(t.column-number(0, 1), 0)
	case 'G':
		t.column = number(0, 1) - 1
	case 'd':
		t.row = t.top() + min(number(0, 1), screenRows) - 1
	case 'H', 'f':
		t.row, t.column = t.top()+min(number(0, 1), screenRows)-1, number(1, 1)-1
	case 'J', 'K', 'P', 'X', '@':
		t.remove(final, number(0, 0))
	}
}

// remove removes characters, or makes room for some.
func (t *screen) remove(what byte, n int) {
	line := t.line()
	at := min(t.column, len(*line))
	switch {
	case what == 'K' && n == 0:
		*line = (*line)[:at]
	case what == 'K' && n == 2:
		*line = nil
	case what == 'K', what == 'X':
		end := min(max(n, 1)+at, len(*line))
		if what == 'K' {
			at, end = 0, min(t.column+1, len(*line))
		}
		for i := at; i < end; i++ {
			(*line)[i] = ' '
		}
	case what == 'J' && n == 0:
		*line = (*line)[:at]
		t.lines = t.lines[:t.row+1]
	case what == 'J':
		top := t.top()
		clear(t.lines[top:])
	case what == 'P':
		*line = slices.Delete(*line, at, min(at+max(n, 1), len(*line)))
	case what == '@' && t.cells < screenMost:
		*line = slices.Insert(*line, at, slices.Repeat([]rune{' '}, max(n, 1))...)
		t.cells += max(n, 1)
	}
}

// text is all lines, without the empty ones at the end.
func (t *screen) text() string {
	var b strings.Builder
	for i, line := range t.lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(strings.TrimRight(string(line), " "))
	}
	return Plain(strings.TrimRight(b.String(), "\n"))
}
