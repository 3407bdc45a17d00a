// Package lenient decodes the JSON of model servers. It is lenient in form: a number may be a
// string, an object may stand for a list of one, and nothing that is not read can fail. It is
// strict in meaning: a value that could be read in two ways is an error that names it.
//
// A [Text] comes in pieces, which servers cut anywhere: also in the middle of a character.
package lenient

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

// Fields are the fields of a JSON object.
type Fields map[string]json.RawMessage

// FormError says that a value has no form that the adapter can read.
type FormError struct{ where, is, want string }

func (e *FormError) Error() string { return e.where + " is " + e.is + ", and should be " + e.want }

// WrongForm returns the error of a value that should have another form.
func WrongForm(where string, raw json.RawMessage, want string) error {
	const most = 60
	return &FormError{where, prose.Cut(string(raw), most), want}
}

// FieldsOf returns the fields of an object; none of a value that is not set.
func FieldsOf(where string, raw json.RawMessage) (Fields, error) {
	var object Fields
	if IsSet(raw) && json.Unmarshal(raw, &object) != nil {
		return nil, WrongForm(where, raw, "an object")
	}
	return object, nil
}

// Object is an object of an event. What of it has another form than is asked for is the fault of
// the event, and read as if it were not set.
type Object struct {
	Fields

	Raw   json.RawMessage
	where string
	fault *error
}

// Event returns an event of a stream. Only an event that is JSON has a [*FormError].
func Event(what string, data []byte) (Object, error) {
	var fields Fields
	err := json.Unmarshal(data, &fields)
	if err != nil && json.Valid(data) {
		err = WrongForm(what, data, "an object")
	}
	return Object{Fields: fields, Raw: data, fault: new(error)}, err
}

// Fault is the first fault of the event.
func (o Object) Fault() error { return *o.fault }

// Fail notes a fault of the event.
func (o Object) Fail(err error) {
	if *o.fault == nil {
		*o.fault = err
	}
}

// At names a field in the event.
func (o Object) At(name string) string { return strings.TrimPrefix(o.where+"."+name, ".") }

// Object returns a field that is an object; one without fields if it is not set.
func (o Object) Object(name string) Object { return o.object(o.At(name), o.Fields[name]) }

func (o Object) object(where string, raw json.RawMessage) Object {
	fields, err := FieldsOf(where, raw)
	o.Fail(err)
	return Object{fields, raw, where, o.fault}
}

// Objects returns a field that is a list of objects.
func (o Object) Objects(name string) []Object {
	list, err := List(o.At(name), o.Fields[name])
	o.Fail(err)
	objects := make([]Object, len(list))
	for i, raw := range list {
		objects[i] = o.object(fmt.Sprintf("%s[%d]", o.At(name), i), raw)
	}
	return objects
}

// Index is [Index] of a field.
func (o Object) Index(name string) int {
	index, err := Index(o.At(name), o.Fields[name])
	o.Fail(err)
	return index
}

// String is [String] of a field.
func (o Object) String(name string) string { return String(o.Fields[name]) }

// List returns the elements of a list. An object alone is a list of one.
func List(where string, raw json.RawMessage) ([]json.RawMessage, error) {
	var list []json.RawMessage
	switch {
	case !IsSet(raw):
		return nil, nil
	case Kind(raw) == '{':
		return []json.RawMessage{raw}, nil
	case json.Unmarshal(raw, &list) != nil:
		return nil, WrongForm(where, raw, "a list")
	}
	return list, nil
}

