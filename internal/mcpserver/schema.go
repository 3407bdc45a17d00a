package mcpserver

import (
	"bytes"
	"encoding/json"
	"reflect"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// aboutValues describes the value of a result.
const aboutValues = "What the tool returned, typed; see docs/wire.md."

// valueSchema is the schema of the value that a tool returns.
func valueSchema(tool *tools.Tool) json.RawMessage {
	schema := &jsonschema.Schema{}
	for _, value := range tool.Returns {
		schema.AnyOf = append(schema.AnyOf, schemaOf(reflect.TypeOf(value)))
	}
	if len(schema.AnyOf) == 1 {
		schema = schema.AnyOf[0]
	}
	if structured := schema.Properties["structured"]; structured != nil {
		*structured = jsonschema.Schema{}
		if !bytes.Contains(tool.Structured, []byte(`"$`)) { // else it refers to its own root
			_ = json.Unmarshal(tool.Structured, structured) // any, if it is none
		}
	}
	schema.Description = aboutValues
	body, err := json.Marshal(schema)
	if err != nil {
		return json.RawMessage(`{}`)
	}
	return body
}

// schemaOf is the schema of the JSON of a type of the wire, to which later versions may add.
func schemaOf(t reflect.Type) *jsonschema.Schema {
	schema, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[protocol.Bytes](): {AnyOf: []*jsonschema.Schema{
			{Type: "string"},
			{Type: "object", Properties: map[string]*jsonschema.Schema{"base64": {Type: "string"}}, Required: []string{"base64"}},
		}},
		reflect.TypeFor[protocol.Millis](): {Type: "integer"},
		reflect.TypeFor[json.RawMessage](): {},
		reflect.TypeFor[time.Time]():       {Type: "string"},
	}})
	if err != nil {
		return &jsonschema.Schema{} // a type that the wire does not have
	}
	loosen(schema)
	return schema
}

// loosen lets objects have more than is known of them.
func loosen(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	s.AdditionalProperties = nil
	loosen(s.Items)
	for _, property := range s.Properties {
		loosen(property)
	}
	for _, property := range s.AnyOf {
		loosen(property)
	}
}
