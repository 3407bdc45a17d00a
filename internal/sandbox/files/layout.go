package files

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// splice returns text with value in the place of a span, and the line ends of text in it.
func splice(text []byte, at span, value []byte) []byte {
	return slices.Concat(text[:at.start], lineEndsOf(text, value), text[at.end:])
}

// lineEndsOf returns value, whose lines end in LF, with the line end of the first line of text.
func lineEndsOf(text, value []byte) []byte {
	if at := bytes.IndexByte(text, '\n'); at > 0 && text[at-1] == '\r' {
		return bytes.ReplaceAll(value, []byte{'\n'}, []byte("\r\n"))
	}
	return value
}

// insert adds a value that does not exist yet to an object or to the end of an array,
// laid out like what is in it. missing says why it was not found.
func (d *jsonDocument) insert(parent span, step string, value []byte, missing error) ([]byte, error) {
	members := d.members(parent)
	key := ""
	switch kind := jsonType(d.text[parent.start:parent.end]); kind {
	case "object":
		quoted, err := json.Marshal(step)
		if err != nil {
			return nil, err
		}
		if key = string(quoted) + ": "; d.compact() {
			key = string(quoted) + ":"
		}
	case "array":
		if i, ok := index(step); step != "-" && (!ok || i != len(members)) {
			return nil, missing
		}
	default:
		return nil, missing
	}
	return d.add(parent, members, key, value), nil
}

// compact reports whether the document has no white space between its tokens.
func (d *jsonDocument) compact() bool {
	return indentUnit(d.text, "") == "" && len(d.text) > 2 &&
		!bytes.Contains(d.text, []byte(`": `)) && !bytes.Contains(d.text, []byte(", "))
}

// add puts a member behind the last one.
func (d *jsonDocument) add(parent span, members []member, key string, value []byte) []byte {
	unit := indentUnit(d.text, "")
	outer := lineIndent(d.text, parent.start)
	multiline := bytes.Contains(d.text[parent.start:parent.end], []byte{'\n'}) || len(members) == 0 && unit != ""
	lead, tail, inner := "", "", outer
	if multiline {
		inner = outer + unit
		lead = "\n" + inner
	}
	at := span{parent.start + 1, parent.end - 1} // all of it is white space
	switch {
	case len(members) > 0:
		last := members[len(members)-1].at.end
		at = span{last, last}
		if lead = "," + lead; !multiline && !d.compact() {
			lead = ", "
		}
	case multiline:
		tail = "\n" + outer
	}
	return splice(d.text, at, slices.Concat([]byte(lead+key), indent(value, inner, unit), []byte(tail)))
}

// indent lays JSON text out with a unit of indentation, below a line that is indented by prefix.
// Without a unit it stays on its line.
func indent(value []byte, prefix, unit string) []byte {
	var out bytes.Buffer
	if unit == "" {
		if json.Compact(&out, value) == nil {
			return out.Bytes()
		}
		return value
	}
	if json.Indent(&out, value, prefix, unit) == nil {
		return out.Bytes()
	}
	return value
}

// indentUnit is the indentation of the first line of a document that has any, or else
// the given one when the document has one line at most.
func indentUnit(text []byte, otherwise string) string {
	for line := range bytes.Lines(text) {
		trimmed := bytes.TrimLeft(line, " \t")
		if len(trimmed) < len(line) && len(bytes.TrimSpace(trimmed)) > 0 {
			return string(line[:len(line)-len(trimmed)])
		}
	}
	return otherwise
}

// lineIndent is the white space at the start of the line of an offset.
func lineIndent(text []byte, offset int) string {
	line := text[bytes.LastIndexByte(text[:offset], '\n')+1:]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// unixText is a text with LF at the end of each line, and the positions of CRLF in the original.
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

// write writes text with the line ends of the file: lines that were at the start or end of the
// replaced text keep theirs, others get the one that is used there.
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
