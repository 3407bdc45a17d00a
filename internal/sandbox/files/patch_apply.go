package files

import (
	"bytes"
	"slices"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// applyPatch makes the changes of a unified diff. Every hunk is applied where its old
// lines are in content: where its header says, or else at the one other place that
// there is behind the hunk before it. It is all or nothing.
func applyPatch(name string, content []byte, patch string) ([]byte, []protocol.EditOutcome, error) {
	hunks, err := parsePatch(patch)
	if err != nil {
		return nil, nil, err
	}
	a := newApplier(name, content)
	outcomes := make([]protocol.EditOutcome, 0, len(hunks))
	for i := range hunks {
		outcome, fault := a.apply(i, len(hunks), &hunks[i])
		if fault != nil {
			return nil, nil, protocol.Errorf(fault.Code, "nothing was changed: %s", fault.Message)
		}
		outcomes = append(outcomes, outcome)
	}
	a.copyTo(len(a.lines))
	if a.out.Len() > isolation.MaxFileSize {
		return nil, nil, protocol.Errorf(codes.TooLarge,
			"%q would have %d bytes, at most %d are possible; nothing was changed", name, a.out.Len(), isolation.MaxFileSize)
	}
	return a.out.Bytes(), outcomes, nil
}

// applier applies hunks from the top of a file to its bottom.
type applier struct {
	name  string
	lines [][]byte // of the file, with their line ends
	done  int      // lines that are in out or replaced
	moved int      // how much further down than its header the last hunk was found
	added int      // lines that out has more than the file up to done
	out   bytes.Buffer
}

func newApplier(name string, content []byte) *applier {
	a := &applier{name: name}
	if len(content) > 0 {
		a.lines = bytes.SplitAfter(content, []byte{'\n'})
		if len(a.lines[len(a.lines)-1]) == 0 {
			a.lines = a.lines[:len(a.lines)-1]
		}
	}
	return a
}

// apply applies the hunk with the given index, from 0, of count.
func (a *applier) apply(index, count int, h *hunk) (protocol.EditOutcome, *protocol.Error) {
	old := h.side('+')
	at, fault := a.find(h, old)
	if fault != nil {
		return protocol.EditOutcome{}, protocol.Errorf(fault.Code, "hunk %d of %d: %s", index+1, count, fault.Message)
	}
	outcome := protocol.EditOutcome{Replacements: 1, Line: at + a.added + 1 + h.leading()}
	if h.at > 0 {
		outcome.Offset = at + 1 - h.at
		a.moved = outcome.Offset
	}
	a.copyTo(at)
	a.replace(h)
	return outcome, nil
}

// leading is how many lines of context stand before the first change.
func (h *hunk) leading() int {
	for i, line := range h.lines {
		if line.op != ' ' {
			return i
		}
	}
	return 0
}

func (a *applier) copyTo(line int) {
	for ; a.done < line; a.done++ {
		a.out.Write(a.lines[a.done])
	}
}

// find returns the index of the line where a hunk belongs.
func (a *applier) find(h *hunk, old []hunkLine) (int, *protocol.Error) {
	if len(old) == 0 {
		return a.insertion(h)
	}
	for _, moved := range []int{a.moved, 0} {
		if at := h.at - 1 + moved; h.at > 0 && a.matches(at, old) {
			return at, nil
		}
	}
	var places []int
	for at := a.done; at+len(old) <= len(a.lines); at++ {
		if a.matches(at, old) {
			places = append(places, at)
		}
	}
	switch len(places) {
	case 1:
		return places[0], nil
	case 0:
		return 0, a.notFound(old)
	default:
		numbers := make([]int, 0, maxPlaces+1)
		for _, at := range places[:min(len(places), maxPlaces+1)] {
			numbers = append(numbers, at+1)
		}
		return 0, protocol.Errorf(codes.EditNotUnique,
			"its old lines are %d times in %q, at lines %s, and not at the line that its header says; correct the line number or give more lines of context",
			len(places), a.name, lineNumbers(numbers))
	}
}

// insertion is where a hunk without old lines goes: only its header can say.
func (a *applier) insertion(h *hunk) (int, *protocol.Error) {
	if at := h.at - 1 + a.moved; h.at > 0 && at >= a.done && at <= len(a.lines) {
		return at, nil
	}
	if len(a.lines) == 0 {
		return 0, nil
	}
	return 0, protocol.Errorf(codes.EditNotFound,
		"it only adds lines, and its header does not name a line of %q, which has %d, to add them behind; give lines of context", a.name, len(a.lines))
}

// matches reports whether old is in the file at a line. Line ends are not compared.
func (a *applier) matches(at int, old []hunkLine) bool {
	if at < a.done || at+len(old) > len(a.lines) {
		return false
	}
	for i, line := range old {
		if string(trimBreak(a.lines[at+i])) != line.text {
			return false
		}
	}
	return true
}

func trimBreak(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte{'\n'}), []byte{'\r'})
}

