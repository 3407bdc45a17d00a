package tools_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// FuzzSchema makes a tool of whatever schema somebody could write: it is refused with
// the tool's name, or arguments are held to it without a panic, and what is accepted
// passes a second time as it is.
func FuzzSchema(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"type":"object","properties":{"a":{"type":"integer","minimum":1}},"required":["a"]}`, `{"a":"3.0"}`},
		{`{"type":"object","$defs":{"x":{"$ref":"#/$defs/x"}},"properties":{"a":{"$ref":"#/$defs/x"}}}`, `{"a":[{}]}`},
		{`{"type":"object","properties":{"a":{"type":["array","null"],"items":{"$ref":"#"}}}}`, `{"a":"[{\"a\":null}]"}`},
		{`{"type":"object","patternProperties":{"(":{}}}`, `{}`},
		{`{"type":"object","$ref":"http://example.com/x"}`, `{}`},
		{`{"type":"object","additionalProperties":{"oneOf":[{"type":"boolean"},{"const":1e400}]}}`, `{"x":"true"}`},
		{`{"type":"object","properties":{"":{"type":"object","maxProperties":0}}}`, `{"":"{}"}`},
		{`[]`, ``},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, schema, raw string) {
		var got string
		table, err := tools.NewTable(tools.Tool{
			Definition: tools.Definition{Name: "fuzzed", Description: "x", Schema: json.RawMessage(schema)},
			Plan: func(_ tools.Scope, arguments json.RawMessage) (tools.Plan, *protocol.Error) {
				got = string(arguments)
				return tools.Plan{Payload: wire.Noop{}}, nil
			},
		})
		if err != nil {
			require.ErrorContains(t, err, "invalid tool ")
			require.ErrorContains(t, err, "fuzzed")
			return
		}
		_, _, refusal := table.Plan(scope, "fuzzed", raw)
		if refusal != nil {
			require.Equal(t, protocol.CodeInvalidArguments, refusal.Code, refusal.Message)
			return
		}
		require.True(t, json.Valid([]byte(got)))
		first := got
		_, _, refusal = table.Plan(scope, "fuzzed", first)
		require.Nil(t, refusal, "%q became %q", raw, first)
		require.Equal(t, first, got)
	})
}
