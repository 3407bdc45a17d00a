package argument

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// schemaURL is the base of references inside a schema; nothing is ever loaded.
const schemaURL = "tool:///schema.json"

// Schema is the compiled form of a tool's argument schema.
type Schema struct {
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
	object, ok := document.(map[string]any)
	if !ok || object["type"] != "object" {
		return nil, errors.New(`schema: must be a JSON object with "type": "object"`)
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(noLoader{})
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
// fault, the schema and the text.
func (s *Schema) Read(tool, raw string) (json.RawMessage, *protocol.Error) {
	arguments, faults := parseArguments(raw)
	if len(faults) == 0 {
		faults = s.validate(arguments)
	}
	if len(faults) > 0 {
		return nil, invalidArguments(tool, s, raw, faults)
	}
	encoded, err := encodeArguments(raw, arguments)
	if err != nil {
		return nil, invalidArguments(tool, s, raw, []string{err.Error()})
	}
	return encoded, nil
}

// noLoader keeps schemas from reaching files and hosts.
type noLoader struct{}

var _ jsonschema.URLLoader = noLoader{}

// Load implements [jsonschema.URLLoader].
func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %s: a schema may refer to itself only", url)
}
