package toolset_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"testing"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// functionName is what OpenAI's API takes as the name of a function.
var functionName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// The schemas are valid under draft 2020-12, and keep to what OpenAI's API asks of the
// parameters of a function.
func TestToolsets_SchemasAreValid(t *testing.T) {
	t.Parallel()
	meta := jsonschema.NewCompiler().MustCompile("https://json-schema.org/draft/2020-12/schema")
	for _, set := range toolset.Names() {
		for _, definition := range setTable(t, set).Definitions() {
			t.Run(set+"/"+definition.Name, func(t *testing.T) {
				t.Parallel()
				require.Regexp(t, functionName, definition.Name)
				require.LessOrEqual(t, utf8.RuneCountInString(definition.Description), 1024)
				document, err := jsonschema.UnmarshalJSON(bytes.NewReader(definition.Schema))
				require.NoError(t, err)
				require.NoError(t, meta.Validate(document))
				checkObject(t, document, 1)
			})
		}
	}
}

// checkObject checks the schema of an object, and of those in it.
func checkObject(t *testing.T, schema any, depth int) {
	t.Helper()
	object, ok := schema.(map[string]any)
	require.True(t, ok)
	require.Equal(t, "object", object["type"])
	require.LessOrEqual(t, depth, 5, "levels of nesting")
	properties, _ := object["properties"].(map[string]any)
	require.LessOrEqual(t, len(properties), 100)
	required, _ := object["required"].([]any)
	for _, name := range required {
		require.Contains(t, properties, name)
	}
	for name, property := range properties {
		checkProperty(t, name, property, depth)
	}
}

func checkProperty(t *testing.T, name string, property any, depth int) {
	t.Helper()
	fields, ok := property.(map[string]any)
	require.True(t, ok, name)
	for _, unknown := range []string{"$ref", "oneOf", "anyOf", "allOf", "not", "if", "patternProperties", "dependentRequired"} {
		require.NotContains(t, fields, unknown, name)
	}
	if standard, has := fields["default"]; has {
		compiler := jsonschema.NewCompiler()
		require.NoError(t, compiler.AddResource("tool:///x", property))
		require.NoError(t, compiler.MustCompile("tool:///x").Validate(standard), "the default of %s", name)
	}
	switch fields["type"] {
	case "array":
		items, ok := fields["items"].(map[string]any)
		require.True(t, ok, "%s: an array says of what", name)
		if items["type"] == "object" {
			checkObject(t, items, depth+1)
		}
	case "object":
		if _, has := fields["properties"]; has {
			checkObject(t, property, depth+1)
		}
	case nil:
		require.Equal(t, "content", name, "only JSON content may be of any type")
	}
}

// What a tool says of its defaults and bounds in words is what its schema says.
func TestToolsets_DefaultsAreInWords(t *testing.T) {
	t.Parallel()
	for _, set := range toolset.Names() {
		for _, definition := range setTable(t, set).Definitions() {
			var schema struct {
				Required   []string `json:"required"`
				Properties map[string]struct {
					Default     any    `json:"default"`
					Description string `json:"description"`
				} `json:"properties"`
			}
			require.NoError(t, json.Unmarshal(definition.Schema, &schema))
			for name, property := range schema.Properties {
				if property.Default != nil {
					require.Contains(t, property.Description, "Default: ", "%s.%s", definition.Name, name)
					require.NotContains(t, schema.Required, name)
				}
			}
		}
	}
}
