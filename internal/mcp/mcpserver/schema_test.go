package mcpserver_test

import (
	"encoding/json"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// TestTools_ReturnWhatTheySay: each core tool's results fit the schema that it tells, which knows
// the type of the value.
func TestTools_ReturnWhatTheySay(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	c := connect(t, s, nil)
	listed, err := c.ListTools(t.Context(), nil)
	require.NoError(t, err)
	schemas := map[string]*jsonschema.Resolved{}
	for _, tool := range listed.Tools {
		body, err := json.Marshal(tool.OutputSchema)
		require.NoError(t, err)
		var schema jsonschema.Schema
		require.NoError(t, json.Unmarshal(body, &schema))
		value := schema.Properties["value"]
		require.NotEmpty(t, len(value.Properties)+len(value.AnyOf), tool.Name)
		schemas[tool.Name], err = schema.Resolve(nil)
		require.NoError(t, err)
		require.Error(t, schemas[tool.Name].Validate(map[string]any{"status": "ok", "session_id": "s", "value": map[string]any{}}), "of %s not everything is a value", tool.Name)
	}
	called := map[string]bool{}
	for _, one := range []struct{ tool, arguments string }{
		{"write", `{"path": "a.txt", "content": "one\ntwo\n"}`},
		{"read", `{"path": "a.txt"}`},
		{"edit", `{"path": "a.txt", "old": "one", "new": "three"}`},
		{"multi_edit", `{"path": "a.txt", "edits": [{"old": "two", "new": "four"}]}`},
		{"exists", `{"path": "a.txt"}`},
		{"exists", `{"path": "none"}`},
		{"list", `{}`},
		{"tree", `{}`},
		{"glob", `{"pattern": "*"}`},
		{"grep", `{"pattern": "four"}`},
		{"grep", `{"pattern": "nothing"}`},
		{"json_write", `{"path": "a.json", "content": {"a": 1}}`},
		{"json_read", `{"path": "a.json"}`},
		{"bash", `{"command": "echo out; echo err >&2; exit 3"}`},
		{"bash", `{"command": "printf '\\377'"}`},
		{"bash", `{"command": "sleep 60", "background": true}`},
		{"bash", `{"command": "seq 1 60000"}`},
		{"run_code", `{"language": "sh", "code": "echo hello"}`},
		{"process", `{"action": "list"}`},
		{"read", `{"path": "none"}`},
	} {
		result := call(t, c, one.tool, json.RawMessage(one.arguments))
		require.NoError(t, schemas[one.tool].Validate(result.StructuredContent), "%s %s: %v", one.tool, one.arguments, result.StructuredContent)
		called[one.tool] = called[one.tool] || as[map[string]any](t, result.StructuredContent)["value"] != nil
	}
	for _, tool := range toolset.Core() {
		require.True(t, called[tool.Name], tool.Name)
	}
}
