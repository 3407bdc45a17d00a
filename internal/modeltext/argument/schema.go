// Package argument reads the arguments of tool calls, which a model wrote.
//
//	text ── parse, strictly ──► object ── coerce ──► validate ──► JSON, keys in their order
//	             │                                      │
//	             └────────────── every problem ◄──────────┘──► one message, with the schema
//
// Parsing accepts one JSON object, and refuses ambiguous ones. Coercion accepts unambiguous
// spellings, such as "3" for an integer; see coerce.
package argument

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// schemaURL is the base of references inside a schema; nothing is ever loaded.
const schemaURL = "tool:///schema.json"

// Schema is the compiled form of a tool's argument schema.
type Schema struct {
	Lenient bool // properties that the schema does not have are ignored

	compiled *jsonschema.Schema
	document any    // as parsed
	compact  string // as shown to a model
}

// Compile compiles raw as draft 2020-12 unless it names another draft.
// References lead nowhere but into the schema itself and the standard metaschemas.
func Compile(raw json.RawMessage) (*Schema, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, errors.New(`schema: missing; one without arguments is {"type":"object","properties":{}}`)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("schema: not JSON: %w", err)
	}
	var typeErr error
	if object, ok := document.(map[string]any); !ok || object["type"] != "object" {
		typeErr = errors.New(`schema: must be a JSON object with "type": "object"`)
	}
	if _, ok := document.(map[string]any); !ok {
		return nil, typeErr
	}
	schema, err := compile(raw, document)
	if err = errors.Join(typeErr, err); err != nil {
		return nil, err
	}
	return schema, nil
}

// compile compiles a schema that was parsed.
func compile(raw json.RawMessage, document any) (*Schema, error) {
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(noLoader{})
	compiler.UseRegexpEngine(compilePattern)
	dropPatterns(document)
	if err := compiler.AddResource(schemaURL, document); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	compiled, err := compiler.Compile(schemaURL)
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, fmt.Errorf("schema: not JSON: %w", err)
	}
	return &Schema{compiled: compiled, document: document, compact: compact.String()}, nil
}

// Read takes what a model wrote as the arguments of a tool: one JSON object, strictly;
// blank is the empty object. What it returns is valid under the schema, and what had one
// meaning only is in its canonical form. The error is invalid_tool_arguments, with every
// problem, also of rules, the schema and the text.
func (s *Schema) Read(tool, raw string, rules Rules) (json.RawMessage, *protocol.Error) {
	arguments, problems := parseArguments(raw)
	if arguments != nil {
		problems = append(problems, s.validate(arguments, rules)...)
	}
	if len(problems) > 0 {
		return nil, s.Refusal(tool, raw, problems)
	}
	encoded, err := encodeArguments(raw, arguments)
	if err != nil {
		return nil, s.Refusal(tool, raw, []string{err.Error()})
	}
	return encoded, nil
}

// Rules returns errors of arguments that a schema cannot express, one text each; nil has no rules.
// It gets the arguments after parsing and coercion, even if they do not fit the schema.
type Rules = func(arguments map[string]any) []string

// noLoader keeps schemas from reaching files and hosts.
type noLoader struct{}

var _ jsonschema.URLLoader = noLoader{}

// Load implements [jsonschema.URLLoader].
func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %s: a schema may refer to itself only", url)
}

// encodeArguments is the JSON of arguments that were parsed from raw, with the keys of objects in
// the order in which they were written, which can matter to the receiver.
func encodeArguments(raw string, arguments map[string]any) (json.RawMessage, error) {
	if strings.TrimSpace(raw) == "" {
		return json.Marshal(arguments)
	}
	var out bytes.Buffer
	e := encoder{jsontext.NewDecoder(strings.NewReader(raw)), jsontext.NewEncoder(&out)}
	err := e.value(arguments)
	return bytes.TrimSpace(out.Bytes()), err
}

// encoder writes values while it reads the text from which they were parsed.
type encoder struct {
	order *jsontext.Decoder
	out   *jsontext.Encoder
}

// value writes a value whose text is next. What was made of something of another kind
// has no order of its own.
func (e encoder) value(value any) error {
	object, isObject := value.(map[string]any)
	array, isArray := value.([]any)
	if kind := e.order.PeekKind(); !isObject && !isArray || kind != '{' && kind != '[' {
		encoded, err := json.Marshal(value)
		return cmp.Or(err, e.order.SkipValue(), e.out.WriteValue(encoded))
	}
	if err := e.copy(); err != nil {
		return err
	}
	for i := 0; e.order.PeekKind() != '}' && e.order.PeekKind() != ']'; i++ {
		if isArray {
			if err := e.value(array[i]); err != nil {
				return err
			}
			continue
		}
		name, err := e.order.ReadToken()
		if err != nil {
			return err
		}
		if item, isThere := object[name.String()]; !isThere { // null that was dropped
			err = e.order.SkipValue()
		} else {
			err = cmp.Or(e.out.WriteToken(name), e.value(item))
		}
		if err != nil {
			return err
		}
	}
	return e.copy()
}

// copy writes the token that is next.
func (e encoder) copy() error {
	token, err := e.order.ReadToken()
	if err != nil {
		return err
	}
	return e.out.WriteToken(token)
}

// maxReferences bounds the $ref chain that is followed to find out a type.
const maxReferences = 8

