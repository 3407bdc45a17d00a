package argument

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of the message about invalid arguments.
const (
	// MaxEcho is how many characters of rejected arguments are repeated.
	MaxEcho = 2000

	maxProblems    = 50
	maxProblemText = 500
	maxSchemaShown = 6000
)

// validate coerces arguments in place and returns every problem, in words, sorted.
func (s *Schema) validate(arguments map[string]any, rules Rules) []string {
	coerce(s.compiled, arguments)
	if s.Lenient {
		maps.DeleteFunc(arguments, func(name string, _ any) bool { return s.compiled.Properties[name] == nil })
	}
	problems := s.schemaProblems(arguments)
	if rules != nil {
		problems = append(problems, rules(arguments)...)
	}
	slices.Sort(problems)
	return slices.Compact(problems)
}

// schemaProblems returns what is invalid under the schema.
func (s *Schema) schemaProblems(value any) []string {
	err := s.compiled.Validate(value)
	if err == nil {
		return nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return []string{err.Error()}
	}
	return reporter{schema: s, printer: message.NewPrinter(language.English)}.describe(invalid)
}

// Refusal makes the error that tells a model everything it needs to send the tool call
// again.
func (s *Schema) Refusal(tool, raw string, problems []string) *protocol.Error {
	var b strings.Builder
	fmt.Fprintf(&b, "The arguments of %s were not accepted:\n%s\n", tool, List(problems))
	fmt.Fprintf(&b, "Expected schema: %s\n", prose.Head(s.compact, maxSchemaShown))
	if strings.TrimSpace(raw) == "" {
		b.WriteString("You sent no arguments.")
	} else {
		fmt.Fprintf(&b, "You sent: %s", prose.Head(prose.Valid(raw), MaxEcho))
	}
	b.WriteString("\nCorrect the arguments and call the tool again.")
	return &protocol.Error{Code: protocol.CodeInvalidArguments, Message: b.String()}
}

// List is the text of problems, one a line.
func List(problems []string) string {
	var lines []string
	for i, problem := range problems {
		if i == maxProblems {
			lines = append(lines, fmt.Sprintf("- and %d more", len(problems)-maxProblems))
			break
		}
		lines = append(lines, "- "+prose.Short(prose.Valid(problem), maxProblemText))
	}
	return strings.Join(lines, "\n")
}

// reporter puts the findings of the validator into words for a model.
type reporter struct {
	schema  *Schema
	printer *message.Printer
}

func (r reporter) describe(e *jsonschema.ValidationError) []string {
	place := e.InstanceLocation
	switch k := e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		return []string{r.alternatives(e)}
	case *kind.Required:
		return each(k.Missing, func(name string) string {
			return at(below(place, name), "is required, but missing")
		})
	case *kind.AdditionalProperties:
		return each(k.Properties, func(name string) string {
			return at(below(place, name), "there is no such property; "+r.allowedProperties(e.SchemaURL))
		})
	case *kind.Type:
		return []string{at(place, fmt.Sprintf("must be %s, not %s", strings.Join(k.Want, " or "), k.Got))}
	case *kind.Enum:
		return []string{at(place, fmt.Sprintf("is %s, must be one of %s", shown(k.Got), strings.Join(each(k.Want, shown), ", ")))}
	case *kind.Const:
		return []string{at(place, fmt.Sprintf("is %s, must be %s", shown(k.Got), shown(k.Want)))}
	}
	if what := bound(e.ErrorKind); what != "" {
		return []string{at(place, what)}
	}
	if len(e.Causes) == 0 {
		return []string{at(place, e.ErrorKind.LocalizedString(r.printer))}
	}
	var problems []string
	for _, cause := range e.Causes {
		problems = append(problems, r.describe(cause)...)
	}
	return problems
}

