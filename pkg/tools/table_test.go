package tools_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

const noArguments = `{"type":"object","properties":{}}`

// tool makes a tool whose plan is a noop.
func tool(name, schema string) tools.Tool {
	return tools.Tool{
		Definition: tools.Definition{Name: name, Description: "Does nothing.", Schema: json.RawMessage(schema)},
		Plan: func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			return tools.Plan{Payload: wire.Noop{}}, nil
		},
	}
}

func newTable(t *testing.T, all ...tools.Tool) *tools.Table {
	t.Helper()
	table, err := tools.NewTable(all...)
	require.NoError(t, err)
	return table
}

func TestNewTable_RefusesWhatAModelCouldNotUse(t *testing.T) {
	t.Parallel()
	withoutDescription := tool("mute", noArguments)
	withoutDescription.Description = " \n"
	withoutPlan := tool("idle", noArguments)
	withoutPlan.Plan = nil

	for name, test := range map[string]struct {
		tools []tools.Tool
		says  []string
	}{
		"two tools of one name":        {[]tools.Tool{tool("twin", noArguments), tool("twin", noArguments)}, []string{`"twin"`}},
		"three tools of one name once": {[]tools.Tool{tool("a", noArguments), tool("a", noArguments), tool("a", noArguments)}, []string{`"a"`}},
		"a built-in name":              {append(toolset.Core(), tool("bash", noArguments)), []string{`"bash"`}},
		"no name":                      {[]tools.Tool{tool("", noArguments)}, []string{`""`, "1 to 64"}},
		"a long name":                  {[]tools.Tool{tool(strings.Repeat("n", 65), noArguments)}, []string{"1 to 64"}},
		"a name with a blank":          {[]tools.Tool{tool("two words", noArguments)}, []string{`"two words"`, `' '`}},
		"a name with an umlaut":        {[]tools.Tool{tool("grün", noArguments)}, []string{`"grün"`}},
		"no description":               {[]tools.Tool{withoutDescription}, []string{`"mute"`, "description"}},
		"no plan":                      {[]tools.Tool{withoutPlan}, []string{`"idle"`, "plan"}},
		"no schema":                    {[]tools.Tool{tool("bare", "")}, []string{`"bare"`, "schema: missing"}},
		"a schema that is not JSON":    {[]tools.Tool{tool("torn", `{"type":`)}, []string{`"torn"`, "not JSON"}},
		"a schema of another type":     {[]tools.Tool{tool("list-er", `{"type":"array"}`)}, []string{`"list-er"`, `"type": "object"`}},
		"a schema without type":        {[]tools.Tool{tool("any", `{}`)}, []string{`"any"`, `"type": "object"`}},
		"a boolean schema":             {[]tools.Tool{tool("yes", `true`)}, []string{`"yes"`, `"type": "object"`}},
		"a schema with a wrong keyword": {
			[]tools.Tool{tool("odd", `{"type":"object","properties":{"a":{"type":"text"}}}`)}, []string{`"odd"`, "schema"},
		},
		"a schema with a broken pattern": {
			[]tools.Tool{tool("re", `{"type":"object","properties":{"a":{"pattern":"("}}}`)}, []string{`"re"`},
		},
		"a schema that refers to a file": {
			[]tools.Tool{tool("leak", `{"type":"object","$ref":"file:///etc/passwd"}`)}, []string{`"leak"`, "itself only"},
		},
		"a schema that refers to a host": {
			[]tools.Tool{tool("call", `{"type":"object","$ref":"http://127.0.0.1:1/x"}`)}, []string{`"call"`, "itself only"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table, err := tools.NewTable(test.tools...)
			require.Nil(t, table)
			require.ErrorContains(t, err, "invalid tool ")
			for _, word := range test.says {
				require.ErrorContains(t, err, word)
			}
		})
	}
}

func TestNewTable_ReportsEveryFault(t *testing.T) {
	t.Parallel()
	bad := tool("b@d", `{"type":"array"}`)
	bad.Description = ""
	bad.Plan = nil
	_, err := tools.NewTable(bad, tool("twin", noArguments), tool("twin", `nonsense`), tool("worse", `[]`))
	for _, word := range []string{`"b@d": name`, `"b@d": description`, `"b@d": plan`, `"b@d": schema`, `"twin": the name is defined more than once`, `"twin": schema`, `"worse": schema`} {
		require.ErrorContains(t, err, word)
	}
}

func TestNewTable_AcceptsNamesOfEveryAllowedForm(t *testing.T) {
	t.Parallel()
	names := []string{"a", "A-Z_09", strings.Repeat("x", 64), "-", "0"}
	all := make([]tools.Tool, 0, len(names))
	for _, name := range names {
		all = append(all, tool(name, noArguments))
	}
	require.ElementsMatch(t, names, newTable(t, all...).Names())
}

func TestNewTable_AcceptsASchemaWithItsOwnDraftAndReferences(t *testing.T) {
	t.Parallel()
	table := newTable(t, tool("old", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"$ref":"#/definitions/a"}},"definitions":{"a":{"type":"integer"}}}`))
	_, _, err := table.Plan(scope, "old", `{"a":"7"}`)
	require.Nil(t, err)
	_, _, err = table.Plan(scope, "old", `{"a":[]}`)
	require.Equal(t, protocol.CodeInvalidArguments, err.Code)
}

func TestTable_IsSortedAndNeverChanges(t *testing.T) {
	t.Parallel()
	given := []tools.Tool{tool("c", noArguments), tool("a", noArguments), tool("b", noArguments)}
	table := newTable(t, given...)

	given[0].Schema[0] = 'X'
	given[1].Name = "other"
	table.Names()[0] = "other"
	table.Definitions()[0].Schema[0] = 'X'
	looked, ok := table.Lookup("a")
	require.True(t, ok)
	looked.Name = "other"

	require.Equal(t, []string{"a", "b", "c"}, table.Names())
	for i, definition := range table.Definitions() {
		require.Equal(t, table.Names()[i], definition.Name)
		require.JSONEq(t, noArguments, string(definition.Schema))
	}
	again, ok := table.Lookup("a")
	require.True(t, ok)
	require.Equal(t, "a", again.Name)
	_, ok = table.Lookup("other")
	require.False(t, ok)
}

func TestTable_OfNothingIsATable(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	require.Empty(t, table.Names())
	require.Empty(t, table.Definitions())
	_, _, err := table.Plan(scope, "read", "{}")
	require.Equal(t, codes.UnknownTool, err.Code)
	require.Contains(t, err.Message, "no tools are available")
}
