package argument

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

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