// coerce brings values into the form that the schema s expects, also in properties and items: a
// string that spells a number, boolean, array or object becomes one if s allows no string there;
// an integer loses its fraction and exponent ("3.0", "3e0": 3), because Go's decoder refuses them;
// null is dropped for an optional property that cannot be null. Validation judges everything else.
// Containers are changed in place.
func coerce(s *jsonschema.Schema, value any) any {
	s = resolve(s)
	if s == nil {
		return value
	}
	switch value := value.(type) {
	case map[string]any:
		for name, property := range value {
			inner, ok := s.Properties[name]
			switch {
			case !ok:
			case property == nil && !slices.Contains(s.Required, name) && !allowsNull(inner):
				delete(value, name)
			default:
				value[name] = coerce(inner, property)
			}
		}
		return value
	case []any:
		for i, item := range value {
			value[i] = coerce(itemSchema(s, i), item)
		}
		return value
	case string:
		return coerceString(s, value)
	case json.Number:
		return coerceNumber(s, value)
	default:
		return value
	}
}

// resolve follows references until a schema says something about types or properties.
func resolve(s *jsonschema.Schema) *jsonschema.Schema {
	for range maxReferences {
		if s == nil || s.Ref == nil || s.Types != nil || s.Properties != nil {
			return s
		}
		s = s.Ref
	}
	return nil
}

// itemSchema returns the schema of the item at i of an array, or nil. It knows
// the keywords of draft 2020-12 only.
func itemSchema(s *jsonschema.Schema, i int) *jsonschema.Schema {
	if i < len(s.PrefixItems) {
		return s.PrefixItems[i]
	}
	return s.Items2020
}

func coerceString(s *jsonschema.Schema, text string) any {
	types := typesOf(s)
	if len(types) == 0 || slices.Contains(types, "string") {
		return text
	}
	if slices.Contains(types, "boolean") {
		switch text {
		case "true", "True":
			return true
		case "false", "False":
			return false
		}
	}
	numeric := slices.Contains(types, "number") || slices.Contains(types, "integer")
	if numeric && isNumber(text) {
		return coerceNumber(s, json.Number(text))
	}
	if nested, ok := nestedValue(text, types); ok {
		return coerce(s, nested)
	}
	return text
}

// nestedValue is the array or object that a string holds, when it is of one of the types.
func nestedValue(text string, types []string) (any, bool) {
	trimmed := strings.TrimSpace(text)
	switch {
	case strings.HasPrefix(trimmed, "[") && slices.Contains(types, "array"):
	case strings.HasPrefix(trimmed, "{") && slices.Contains(types, "object"):
	default:
		return nil, false
	}
	p, err := parse(trimmed)
	return p.result, err == nil && len(p.problems) == 0
}

// allowsNull reports whether a schema can be null, as far as its types say.
func allowsNull(s *jsonschema.Schema) bool {
	s = resolve(s)
	return s == nil || s.Types == nil || slices.Contains(typesOf(s), "null")
}

// isNumber reports whether text is a number as JSON writes it, and nothing more.
func isNumber(text string) bool {
	if text == "" || !json.Valid([]byte(text)) {
		return false
	}
	first, last := text[0], text[len(text)-1]
	return (first == '-' || first >= '0' && first <= '9') && last >= '0' && last <= '9' && isComputable(json.Number(text))
}

func coerceNumber(s *jsonschema.Schema, number json.Number) any {
	if !slices.Contains(typesOf(s), "integer") || !isComputable(number) {
		return number
	}
	exact, ok := new(big.Rat).SetString(number.String())
	if !ok || !exact.IsInt() {
		return number
	}
	return json.Number(exact.Num().String())
}

func typesOf(s *jsonschema.Schema) []string {
	if s.Types == nil {
		return nil
	}
	return s.Types.ToStrings()
}

// CompileAnswer compiles the schema of an answer, which may be any JSON value.
func CompileAnswer(raw json.RawMessage) (*Schema, error) {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("schema: not JSON: %w", err)
	}
	if _, isObject := document.(map[string]any); !isObject {
		return nil, errors.New("schema: must be a JSON object")
	}
	return compile(raw, document)
}

// Compact is a JSON value on one line, in one spelling: the same for a value that was stored.
func Compact(raw json.RawMessage) json.RawMessage {
	value := jsontext.Value(slices.Clone(raw))
	if value.Format(jsontext.AllowDuplicateNames(true)) != nil {
		return raw
	}
	return json.RawMessage(value)
}

// JSONIn is the JSON that a model's answer is: all of its text, or that of its only code block.
func JSONIn(text string) string {
	text = strings.TrimSpace(text)
	const fence = "```"
	parts := strings.Split("\n"+text, "\n"+fence)
	if len(parts) != 3 || json.Valid([]byte(text)) {
		return text
	}
	_, block, _ := strings.Cut(parts[1], "\n") // behind the name of its language
	return strings.TrimSpace(block)
}

// Answer reads the answer of a model, and returns every problem of it. Nothing in it is coerced.
func (s *Schema) Answer(text string) (problems []string) {
	p, err := parse(JSONIn(text))
	var syntax *jsontext.SyntacticError
	switch {
	case errors.Is(err, errDeep):
		return []string{err.Error()}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return []string{"it is not JSON: it ends too early"}
	case errors.As(err, &syntax):
		return []string{fmt.Sprintf("it is not JSON: byte %d: %v", syntax.ByteOffset+1, syntax.Err)}
	case err != nil:
		return []string{"it must be one JSON value and nothing else"}
	case p.unfit:
		return p.problems
	}
	problems = slices.Concat(p.problems, s.schemaProblems(p.result))
	slices.Sort(problems)
	return slices.Compact(problems)
}
