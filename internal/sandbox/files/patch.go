package files

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of a patch.
const (
	maxHunks = 1000
	maxLine  = 1_000_000_000 // in a header
)

// hunk is one change of a patch.
type hunk struct {
	at    int // number of the hunk's first line in the file, from 1; 0 when the header does not say
	lines []hunkLine
	// counted says that the header's counts are those of the lines.
	counted bool
}

// hunkLine is a line of a hunk, without its line end.
type hunkLine struct {
	op      byte // ' ', '-' or '+'
	text    string
	noBreak bool // "\ No newline at end of file" follows
}

// side returns the lines of the hunk without those of one kind: '+' leaves the old ones.
func (h *hunk) side(without byte) []hunkLine {
	lines := make([]hunkLine, 0, len(h.lines))
	for _, line := range h.lines {
		if line.op != without {
			lines = append(lines, line)
		}
	}
	return lines
}

// hunkNumbers matches a header that says where its hunk is. Others begin with "@@", too. It is made
// when it is first needed, because every sandbox begins with this program.
var hunkNumbers = sync.OnceValue(func() *regexp.Regexp { //nolint:gochecknoglobals // a constant
	return regexp.MustCompile(`^@@+ *-(\d+)(?:,(\d+))? +\+(\d+)(?:,(\d+))?(?: *@@.*)?$`)
})

// parsePatch reads a unified diff of one file. What models get wrong and what has one
// meaning only is accepted: counts that do not fit, headers without numbers, empty
// context lines without their space, blank lines at the end, missing file headers.
func parsePatch(patch string) ([]hunk, error) {
	p := patchParser{lines: unwrap(strings.Split(strings.TrimSuffix(patch, "\n"), "\n"))}
	if err := p.preamble(); err != nil {
		return nil, err
	}
	var hunks []hunk
	for p.next < len(p.lines) {
		h, err := p.hunk()
		if err != nil {
			return nil, err
		}
		hunks = append(hunks, h)
		if len(hunks) > maxHunks {
			return nil, badPatch(0, "it has more than %d hunks", maxHunks)
		}
	}
	return hunks, nil
}

type patchParser struct {
	lines []string
	next  int
}

// unwrap drops what models put around a patch: blank lines, a code fence, a last line "*** End
// Patch".
func unwrap(lines []string) []string {
	blank := func(line string) bool { return strings.TrimSpace(line) == "" }
	for len(lines) > 0 && blank(lines[0]) {
		lines = lines[1:]
	}
	end := len(lines)
	for end > 0 && blank(lines[end-1]) {
		end--
	}
	if end > 1 && strings.HasPrefix(lines[0], "```") && strings.TrimSpace(lines[end-1]) == "```" {
		return lines[1 : end-1]
	}
	if end > 0 && strings.TrimSpace(lines[end-1]) == "*** End Patch" {
		return lines[:end-1]
	}
	return lines
}

// badPatch is the fault of a patch that cannot be read; line counts from 0, -1 is none.
func badPatch(line int, format string, args ...any) error {
	where := ""
	if line >= 0 {
		where = fmt.Sprintf(" (line %d of the patch)", line+1)
	}
	return protocol.Errorf(codes.InvalidPatch,
		`the patch cannot be read: %s%s; nothing was changed. A patch is a unified diff: a header "@@ -10,3 +10,4 @@", then lines that start with " ", "-" or "+"`,
		fmt.Sprintf(format, args...), where)
}

// preamble skips what stands before the first hunk: file headers and blank lines.
func (p *patchParser) preamble() error {
	for ; p.next < len(p.lines); p.next++ {
		line := strings.TrimSuffix(p.lines[p.next], "\r")
		switch {
		case strings.HasPrefix(line, "@@"):
			return nil
		case strings.HasPrefix(line, "+++ /dev/null"):
			return badPatch(p.next, "it deletes the file, and an edit only changes it")
		case strings.HasPrefix(line, "--- /dev/null"):
			return badPatch(p.next, "it makes a new file, and an edit only changes one: write it")
		case strings.TrimSpace(line) == "", isFileHeader(line):
		default:
			return badPatch(p.next, "%q is neither a header nor part of a hunk", prose.Cut(line, maxQuoted))
		}
	}
	return badPatch(-1, "there is no hunk in it")
}