func (a *applier) notFound(old []hunkLine) *protocol.Error {
	texts := make([]string, 0, len(old))
	for _, line := range old {
		texts = append(texts, line.text)
	}
	rest := a.lines[a.done:]
	at, _ := nearest(rest, texts)
	if at < 0 {
		return protocol.Errorf(codes.EditNotFound,
			"its old lines are not in %q, nor anything like them: read the file again", a.name)
	}
	if i := firstDifference(rest[at:], texts); i < len(texts) {
		return protocol.Errorf(codes.EditNotFound,
			"its old lines are not in %q as they stand in the patch. The most similar place is line %d, where the patch has %q and the file has:\n%s",
			a.name, a.done+at+1, prose.Cut(texts[i], maxQuoted), excerpt(rest[at:], min(len(texts), hintLines)))
	}
	return protocol.Errorf(codes.EditNotFound, "its old lines are not in %q behind the hunk before it", a.name)
}

// firstDifference is the index of the first text that differs from its line.
func firstDifference(lines [][]byte, texts []string) int {
	for i, text := range texts {
		if i >= len(lines) || string(trimBreak(lines[i])) != text {
			return i
		}
	}
	return len(texts)
}

// replace writes the hunk's lines in the place of those that it replaces. Lines
// that stay keep their line ends; new ones get those that are used around them.
func (a *applier) replace(h *hunk) {
	lineEnd := a.lineEnd()
	marked := slices.ContainsFunc(h.lines, func(line hunkLine) bool { return line.noBreak })
	open := len(a.lines) > 0 && !bytes.HasSuffix(a.lines[len(a.lines)-1], []byte{'\n'})
	var last hunkLine
	for _, line := range h.lines {
		switch line.op {
		case '+':
			if a.out.Len() > 0 && a.out.Bytes()[a.out.Len()-1] != '\n' {
				a.out.WriteString(lineEnd) // what was the last line of the file
			}
			a.out.WriteString(line.text)
			a.out.WriteString(lineEnd)
			a.added++
		case '-':
			lineEnd = a.lineEnd()
			a.done++
			a.added--
			continue
		default:
			lineEnd = a.lineEnd()
			a.out.Write(a.lines[a.done])
			a.done++
		}
		last = line
	}
	// A new last line of the file ends as the patch says, or as the old one did when it says
	// nothing.
	if a.done == len(a.lines) && last.op == '+' && (marked && last.noBreak || !marked && open) {
		a.out.Truncate(a.out.Len() - len(lineEnd))
	}
}

// lineEnd is the line end that is used around the place that is reached.
func (a *applier) lineEnd() string {
	for _, at := range []int{a.done, a.done - 1, 0} {
		if at >= 0 && at < len(a.lines) && bytes.HasSuffix(a.lines[at], []byte("\r\n")) {
			return "\r\n"
		}
		if at >= 0 && at < len(a.lines) && bytes.HasSuffix(a.lines[at], []byte("\n")) {
			return "\n"
		}
	}
	return "\n"
}
