package argument

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

// Bounds of what is accepted inside arguments.
const (
	maxDepth    = 128 // nested arrays and objects
	maxExponent = 400 // of a number, either way: somewhat beyond a float64
	maxDigits   = 400 // bytes of a number
)

// parseArguments reads what a model wrote: one JSON object, strictly. Blank is
// the empty object. It returns every fault that it could find, and the object, with
// faults too, unless it cannot be validated.
func parseArguments(raw string) (map[string]any, []string) {
	if strings.TrimSpace(raw) == "" {
		return map[string]any{}, nil
	}
	if !utf8.ValidString(raw) {
		return nil, []string{"the arguments are not valid UTF-8"}
	}
	var syntax json.RawMessage
	if err := json.Unmarshal([]byte(raw), &syntax); err != nil {
		return nil, []string{syntaxFault(err)}
	}
	if first := strings.TrimSpace(raw)[0]; first != '{' {
		return nil, []string{"the arguments must be one JSON object, not " + jsonWord(first)}
	}
	p := parse(raw)
	object, ok := p.result.(map[string]any)
	switch {
	case !ok && len(p.faults) == 0:
		return nil, []string{"the arguments must be one JSON object"}
	case p.unfit:
		return nil, p.faults
	default:
		return object, p.faults
	}
}

// parseValue reads JSON text strictly. What is not JSON, or could be read in several ways, is a
// fault.
func parseValue(raw string) (any, []string) {
	if !json.Valid([]byte(raw)) {
		return nil, []string{"not JSON"}
	}
	p := parse(raw)
	return p.result, p.faults
}

// parse reads valid JSON text.
func parse(raw string) *parser {
	p := &parser{decoder: json.NewDecoder(strings.NewReader(raw))}
	p.decoder.UseNumber()
	p.result = p.value(nil)
	if hasLoneSurrogate(raw) {
		p.fault(nil, `a \u escape is half of a surrogate pair: write the character itself`)
	}
	return p
}

func syntaxFault(err error) string {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return "the arguments are not JSON: " + err.Error()
	}
	if strings.Contains(syntax.Error(), "unexpected end") {
		return "the arguments are not JSON: they end too early, as if they were cut off"
	}
	if strings.Contains(syntax.Error(), "after top-level value") {
		return fmt.Sprintf("the arguments must be one JSON object and nothing else: there is more at byte %d (%v)", syntax.Offset, syntax)
	}
	return fmt.Sprintf("the arguments are not JSON: byte %d: %v", syntax.Offset, syntax)
}

func jsonWord(first byte) string {
	switch first {
	case '[':
		return "an array"
	case '"':
		return "a string (do not encode the object a second time)"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	default:
		return "a number"
	}
}

// parser builds the value of valid JSON text, with numbers as they are written,
// and finds what encoding/json would swallow.
type parser struct {
	decoder *json.Decoder
	result  any
	faults  []string
	unfit   bool // the result is not whole, or has numbers that cannot be computed with
}

func (p *parser) fault(path []string, format string, args ...any) {
	p.faults = append(p.faults, at(path, fmt.Sprintf(format, args...)))
}

// value reads the next value, which is at path. Its depth is the length of path.
func (p *parser) value(path []string) any {
	token, err := p.decoder.Token()
	if err != nil {
		if !errors.Is(err, io.EOF) || len(p.faults) == 0 {
			p.fault(path, "not JSON: %v", err)
		}
		return nil
	}
	if len(path) > maxDepth {
		p.fault(nil, "more than %d levels of nesting", maxDepth)
		p.unfit, p.decoder = true, json.NewDecoder(strings.NewReader("")) // read no further
		return nil
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '{' {
			return p.object(path)
		}
		return p.array(path)
	case json.Number:
		if !sensible(token) {
			p.unfit = true
			p.fault(path, "the number %s is out of range", prose.Short(token.String(), 40))
		}
		return token
	default:
		return token
	}
}

func (p *parser) object(path []string) map[string]any {
	object := map[string]any{}
	for p.decoder.More() {
		token, err := p.decoder.Token()
		key, ok := token.(string)
		if err != nil || !ok {
			p.fault(path, "not a JSON object")
			return object
		}
		inside := below(path, key)
		if _, twice := object[key]; twice {
			p.fault(inside, "is there more than once: send each property once")
		}
		object[key] = p.value(inside)
	}
	p.end(path)
	return object
}

func (p *parser) array(path []string) []any {
	array := []any{}
	for p.decoder.More() {
		array = append(array, p.value(below(path, strconv.Itoa(len(array)))))
	}
	p.end(path)
	return array
}

// end reads the closing delimiter.
func (p *parser) end(path []string) {
	if _, err := p.decoder.Token(); err != nil && len(p.faults) == 0 {
		p.fault(path, "not JSON: %v", err)
	}
}

// sensible reports whether n is a number that can be computed with: finite as a
// float64, and not so long that exact arithmetic on it would cost much.
func sensible(n json.Number) bool {
	text := n.String()
	if len(text) > maxDigits {
		return false
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		exponent, err := strconv.Atoi(strings.TrimPrefix(text[i+1:], "+"))
		if err != nil || exponent > maxExponent || exponent < -maxExponent {
			return false
		}
	}
	_, err := n.Float64()
	return err == nil
}

// hasLoneSurrogate reports whether valid JSON text has a \u escape of half a
// character, which decoding would replace silently.
func hasLoneSurrogate(raw string) bool {
	for {
		i := strings.IndexByte(raw, '\\')
		if i < 0 {
			return false
		}
		raw = raw[i:]
		unit, ok := escapedUnit(raw)
		if !ok {
			raw = raw[min(2, len(raw)):]
			continue
		}
		raw = raw[6:]
		switch {
		case unit >= 0xdc00 && unit <= 0xdfff:
			return true
		case unit >= 0xd800 && unit <= 0xdbff:
			low, ok := escapedUnit(raw)
			if !ok || low < 0xdc00 || low > 0xdfff {
				return true
			}
			raw = raw[6:]
		}
	}
}

// escapedUnit reads the UTF-16 unit of a \uXXXX escape at the start of s.
func escapedUnit(s string) (uint64, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(s[2:6], 16, 16)
	return unit, err == nil
}

// below returns a copy of path with one more step.
func below(path []string, step string) []string {
	return append(slices.Clip(path), step)
}

// at puts the path of an error before its message.
func at(path []string, what string) string {
	if len(path) == 0 {
		return what
	}
	return prose.Short(strings.Join(path, "."), 200) + ": " + what
}

// Decode reads arguments that are valid JSON, numbers as they are written.
func Decode(raw json.RawMessage) (map[string]any, error) {
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.UseNumber()
	var arguments map[string]any
	err := decoder.Decode(&arguments)
	return arguments, err
}
