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

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

// Bounds of arguments.
const (
	maxDepth    = 128 // nested arrays and objects
	maxExponent = 400 // of a number, either way: somewhat beyond a float64
	maxDigits   = 400 // bytes of a number
)

// errDeep ends the reading of a value that is nested too deeply.
var errDeep = fmt.Errorf("more than %d levels of nesting", maxDepth)

// parseArguments reads what a model wrote: one JSON object, strictly. Blank is
// the empty object. It returns every problem that it could find, and the object, with
// problems too, unless it cannot be validated.
func parseArguments(raw string) (map[string]any, []string) {
	if strings.TrimSpace(raw) == "" {
		return map[string]any{}, nil
	}
	if !utf8.ValidString(raw) {
		return nil, []string{"the arguments are not valid UTF-8"}
	}
	p, err := parse(raw)
	object, isObject := p.result.(map[string]any)
	switch {
	case errors.Is(err, errDeep):
		return nil, append(p.problems, err.Error())
	case err != nil:
		return nil, []string{syntaxProblem(err)}
	case !isObject:
		return nil, []string{"the arguments must be one JSON object, not " + jsonWord(p.result)}
	case p.unfit:
		return nil, p.problems
	default:
		return object, p.problems
	}
}

// syntaxProblem describes the error of a text that is not one JSON value.
func syntaxProblem(err error) string {
	var syntax *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the arguments are not JSON: they end too early, as if they were cut off"
	case errors.As(err, &syntax):
		return fmt.Sprintf("the arguments are not JSON: byte %d: %v", syntax.ByteOffset+1, syntax.Err)
	default:
		return err.Error()
	}
}

func jsonWord(value any) string {
	switch value.(type) {
	case []any:
		return "an array"
	case string:
		return "a string (do not encode the object a second time)"
	case bool:
		return "a boolean"
	case nil:
		return "null"
	default:
		return "a number"
	}
}

// parser builds the value of JSON text, with numbers as they are written, and finds properties that
// are there twice.
type parser struct {
	decoder  *jsontext.Decoder
	result   any
	problems []string
	unfit    bool // the result has numbers that cannot be computed with
}

// parse reads JSON text strictly: characters that are none are errors, too.
func parse(raw string) (*parser, error) {
	p := &parser{decoder: jsontext.NewDecoder(strings.NewReader(raw), jsontext.AllowDuplicateNames(true))}
	var err error
	if p.result, err = p.value(); err != nil {
		return p, err
	}
	end := p.decoder.InputOffset()
	if _, err = p.decoder.ReadToken(); errors.Is(err, io.EOF) {
		return p, nil
	}
	return p, fmt.Errorf("the arguments must be one JSON object and nothing else: there is more at byte %d", end+1)
}

// problem adds a problem of the value or the name that was read last. Problems that no refusal
// shows are only counted: the path of each would take as long as the names in it are.
func (p *parser) problem(what string) {
	if len(p.problems) < maxProblems {
		what = at(slices.Collect(p.decoder.StackPointer().Tokens()), what)
	}
	p.problems = append(p.problems, what)
}

// value reads the next value.
func (p *parser) value() (any, error) {
	if p.decoder.StackDepth() > maxDepth {
		return nil, errDeep
	}
	token, err := p.decoder.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case '{':
		return p.object()
	case '[':
		array := []any{}
		for p.decoder.PeekKind() != ']' {
			item, err := p.value()
			if err != nil {
				return nil, err
			}
			array = append(array, item)
		}
		_, err = p.decoder.ReadToken()
		return array, err
	case '0':
		number := json.Number(token.String())
		if !isComputable(number) {
			p.unfit = true
			p.problem("the number " + prose.Short(number.String(), 40) + " is out of range")
		}
		return number, nil
	case '"':
		return token.String(), nil
	case 'n':
		return nil, nil //nolint:nilnil // null
	default:
		return token.Bool(), nil
	}
}

func (p *parser) object() (any, error) {
	object := map[string]any{}
	for p.decoder.PeekKind() != '}' {
		token, err := p.decoder.ReadToken()
		if err != nil {
			return nil, err
		}
		name := token.String()
		if _, twice := object[name]; twice {
			p.problem("is there more than once: send each property once")
		}
		if object[name], err = p.value(); err != nil {
			return nil, err
		}
	}
	_, err := p.decoder.ReadToken()
	return object, err
}

// isComputable reports whether n is a number that can be computed with: finite as a
// float64, and not so long that exact arithmetic on it would cost much.
func isComputable(n json.Number) bool {
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