// bound puts a broken bound into words; "" for everything else.
func bound(broken jsonschema.ErrorKind) string {
	switch k := broken.(type) {
	case *kind.Minimum:
		return fmt.Sprintf("is %s, must be %s or more", decimal(k.Got), decimal(k.Want))
	case *kind.Maximum:
		return fmt.Sprintf("is %s, must be %s or less", decimal(k.Got), decimal(k.Want))
	case *kind.ExclusiveMinimum:
		return fmt.Sprintf("is %s, must be more than %s", decimal(k.Got), decimal(k.Want))
	case *kind.ExclusiveMaximum:
		return fmt.Sprintf("is %s, must be less than %s", decimal(k.Got), decimal(k.Want))
	case *kind.MinLength:
		return fmt.Sprintf("has %d characters, must have %d or more", k.Got, k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("has %d characters, must have %d or fewer", k.Got, k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("has %d items, must have %d or more", k.Got, k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("has %d items, must have %d or fewer", k.Got, k.Want)
	case *kind.Pattern:
		return fmt.Sprintf("is %s, must match the pattern %s", shown(k.Got), k.Want)
	default:
		return ""
	}
}

// alternatives says why none of several forms, or more than one, fits.
func (r reporter) alternatives(e *jsonschema.ValidationError) string {
	if len(e.Causes) == 0 {
		return at(e.InstanceLocation, "fits more than one of the allowed forms, must fit exactly one")
	}
	forms := make([]string, 0, len(e.Causes))
	for _, cause := range e.Causes {
		problems := r.describe(cause)
		slices.Sort(problems)
		forms = append(forms, strings.Join(problems, ", "))
	}
	return at(e.InstanceLocation, "fits none of the allowed forms (") + strings.Join(forms, "; or ") + ")"
}

// allowedProperties names the properties of the schema at location.
func (r reporter) allowedProperties(location string) string {
	object, _ := r.lookup(location).(map[string]any)
	properties, _ := object["properties"].(map[string]any)
	if len(properties) == 0 {
		return "none are allowed"
	}
	return "allowed are " + strings.Join(slices.Sorted(maps.Keys(properties)), ", ")
}

// lookup returns the part of the schema document that a location, a URL with a
// JSON pointer as its fragment, points to; nil when there is none.
func (r reporter) lookup(location string) any {
	_, fragment, _ := strings.Cut(location, "#")
	current := r.schema.document
	for step := range strings.SplitSeq(strings.TrimPrefix(fragment, "/"), "/") {
		if step == "" {
			continue
		}
		name, err := url.PathUnescape(step)
		if err != nil {
			return nil
		}
		object, ok := current.(map[string]any)
		if !ok {
			return nil
		}
		current = object[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]
	}
	return current
}

func each[T any](items []T, text func(T) string) []string {
	texts := make([]string, 0, len(items))
	for _, item := range items {
		texts = append(texts, text(item))
	}
	return texts
}

// shown is a value as JSON, cut when it is long.
func shown(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return "that"
	}
	return prose.Short(string(text), 100)
}

func decimal(r *big.Rat) string {
	if r.IsInt() {
		return prose.Short(r.Num().String(), 40)
	}
	f, _ := r.Float64()
	return fmt.Sprint(f)
}

// Patterns of schemas are JavaScript, of which Go knows less: no looking ahead or behind,
// no references to groups. What only JavaScript knows is not checked, which the tool does itself;
// what is a pattern nowhere is an error of the schema.

// compilePattern compiles a pattern.
func compilePattern(pattern string) (jsonschema.Regexp, error) {
	compiled, err := regexp.Compile(goPattern(pattern))
	if isUnsupported(err) || err != nil && emptyClass.MatchString(pattern) {
		return unchecked(pattern), nil
	}
	if err != nil {
		return nil, err
	}
	return compiled, nil
}

// isUnsupported reports whether an error is of a pattern that may be one elsewhere.
func isUnsupported(err error) bool {
	problem, is := errors.AsType[*syntax.Error](err)
	if !is {
		return false
	}
	switch problem.Code {
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

// goPattern writes what has another form in Go.
func goPattern(pattern string) string {
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
			if _, err := regexp.Compile(goPattern(pattern)); isUnsupported(err) {
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
