package terminal

import (
	"regexp"
	"slices"
	"strings"
)

// Bounds of what is kept of a running command's output.
const (
	maxTail    = 5    // lines
	maxPartial = 4096 // bytes of one line
)

// sequence matches an escape sequence: commands that know of a terminal write colours.
var sequence = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\^_])")

// tail is the last lines of an output that comes in pieces.
type tail struct {
	lines   []string
	partial string // of the line that is being written
}

// add takes the next piece.
func (t *tail) add(piece string) {
	all := strings.Split(t.partial+piece, "\n")
	t.partial = all[len(all)-1]
	if over := len(t.partial) - maxPartial; over > 0 {
		t.partial = t.partial[over:]
	}
	t.lines = append(t.lines, all[:len(all)-1]...)
	t.lines = slices.Clone(t.lines[max(0, len(t.lines)-maxTail):])
}

// last returns at most n lines, as a terminal would show them.
func (t *tail) last(n int) []string {
	all := t.lines
	if t.partial != "" {
		all = append(slices.Clone(all), t.partial)
	}
	var shown []string
	for _, line := range all {
		line = strings.TrimRight(sequence.ReplaceAllString(line, ""), "\r ")
		shown = append(shown, line[strings.LastIndexByte(line, '\r')+1:]) // a line that is written again and again
	}
	return shown[max(0, len(shown)-n):]
}