func isFileHeader(line string) bool {
	for _, prefix := range []string{
		"--- ", "+++ ", "diff ", "index ", "old mode ", "new mode ", "similarity index ", "rename ", "Index: ", "====", "*** ",
	} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

// hunk reads the hunk whose header is next.
func (p *patchParser) hunk() (hunk, error) {
	header := p.next
	p.next++
	h, old, added, err := parseHunkHeader(p.lines[header])
	if err != nil {
		return hunk{}, badPatch(header, "%v", err)
	}
	start := p.next
	if h.lines, h.counted = p.counted(old, added); !h.counted {
		p.next = start
		if h.lines, err = p.uncounted(); err != nil {
			return hunk{}, err
		}
	}
	changes := func(line hunkLine) bool { return line.op != ' ' }
	if !slices.ContainsFunc(h.lines, changes) {
		return hunk{}, badPatch(header, "the hunk changes nothing")
	}
	return h, nil
}

// parseHunkHeader returns a hunk without lines, and how many old and new ones the
// header says that it has: -1 when it says nothing.
func parseHunkHeader(line string) (h hunk, old, added int, err error) {
	match := hunkNumbers().FindStringSubmatch(strings.TrimSuffix(line, "\r"))
	if match == nil {
		return hunk{}, -1, -1, nil
	}
	numbers := [4]int{0, 1, 0, 1}
	for i, text := range match[1:] {
		if text == "" {
			continue
		}
		if numbers[i], err = strconv.Atoi(text); err != nil || numbers[i] > maxLine {
			return hunk{}, 0, 0, fmt.Errorf("the number %s is too large", prose.Cut(text, maxQuoted))
		}
	}
	h.at = numbers[0]
	if numbers[1] == 0 {
		h.at++ // it names the line behind which lines are added
	}
	return h, numbers[1], numbers[3], nil
}

// counted reads as many lines as the header says, and reports whether that is what the hunk has.
func (p *patchParser) counted(old, added int) ([]hunkLine, bool) {
	var lines []hunkLine
	for old > 0 || added > 0 {
		if p.next == len(p.lines) {
			return nil, false
		}
		line, ok := parseHunkLine(p.lines[p.next])
		if !ok {
			return nil, false
		}
		if line.op != '+' {
			old--
		}
		if line.op != '-' {
			added--
		}
		lines = append(lines, line)
		p.next++
		p.noBreak(lines)
	}
	if old != 0 || added != 0 || len(lines) == 0 {
		return nil, false
	}
	p.skipBlank()
	return lines, p.next == len(p.lines) || strings.HasPrefix(p.lines[p.next], "@@")
}

// uncounted reads lines up to the next header.
func (p *patchParser) uncounted() ([]hunkLine, error) {
	var lines []hunkLine
	for p.next < len(p.lines) && !p.atHeader() {
		line, ok := parseHunkLine(p.lines[p.next])
		if !ok {
			return nil, badPatch(p.next, `%q does not start with " ", "-" or "+"`, prose.Cut(p.lines[p.next], maxQuoted))
		}
		lines = append(lines, line)
		p.next++
		p.noBreak(lines)
	}
	for len(lines) > 0 && lines[len(lines)-1] == (hunkLine{op: ' '}) {
		lines = lines[:len(lines)-1] // blank lines behind the hunk
	}
	if p.next < len(p.lines) && !strings.HasPrefix(p.lines[p.next], "@@") {
		return nil, badPatch(p.next, "it has lines for another file: make one edit for each file")
	}
	return lines, nil
}

// atHeader reports whether the next line begins another hunk or file.
func (p *patchParser) atHeader() bool {
	line := p.lines[p.next]
	if strings.HasPrefix(line, "@@") || strings.HasPrefix(line, "diff --git ") {
		return true
	}
	return strings.HasPrefix(line, "--- ") && p.next+1 < len(p.lines) && strings.HasPrefix(p.lines[p.next+1], "+++ ")
}

// noBreak marks the last line when the next one says that it has no line end.
func (p *patchParser) noBreak(lines []hunkLine) {
	if p.next < len(p.lines) && strings.HasPrefix(p.lines[p.next], `\`) {
		lines[len(lines)-1].noBreak = true
		p.next++
	}
}

func (p *patchParser) skipBlank() {
	for p.next < len(p.lines) && strings.TrimSpace(p.lines[p.next]) == "" {
		p.next++
	}
}

func parseHunkLine(line string) (hunkLine, bool) {
	line = strings.TrimSuffix(line, "\r")
	if line == "" {
		return hunkLine{op: ' '}, true
	}
	switch line[0] {
	case ' ', '-', '+':
		return hunkLine{op: line[0], text: line[1:]}, true
	default:
		return hunkLine{}, false
	}
}
