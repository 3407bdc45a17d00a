package change

import (
	"bytes"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// unixText is a text of which every line ends in LF, and where the text that it is of has CRLF.
type unixText struct {
	original []byte
	lines    []byte
	crlf     []int // offsets in lines of the line ends that are CRLF in the original
	old      []byte
	exact    bool // lines are the original, and new text is taken as it is
}

// newUnixText is a text in which old is to be found. What has a carriage return that is not of a
// line end is found in the bytes as they are.
func newUnixText(original []byte, old string) *unixText {
	t := &unixText{original: original, lines: original, old: []byte(unix(old))}
	if bytes.Contains(t.old, []byte{'\r'}) {
		t.old, t.exact = []byte(old), true
		return t
	}
	if !bytes.Contains(original, []byte("\r\n")) {
		t.exact = !bytes.Contains(original, []byte{'\n'})
		return t
	}
	t.lines = make([]byte, 0, len(original))
	for i, c := range original {
		if c == '\r' && i+1 < len(original) && original[i+1] == '\n' {
			t.crlf = append(t.crlf, len(t.lines))
			continue
		}
		t.lines = append(t.lines, c)
	}
	return t
}

// unix returns text with LF for each CRLF.
func unix(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// at is the offset in the original of an offset in the lines.
func (t *unixText) at(offset int) int {
	before, _ := slices.BinarySearch(t.crlf, offset)
	return offset + before
}

// replace returns the original with the new text of an edit in the place of its old one, the first
// count times. ok is false when that is too large.
func (t *unixText) replace(edit protocol.FileEdit, count int) (after []byte, ok bool) {
	asGiven := t.exact || unix(edit.New) == unix(edit.Old) // line ends are all that it changes
	from := 0                                              // in the lines
	var out bytes.Buffer
	for range count {
		place := from + bytes.Index(t.lines[from:], t.old)
		out.Write(t.original[t.at(from):t.at(place)])
		from = place + len(t.old)
		if asGiven {
			out.WriteString(edit.New)
		} else {
			t.write(&out, unix(edit.New), place, from)
		}
		if out.Len() > isolation.MaxFileSize {
			return nil, false
		}
	}
	out.Write(t.original[t.at(from):])
	return out.Bytes(), out.Len() <= isolation.MaxFileSize
}

// write writes text, with line ends for those of the file: lines that are in what it replaces, at
// its start or end, keep theirs, and others get the one that is used there.
func (t *unixText) write(out *bytes.Buffer, text string, start, end int) {
	if len(t.crlf) == 0 {
		out.WriteString(text)
		return
	}
	old, lines := strings.SplitAfter(string(t.lines[start:end]), "\n"), strings.SplitAfter(text, "\n")
	same := 0
	for same < min(len(old), len(lines)) && old[same] == lines[same] {
		same++
	}
	sameEnd := 0
	for sameEnd < min(len(old), len(lines))-same && old[len(old)-1-sameEnd] == lines[len(lines)-1-sameEnd] {
		sameEnd++
	}
	head := len(strings.Join(lines[:same], ""))
	out.Write(t.original[t.at(start):t.at(start+head)])
	lineEnd := t.lineEnd(start + head)
	out.WriteString(strings.ReplaceAll(strings.Join(lines[same:len(lines)-sameEnd], ""), "\n", lineEnd))
	tail := len(strings.Join(lines[len(lines)-sameEnd:], ""))
	out.Write(t.original[t.at(end-tail):t.at(end)])
}

// lineEnd is the line end of the line with a place in the lines, or where it has none of the line
// before.
func (t *unixText) lineEnd(place int) string {
	next := bytes.IndexByte(t.lines[place:], '\n')
	if next >= 0 {
		next += place
	} else {
		next = bytes.LastIndexByte(t.lines[:place], '\n')
	}
	if _, isCRLF := slices.BinarySearch(t.crlf, next); isCRLF {
		return "\r\n"
	}
	return "\n"
}
