package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schemaURL is the base of references inside a schema; nothing is ever loaded.
const schemaURL = "tool:///schema.json"

// schema is the compiled form of a tool's argument schema.
type schema struct {
	compiled *jsonschema.Schema
	document any    // as parsed
	compact  string // as shown to a model
}

// compileSchema compiles raw as draft 2020-12 unless it names another draft.
// References lead nowhere but into the schema itself and the standard metaschemas.
func compileSchema(raw json.RawMessage) (*schema, error) {
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
	return &schema{compiled: compiled, document: document, compact: compact.String()}, nil
}

// noLoader keeps schemas from reaching files and hosts.
type noLoader struct{}

var _ jsonschema.URLLoader = noLoader{}

// Load implements [jsonschema.URLLoader].
func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %s: a schema may refer to itself only", url)
}
