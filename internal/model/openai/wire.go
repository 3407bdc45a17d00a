package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// This file decodes what servers send. It is lenient in form: a number may be a string, a text a
// list of parts, and nothing that the adapter does not read can fail. It is strict in meaning: a
// value that could be read in two ways is an error that names it.

// fields are the fields of a JSON object.
type fields map[string]json.RawMessage

// formError says that a value has no form that the adapter can read.
type formError struct{ where, is, want string }

func (e *formError) Error() string { return e.where + " is " + e.is + ", and should be " + e.want }

func wrongForm(where string, raw json.RawMessage, want string) error {
	const most = 60
	is := string(raw)
	if len(is) > most {
		is = is[:most] + "..."
	}
	return &formError{where, is, want}
}

// objectOf returns the fields of an object; none of a value that is not set.
func objectOf(where string, raw json.RawMessage) (fields, error) {
	var object fields
	if isSet(raw) && json.Unmarshal(raw, &object) != nil {
		return nil, wrongForm(where, raw, "an object")
	}
	return object, nil
}

// listOf returns the elements of a list. An object alone is a list of one.
func listOf(where string, raw json.RawMessage) ([]json.RawMessage, error) {
	var list []json.RawMessage
	switch {
	case !isSet(raw):
		return nil, nil
	case kindOf(raw) == '{':
		return []json.RawMessage{raw}, nil
	case json.Unmarshal(raw, &list) != nil:
		return nil, wrongForm(where, raw, "a list")
	}
	return list, nil
}

