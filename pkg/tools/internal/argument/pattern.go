package argument

import (
	"errors"
	"regexp"
	"regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Patterns of schemas are those of JavaScript, of which Go knows less: no looking ahead or behind,
// no references to groups. What only JavaScript knows is not checked, which the tool does itself;
// what is a pattern nowhere is an error of the schema.

// compilePattern compiles a pattern.
func compilePattern(pattern string) (jsonschema.Regexp, error) {
	compiled, err := regexp.Compile(inGo(pattern))
	if foreign(err) || err != nil && emptyClass.MatchString(pattern) {
		return unchecked(pattern), nil
	}
	if err != nil {
		return nil, err
	}
	return compiled, nil
}

// foreign reports whether an error is of a pattern that may be one elsewhere.
func foreign(err error) bool {
	fault, is := errors.AsType[*syntax.Error](err)
	if !is {
		return false
	}
	switch fault.Code {
	case syntax.ErrMissingBracket, syntax.ErrMissingParen, syntax.ErrUnexpectedParen, syntax.ErrTrailingBackslash, syntax.ErrInvalidUTF8, syntax.ErrMissingRepeatArgument:
		return false
	default:
		return true
	}
}

// emptyClass is [^] or [], which JavaScript reads as any character, and as none.
var emptyClass = regexp.MustCompile(`(?:^|[^\\])\[\^?\]`)

// codeUnit is \uXXXX or \u{X...} behind backslashes that are a pair each.
var codeUnit = regexp.MustCompile(`((?:^|[^\\])(?:\\\\)*)\\u(?:\{([0-9A-Fa-f]{1,6})\}|([0-9A-Fa-f]{4}))`)

// inGo writes what has another form in Go.
func inGo(pattern string) string {
	for was := ""; was != pattern; { // matches may touch
		was = pattern
		pattern = codeUnit.ReplaceAllString(pattern, `${1}\x{${2}${3}}`)
	}
	return pattern
}

// unchecked is a pattern that everything matches.
type unchecked string

func (unchecked) MatchString(string) bool { return true }
func (u unchecked) String() string        { return string(u) }

// dropPatterns takes patterns that cannot be checked away from the names of properties: the rules
// of such a pattern would be those of every property.
func dropPatterns(schema any) {
	switch schema := schema.(type) {
	case []any:
		for _, item := range schema {
			dropPatterns(item)
		}
	case map[string]any:
		rules, _ := schema["patternProperties"].(map[string]any)
		for pattern := range rules {
			if _, err := regexp.Compile(inGo(pattern)); foreign(err) {
				delete(rules, pattern)
				delete(schema, "additionalProperties") // which are others than these
				delete(schema, "unevaluatedProperties")
			}
		}
		for keyword, value := range schema {
			switch keyword {
			case "enum", "const", "default", "examples": // which are values
			default:
				dropPatterns(value)
			}
		}
	}
}
