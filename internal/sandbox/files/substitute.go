package files

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxPlaces is how many lines are named when a text occurs more than once.
const maxPlaces = 10

// makeEdits makes edits one after another. It fails when one of them does, or with
// best effort when all of them do, and then says of each why. With first, each replaces the first
// of several occurrences.
func makeEdits(name string, content []byte, edits []protocol.FileEdit, first, bestEffort bool) ([]byte, []protocol.EditOutcome, error) {
	outcomes := make([]protocol.EditOutcome, len(edits))
	var faults []*protocol.Error
	for i, edit := range edits {
		after, outcome, fault := substitute(name, content, edit, first)
		if fault != nil {
			if len(edits) > 1 {
				fault = protocol.Errorf(fault.Code, "edit %d of %d: %s", i+1, len(edits), fault.Message)
			}
			outcomes[i].Error = fault
			faults = append(faults, fault)
			continue
		}
		content, outcomes[i] = after, outcome
	}
	if len(faults) == 0 || bestEffort && len(faults) < len(edits) {
		return content, outcomes, nil
	}
	return nil, nil, joinFaults(faults, len(edits))
}

// joinFaults makes one fault of those of several edits. Nothing was changed.
func joinFaults(faults []*protocol.Error, edits int) error {
	first := faults[0]
	if edits == 1 {
		return protocol.Errorf(first.Code, "nothing was changed: %s", first.Message)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "nothing was changed, because %d of %d edits cannot be made:", len(faults), edits)
	const shown = 10
	for i, fault := range faults {
		if i == shown {
			fmt.Fprintf(&b, "\nand %d more", len(faults)-shown)
			break
		}
		b.WriteString("\n" + fault.Message)
	}
	return &protocol.Error{Code: first.Code, Message: b.String()}
}

// substitute returns content with the replacements that edit asks for.
func substitute(name string, content []byte, edit protocol.FileEdit, first bool) ([]byte, protocol.EditOutcome, *protocol.Error) {
	var outcome protocol.EditOutcome
	switch edit.Old {
	case "":
		return nil, outcome, protocol.Errorf(protocol.CodeInvalidArguments,
			"the old text is empty; give the text to replace, or write the file for new content")
	case edit.New:
		return nil, outcome, protocol.Errorf(protocol.CodeInvalidArguments, "the old and the new text are the same; nothing would change")
	}
	text := newUnixText(content, edit.Old)
	places := occurrences(text.lines, text.old, maxPlaces+1)
	if len(places) == 0 {
		return nil, outcome, protocol.Errorf(codes.EditNotFound, "the old text is not in %q. %s", name, hint(content, edit))
	}
	count := bytes.Count(text.lines, text.old)
	switch {
	case edit.ReplaceAll:
	case first:
		count = 1
	case len(places) > 1:
		return nil, outcome, notUnique(name, text.lines, places, max(count, len(places)))
	}
	outcome.Replacements, outcome.Line = count, lineAt(text.lines, places[0])
	after, ok := text.replace(edit, count)
	if !ok {
		return nil, outcome, protocol.Errorf(codes.TooLarge, "%q would have more than %d bytes, which are possible at most", name, isolation.MaxFileSize)
	}
	return after, outcome, nil
}

// lineAt is the number of the line, from 1, in which the byte at offset is.
func lineAt(content []byte, offset int) int { return 1 + bytes.Count(content[:offset], []byte{'\n'}) }

// occurrences returns where old is found in content, at most limit places. Those
// that overlap count, too: which of them was meant cannot be known.
func occurrences(content, old []byte, limit int) []int {
	var places []int
	for from := 0; len(places) < limit; {
		i := bytes.Index(content[from:], old)
		if i < 0 {
			break
		}
		places = append(places, from+i)
		from += i + 1
	}
	return places
}

func notUnique(name string, content []byte, places []int, count int) *protocol.Error {
	lines := make([]int, 0, len(places))
	for _, at := range places {
		lines = append(lines, lineAt(content, at))
	}
	return protocol.Errorf(codes.EditNotUnique,
		"the old text occurs %d times in %q, at lines %s; give more of the text around the one that is meant, or ask for all to be replaced",
		count, name, lineNumbers(lines))
}

// lineNumbers is the first [maxPlaces] of some line numbers, as text.
func lineNumbers(lines []int) string {
	var b strings.Builder
	for i, line := range lines {
		if i == maxPlaces {
			b.WriteString(", ...")
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, line)
	}
	return b.String()
}

// Bounds of a hint.
const (
	hintLines = 5   // lines shown
	hintWidth = 200 // bytes of each
	maxQuoted = 80  // bytes of what a message quotes of a request
)

// hint says why the old text of an edit may not have been found.
func hint(content []byte, req protocol.FileEdit) string {
	if req.New != "" {
		if at := bytes.Index(content, []byte(req.New)); at >= 0 {
			return fmt.Sprintf("The new text is there already, at line %d: perhaps the edit has been made before.",
				1+bytes.Count(content[:at], []byte{'\n'}))
		}
	}
	lines := bytes.SplitAfter(content, []byte{'\n'})
	wanted := strings.Split(strings.Trim(req.Old, "\n"), "\n")
	at, exact := nearest(lines, wanted)
	if at < 0 {
		return "No line of it is like the old text: read the file again."
	}
	why := "The most similar line is"
	if exact {
		why = "It differs in white space or in its other lines. The file has"
	}
	return fmt.Sprintf("%s line %d:\n%s", why, at+1, excerpt(lines[at:], min(len(wanted), hintLines)))
}

// nearest returns the index of the line that is most like the first line of wanted that is not
// blank, less the number of lines before that; -1 when none is like it. exact means that only
// leading and trailing white space differ.
func nearest(lines [][]byte, wanted []string) (at int, exact bool) {
	before := 0
	for before < len(wanted)-1 && strings.TrimSpace(wanted[before]) == "" {
		before++
	}
	want := []byte(strings.TrimSpace(wanted[before]))
	best, at := len(want)/2, -1 // half of it has to match
	for i, line := range lines {
		line = bytes.TrimSpace(line)
		if bytes.Equal(line, want) {
			if len(want) == 0 {
				continue
			}
			return max(i-before, 0), true
		}
		if score := common(line, want); score > best {
			best, at = score, max(i-before, 0)
		}
	}
	return at, false
}

// common is the length of the shared start and end of two lines.
func common(a, b []byte) int {
	n := min(len(a), len(b))
	head := 0
	for head < n && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < n-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return head + tail
}

// excerpt returns the first n lines, each cut, as valid text.
func excerpt(lines [][]byte, n int) string {
	var out strings.Builder
	for _, line := range lines[:min(n, len(lines))] {
		line = bytes.TrimRight(line, "\r\n")
		line = line[:min(len(line), hintWidth)]
		out.WriteString(prose.Valid(string(line[:prose.Border(line)])))
		out.WriteByte('\n')
	}
	return out.String()
}