// isSet reports whether a field is there and not null.
func isSet(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// isBlank reports whether a value says nothing: it is not set, empty, zero or false, or has only
// such values.
func isBlank(raw json.RawMessage) bool {
	switch kindOf(raw) {
	case '{':
		var object fields
		if json.Unmarshal(raw, &object) != nil {
			return false
		}
		for _, value := range object {
			if !isBlank(value) {
				return false
			}
		}
		return true
	case '[', '"':
		return strings.Trim(string(raw), "[]\" \t\r\n") == ""
	default:
		number, err := wholeOf(raw)
		return !isSet(raw) || string(raw) == "false" || err == nil && number == 0
	}
}

// kindOf is the first byte of a value: '{', '[', '"', or that of a number, boolean or null; 0 of
// none.
func kindOf(raw json.RawMessage) byte {
	if len(raw) == 0 {
		return 0
	}
	return raw[0]
}

func isNumber(raw json.RawMessage) bool {
	kind := kindOf(raw)
	return kind == '-' || kind >= '0' && kind <= '9'
}

// wholeOf is a whole number, whichever way it is written: 12, 12.0, "12".
func wholeOf(raw json.RawMessage) (int64, error) {
	number, err := strconv.ParseFloat(strings.TrimSpace(strings.Trim(string(raw), `"`)), 64)
	if err != nil || number != math.Trunc(number) || math.Abs(number) > 1<<53 {
		return 0, fmt.Errorf("%s: no whole number", raw)
	}
	return int64(number), nil
}

// indexOf is a place in a list; -1 when there is none.
func indexOf(where string, raw json.RawMessage) (int, error) {
	if !isSet(raw) {
		return -1, nil
	}
	index, err := wholeOf(raw)
	if err != nil || index > math.MaxInt32 {
		return 0, wrongForm(where, raw, "a whole number")
	}
	return max(int(index), -1), nil
}

// textOf is a name or a message: the text of a string, and the JSON itself of every other value.
func textOf(raw json.RawMessage) string {
	switch {
	case !isSet(raw):
		return ""
	case kindOf(raw) == '"':
		return strings.ToValidUTF8(unquote(raw), "\uFFFD")
	default:
		return string(raw)
	}
}

// spoken is what a value of a message says: its text, and what the model thinks in it. A part of
// another kind, as a reference, says nothing.
func spoken(where string, raw json.RawMessage) (text, thought string, err error) {
	switch {
	case !isSet(raw):
		return "", "", nil
	case kindOf(raw) == '"':
		return unquote(raw), "", nil
	case isNumber(raw):
		return string(raw), "", nil
	case kindOf(raw) == '{':
		return spokenPart(where, raw)
	case kindOf(raw) != '[':
		return "", "", wrongForm(where, raw, "a text")
	}
	parts, err := listOf(where, raw)
	for i, part := range parts {
		said, thinks, err := spoken(fmt.Sprintf("%s[%d]", where, i), part)
		if err != nil {
			return "", "", err
		}
		text, thought = text+said, thought+thinks
	}
	return text, thought, err
}

func spokenPart(where string, raw json.RawMessage) (text, thought string, err error) {
	part, err := objectOf(where, raw)
	if err != nil {
		return "", "", err
	}
	for _, name := range []string{"thinking", "reasoning", "text", "refusal"} {
		if !isSet(part[name]) {
			continue
		}
		said, thinks, err := spoken(where+"."+name, part[name])
		if kind := textOf(part["type"]); kind == "thinking" || kind == "reasoning" {
			return "", thinks + said, err
		}
		return said, thinks, err
	}
	return "", "", nil
}

// writtenArguments is a piece of a tool call's arguments. A server that sends an object has decoded
// the text of the model, and means all of it; an empty one means that there is none (yet).
func writtenArguments(raw json.RawMessage) string {
	switch {
	case kindOf(raw) == '"':
		return unquote(raw)
	case !isSet(raw), kindOf(raw) == '{' && strings.Trim(string(raw), "{} \t\r\n") == "":
		return ""
	default:
		return string(raw)
	}
}

// usageOf is what a reply took; 0 for what the server does not say as a number.
func usageOf(raw json.RawMessage) (protocol.Usage, bool) {
	var usage fields
	if !isSet(raw) || json.Unmarshal(raw, &usage) != nil {
		return protocol.Usage{}, false
	}
	detail := func(of ...string) fields {
		for _, name := range of {
			if details, err := objectOf(name, usage[name]); err == nil && len(details) > 0 {
				return details
			}
		}
		return nil
	}
	cached := countIn(detail("prompt_tokens_details", "input_tokens_details"), "cached_tokens")
	return protocol.Usage{
		InputTokens:     countIn(usage, "prompt_tokens", "input_tokens"),
		OutputTokens:    countIn(usage, "completion_tokens", "output_tokens"),
		CachedTokens:    max(cached, countIn(usage, "prompt_cache_hit_tokens")), // of DeepSeek
		ReasoningTokens: countIn(detail("completion_tokens_details", "output_tokens_details"), "reasoning_tokens"),
	}, true
}

// countIn is the first of the named fields that is a number; 0 if none is.
func countIn(object fields, names ...string) int64 {
	for _, name := range names {
		if n, err := wholeOf(object[name]); err == nil {
			return n
		}
	}
	return 0
}

// unquote is the text of a JSON string. It may end, or begin, in the middle of a character, when a
// server cuts its pieces there: bytes that are no UTF-8 stay as they are, and half of a surrogate
// pair becomes the three bytes that UTF-8 would have for it. See [growing].
func unquote(literal json.RawMessage) string {
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

// growing is a text that comes in pieces. They may be cut in the middle of a character, between its
// bytes or between the halves of a surrogate pair.
type growing struct {
	text []byte
	told int // so many bytes were returned by fresh
}

func (g *growing) add(piece string) {
	if n := len(g.text); n >= 3 && len(piece) >= 3 {
		if r := utf16.DecodeRune(surrogate(g.text[n-3:]), surrogate([]byte(piece[:3]))); r != utf8.RuneError {
			g.text, piece = utf8.AppendRune(g.text[:n-3], r), piece[3:]
		}
	}
	g.text = append(g.text, piece...)
}

// fresh returns what was added since the last time, but for a character that is not whole yet.
func (g *growing) fresh() string {
	end := len(g.text) - unfinished(g.text[g.told:])
	piece := string(g.text[g.told:end])
	g.told = end
	return strings.ToValidUTF8(piece, "\uFFFD")
}

// unfinished is how many bytes at the end of a text are the beginning of a character.
func unfinished(text []byte) int {
	n := len(text)
	if n >= 3 && utf16.IsSurrogate(surrogate(text[n-3:])) && surrogate(text[n-3:]) < 0xDC00 {
		return 3
	}
	for i := 1; i <= min(n, utf8.UTFMax-1); i++ {
		if utf8.RuneStart(text[n-i]) {
			if !utf8.FullRune(text[n-i:]) {
				return i
			}
			return 0
		}
	}
	return 0
}

// String is the whole text; what is no character is a replacement character.
func (g *growing) String() string { return strings.ToValidUTF8(string(g.text), "\uFFFD") }