// IsSet reports whether a field is there and not null.
func IsSet(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// IsBlank reports whether a value says nothing: it is not set, empty, zero or false, or has only
// such values.
func IsBlank(raw json.RawMessage) bool {
	switch Kind(raw) {
	case '{':
		var object Fields
		if json.Unmarshal(raw, &object) != nil {
			return false
		}
		for _, value := range object {
			if !IsBlank(value) {
				return false
			}
		}
		return true
	case '[', '"':
		return strings.Trim(string(raw), "[]\" \t\r\n") == ""
	default:
		number, err := Whole(raw)
		return !IsSet(raw) || string(raw) == "false" || err == nil && number == 0
	}
}

// Kind is the first byte of a value: '{', '[', '"', or of a number, boolean or null; 0 of
// none.
func Kind(raw json.RawMessage) byte {
	if len(raw) == 0 {
		return 0
	}
	return raw[0]
}

// IsNumber reports whether a value is a number.
func IsNumber(raw json.RawMessage) bool {
	kind := Kind(raw)
	return kind == '-' || kind >= '0' && kind <= '9'
}

// Whole is a whole number, whichever way it is written: 12, 12.0, "12".
func Whole(raw json.RawMessage) (int64, error) {
	number, err := strconv.ParseFloat(strings.TrimSpace(strings.Trim(string(raw), `"`)), 64)
	if err != nil || number != math.Trunc(number) || math.Abs(number) > 1<<53 {
		return 0, fmt.Errorf("%s: no whole number", raw)
	}
	return int64(number), nil
}

// Index is a position in a list; -1 when there is none.
func Index(where string, raw json.RawMessage) (int, error) {
	if !IsSet(raw) {
		return -1, nil
	}
	index, err := Whole(raw)
	if err != nil || index > math.MaxInt32 {
		return 0, WrongForm(where, raw, "a whole number")
	}
	return max(int(index), -1), nil
}

// String is a name or a message: the text of a string, and the JSON itself of every other value.
func String(raw json.RawMessage) string {
	switch {
	case !IsSet(raw):
		return ""
	case Kind(raw) == '"':
		return strings.ToValidUTF8(Unquote(raw), "\uFFFD")
	default:
		return string(raw)
	}
}

// Written is a piece of a tool call's arguments. A server that sends an object has decoded
// the text of the model, and means all of it; an empty one means that there is none (yet).
func Written(raw json.RawMessage) string {
	switch {
	case Kind(raw) == '"':
		return Unquote(raw)
	case !IsSet(raw), Kind(raw) == '{' && strings.Trim(string(raw), "{} \t\r\n") == "":
		return ""
	default:
		return string(raw)
	}
}

// Piece is a piece of a text, which may be cut within a character; "" of what is no string.
func Piece(raw json.RawMessage) string {
	if Kind(raw) != '"' {
		return ""
	}
	return Unquote(raw)
}

// Count is the first of the named Fields that is a number of things; 0 if none is. A negative or
// very large number counts nothing.
func Count(object Fields, names ...string) int64 {
	for _, name := range names {
		if n, err := Whole(object[name]); err == nil && n >= 0 {
			return n
		}
	}
	return 0
}

// Unquote is the text of a JSON string. It may end, or begin, in the middle of a character, when a
// server cuts its pieces there: bytes that are no UTF-8 stay as they are, and half of a surrogate
// pair becomes the three bytes that UTF-8 would have for it. See [Text].
func Unquote(literal json.RawMessage) string {
	text := make([]byte, 0, len(literal))
	for in := literal[1 : len(literal)-1]; len(in) > 0; {
		switch {
		case in[0] != '\\':
			text, in = append(text, in[0]), in[1:]
		case in[1] != 'u':
			text, in = append(text, unescape(in[1])), in[2:]
		default:
			unit, size := hexUnit(in), 6
			if len(in) >= 12 && in[6] == '\\' && in[7] == 'u' {
				if r := utf16.DecodeRune(unit, hexUnit(in[6:])); r != utf8.RuneError {
					unit, size = r, 12
				}
			}
			text, in = appendUnit(text, unit), in[size:]
		}
	}
	return string(text)
}

func unescape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	default:
		return c
	}
}

// hexUnit is the UTF-16 unit of an escape, as \ud83d.
func hexUnit(escape []byte) rune {
	unit, _ := strconv.ParseUint(string(escape[2:6]), 16, 16) // the JSON was valid
	return rune(unit)
}

// appendUnit is utf8.AppendRune that takes half of a surrogate pair, too.
func appendUnit(text []byte, r rune) []byte {
	if !utf16.IsSurrogate(r) {
		return utf8.AppendRune(text, r)
	}
	return append(text, 0xED, 0x80|byte(r>>6&0x3F), 0x80|byte(r&0x3F))
}

// surrogate is the half of a surrogate pair that three bytes are; 0 of others.
func surrogate(b []byte) rune {
	if b[0] != 0xED || b[1]&0xE0 != 0xA0 || b[2]&0xC0 != 0x80 {
		return 0
	}
	return 0xD000 | rune(b[1]&0x3F)<<6 | rune(b[2]&0x3F)
}

// Text is a text that comes in pieces. They may be cut in the middle of a character, between its
// bytes or between the halves of a surrogate pair.
type Text struct {
	text     []byte
	returned int // bytes that Fresh has returned
}

// Add appends the next piece.
func (g *Text) Add(piece string) {
	if n := len(g.text); n >= 3 && len(piece) >= 3 {
		if r := utf16.DecodeRune(surrogate(g.text[n-3:]), surrogate([]byte(piece[:3]))); r != utf8.RuneError {
			g.text, piece = utf8.AppendRune(g.text[:n-3], r), piece[3:]
		}
	}
	g.text = append(g.text, piece...)
}

// Len is how many bytes the text has. A piece that completes a character adds fewer than its own.
func (g *Text) Len() int { return len(g.text) }

// Fresh returns what was added since the last time, but for a character that is not whole yet.
func (g *Text) Fresh() string {
	end := len(g.text) - unfinished(g.text[g.returned:])
	piece := string(g.text[g.returned:end])
	g.returned = end
	return strings.ToValidUTF8(piece, "\uFFFD")
}

// unfinished is how many bytes at the end of a text are the beginning of a character.
func unfinished(text []byte) int {
	n := len(text)
	if n >= 3 && utf16.IsSurrogate(surrogate(text[n-3:])) && surrogate(text[n-3:]) < 0xDC00 {
		return 3
	}
	return n - prose.Border(text)
}

// String is the whole text; what is no character is a replacement character.
func (g *Text) String() string { return strings.ToValidUTF8(string(g.text), "\uFFFD") }

// Raw is the whole text with what is no character as it came.
func (g *Text) Raw() string { return string(g.text) }

// IsEmpty reports whether nothing was added.
func (g *Text) IsEmpty() bool { return len(g.text) == 0 }
