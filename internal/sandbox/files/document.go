package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// jsonDocument is the text of a JSON document that is valid.
type jsonDocument struct {
	name string
	text []byte
}

// span is where a value stands in the text.
type span struct{ start, end int }

// member is a value of an object, or of an array, where it has no key.
type member struct {
	key string
	at  span
}

// parseJSON reads a document; name is that of its file, for messages. Its fault is
// [codes.InvalidJSON].
func parseJSON(name string, text []byte) (*jsonDocument, error) {
	if err := json.Unmarshal(text, new(json.RawMessage)); err != nil {
		where := ""
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			where = fmt.Sprintf(" at line %d", lineAt(text, min(int(syntax.Offset), len(text))))
		}
		return nil, protocol.Errorf(codes.InvalidJSON, "%q is not valid JSON%s: %v; nothing was changed", name, where, err)
	}
	return &jsonDocument{name: name, text: text}, nil
}

// jsonValue is one value of a document.
type jsonValue struct {
	Text   []byte
	Type   string // object, array, string, number, boolean or null
	Length int    // of an object or an array
}

// Find returns the value to which the steps lead; its fault is [protocol.CodeNotFound].
func (d *jsonDocument) Find(steps []string) (jsonValue, error) {
	at, err := d.find(steps)
	if err != nil {
		return jsonValue{}, err
	}
	text := d.text[at.start:at.end]
	return jsonValue{Text: text, Type: jsonType(text), Length: len(d.members(at))}, nil
}

// Replace returns the text with value, which is JSON, in the place to which the steps lead. A
// member of an object, or an item behind the last of an array ("-"), is added where there is none,
// and so are the objects and arrays on the way to it. The rest stays as it is written.
func (d *jsonDocument) Replace(steps []string, value []byte) ([]byte, error) {
	at, err := d.find(steps)
	if err == nil {
		return splice(d.text, at, indent(value, lineIndent(d.text, at.start), indentUnit(d.text, ""))), nil
	}
	last := len(steps) - 1
	parent, parentErr := d.find(steps[:last])
	for ; parentErr != nil; parent, parentErr = d.find(steps[:last]) {
		last--
	}
	inner, nestErr := nestJSON(steps[last+1:], value)
	if nestErr != nil {
		return nil, nestErr
	}
	return d.insert(parent, steps[last], inner, err)
}

// nestJSON returns the JSON of objects in which the steps lead to value. A step that is "-" or 0 is
// into an array.
func nestJSON(steps []string, value []byte) ([]byte, error) {
	for _, step := range slices.Backward(steps) {
		if step == "-" || step == "0" {
			value = slices.Concat([]byte{'['}, value, []byte{']'})
			continue
		}
		key, err := json.Marshal(step)
		if err != nil {
			return nil, err
		}
		value = slices.Concat([]byte{'{'}, key, []byte{':'}, value, []byte{'}'})
	}
	return value, nil
}

// wholeJSON returns value, which is JSON, as a document that is laid out like the one before.
func wholeJSON(before, value []byte) []byte {
	return lineEndsOf(before, append(indent(value, "", indentUnit(before, "  ")), '\n'))
}

// find returns where the value is to which the steps lead.
func (d *jsonDocument) find(steps []string) (span, error) {
	at := d.trim(span{0, len(d.text)})
	for i, step := range steps {
		next, ok := d.member(at, step)
		if !ok {
			return span{}, d.missing(at, steps, i)
		}
		at = next
	}
	return at, nil
}

func (d *jsonDocument) member(at span, step string) (span, bool) {
	members := d.members(at)
	if d.text[at.start] == '[' {
		i, ok := index(step)
		if !ok || i >= len(members) {
			return span{}, false
		}
		return members[i].at, true
	}
	found := false
	for _, m := range members { // the last of several with one key counts, as in most parsers
		if m.key == step {
			at, found = m.at, true
		}
	}
	return at, found
}

// members are the values in an object or array, in their order; none of other values.
func (d *jsonDocument) members(at span) []member {
	decoder := json.NewDecoder(bytes.NewReader(d.text[at.start:at.end]))
	open, err := decoder.Token()
	if _, nested := open.(json.Delim); err != nil || !nested {
		return nil
	}
	var members []member
	for decoder.More() {
		var m member
		if open == json.Delim('{') {
			key, err := decoder.Token()
			if err != nil {
				return nil
			}
			m.key, _ = key.(string)
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return nil
		}
		end := at.start + int(decoder.InputOffset())
		m.at = span{end - len(value), end}
		members = append(members, m)
	}
	return members
}

func (d *jsonDocument) trim(at span) span {
	for at.start < at.end && isSpace(d.text[at.start]) {
		at.start++
	}
	for at.end > at.start && isSpace(d.text[at.end-1]) {
		at.end--
	}
	return at
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// missing is the error for steps[i], which leads nowhere.
func (d *jsonDocument) missing(at span, steps []string, i int) error {
	where := "the document"
	if i > 0 {
		where = fmt.Sprintf("%q", "/"+strings.Join(steps[:i], "/"))
	}
	kind := jsonType(d.text[at.start:at.end])
	what := fmt.Sprintf("%s is a %s and has nothing in it", where, kind)
	switch members := d.members(at); kind {
	case "array":
		what = fmt.Sprintf("%s is an array of %d items, and %q is none of them", where, len(members), steps[i])
	case "object":
		what = fmt.Sprintf("%s has no key %q", where, steps[i])
		if len(members) > 0 {
			what += "; it has " + someKeys(members)
		}
	}
	return protocol.Errorf(protocol.CodeNotFound, "%q: %s", d.name, what)
}

func someKeys(members []member) string {
	const shown = 20
	var keys []string
	for _, m := range members[:min(len(members), shown)] {
		keys = append(keys, strconv.Quote(prose.Cut(m.key, maxQuoted)))
	}
	if len(members) > shown {
		keys = append(keys, fmt.Sprintf("and %d more", len(members)-shown))
	}
	return strings.Join(keys, ", ")
}

// jsonPointer splits a JSON pointer (RFC 6901) into its steps. Its fault is
// [protocol.CodeInvalidArguments].
func jsonPointer(query string) ([]string, error) {
	if query == "" {
		return nil, nil
	}
	if query[0] != '/' || !utf8.ValidString(query) {
		return nil, protocol.Errorf(protocol.CodeInvalidArguments,
			`the query %q is no JSON pointer: it must be empty, or text that starts with a slash, as in "/dependencies/react" or "/items/0"`, prose.Cut(query, maxQuoted))
	}
	steps := strings.Split(query[1:], "/")
	for i, step := range steps {
		steps[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
	}
	return steps, nil
}

// index reads the step into an array: digits without a leading zero.
func index(step string) (int, bool) {
	if step == "" || len(step) > 9 || step[0] == '0' && step != "0" || strings.Trim(step, "0123456789") != "" {
		return 0, false
	}
	i, err := strconv.Atoi(step)
	return i, err == nil
}

// jsonType names the type of JSON text.
func jsonType(value []byte) string {
	switch value[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	default:
		return "number"
	}
}
