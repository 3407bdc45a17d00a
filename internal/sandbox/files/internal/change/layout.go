package change

import (
	"bytes"
	"encoding/json"
	"slices"
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
func (d *Document) insert(parent span, step string, value []byte, missing error) ([]byte, error) {
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
func (d *Document) compact() bool {
	return indentUnit(d.text, "") == "" && len(d.text) > 2 &&
		!bytes.Contains(d.text, []byte(`": `)) && !bytes.Contains(d.text, []byte(", "))
}

// add puts a member behind the last one.
func (d *Document) add(parent span, members []member, key string, value []byte) []byte {
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
