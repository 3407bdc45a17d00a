package tools_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

func help() []tools.Tool {
	help, _ := toolset.Named("help")
	return help
}

func documented() []tools.Tool {
	plain, full := tool("plain", noArguments), tool("full", `{"type":"object","properties":{"a":{"type":"string"}}}`)
	full.Help, full.Hint = "  Example: {\"a\": \"b\"}\n", " Prefer full to plain. "
	native := tools.Tool{Definition: tools.Definition{
		Name: "web_search", Description: "Search.", Native: map[string]json.RawMessage{"openai": json.RawMessage(`{"type":"web_search"}`)},
	}}
	return append(help(), plain, full, native)
}

func TestDocument_IsAllThatThereIs(t *testing.T) {
	t.Parallel()
	table := newTable(t, documented()...)
	text, found := table.Document("full")
	require.True(t, found)
	const want = "full\n\nDoes nothing.\n\nExample: {\"a\": \"b\"}\n\nArguments (JSON Schema):\n{\n  \"type\": \"object\",\n  \"properties\": {\n" +
		"    \"a\": {\n      \"type\": \"string\"\n    }\n  }\n}\n"
	require.Equal(t, want, text)
	text, found = table.Document("web_search")
	require.True(t, found)
	require.Contains(t, text, "run by the model's provider")
	_, found = table.Document("nothing")
	require.False(t, found)
}

func TestHelp_KnowsTheToolsOfItsTable(t *testing.T) {
	t.Parallel()
	table := newTable(t, documented()...)
	_, plan, refusal := table.Plan(tools.Scope{}, "tool_help", `{"name":"full"}`)
	require.Nil(t, refusal)
	text, failure := plan.RunInline(t.Context())
	require.Nil(t, failure)
	require.Contains(t, text, `Example: {"a": "b"}`)
	_, _, refusal = table.Plan(tools.Scope{}, "tool_help", `{"name":"ful"}`)
	require.Equal(t, codes.UnknownTool, refusal.Code)
	require.Contains(t, refusal.Message, `Did you mean "full"?`)
	other := newTable(t, help()...)
	_, _, refusal = other.Plan(tools.Scope{}, "tool_help", `{"name":"full"}`)
	require.NotNil(t, refusal, "each table has its own")
}

func TestHints_AreInOneOrder(t *testing.T) {
	t.Parallel()
	all := documented()
	all[1].Hint = "Only when\x00\xff asked."
	want := "About the tools:\n- full: Prefer full to plain.\n- plain: Only when\x00\uFFFD asked."
	require.Equal(t, want, newTable(t, all...).Hints("openai"))
	all[0], all[3] = all[3], all[0]
	require.Equal(t, want, newTable(t, all...).Hints("openai"))
	require.Empty(t, newTable(t, toolset.Core()...).Hints("openai"))
	all[0].Hint = "Search before you guess."
	require.Equal(t, want+"\n- web_search: Search before you guess.", newTable(t, all...).Hints("openai"))
	require.Equal(t, want, newTable(t, all...).Hints("other"), "a tool that a model does not have is not spoken of")
	require.Equal(t, want, newTable(t, all...).Hints(""))
}

func TestNative_IsDeclaredAndNeverRun(t *testing.T) {
	t.Parallel()
	table := newTable(t, documented()...)
	require.Equal(t, table.Definitions(), table.DefinitionsFor("openai"))
	require.Len(t, table.DefinitionsFor("other"), len(table.Names())-1)
	_, plan, refusal := table.Plan(tools.Scope{Session: "s", Sandbox: "s"}, "web_search", `{"query":"x"}`)
	require.Equal(t, tools.Plan{}, plan)
	require.Contains(t, refusal.Message, "run by the model's provider, and cannot be called here")
	for _, bad := range []string{`[]`, `{}`, `{"type":1}`, `{`} {
		native := tools.Tool{Definition: tools.Definition{Name: "n", Description: "N.", Native: map[string]json.RawMessage{"openai": json.RawMessage(bad)}}}
		_, err := tools.NewTable(native)
		require.ErrorContains(t, err, "native.openai: must be a JSON object", bad)
	}
}
