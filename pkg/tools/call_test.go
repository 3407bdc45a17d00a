package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

func TestCall_Defaults(t *testing.T) {
	t.Parallel()
	issued := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	call, err := tools.Plan{Payload: wire.Noop{}}.Call(scope, tools.Place{ID: "id", Turn: 2, Step: 3, Index: 4}, "c1", "noop", issued)
	require.Nil(t, err)
	require.Equal(t, protocol.Call{
		ID: "id", SessionID: "session-1", ToolCallID: "c1", Tool: "noop",
		Turn: 2, Step: 3, Index: 4,
		Pool: protocol.DefaultPool, Resources: use("sandbox/box", protocol.Exclusive), Delivery: protocol.Rollback,
		IssuedAt: issued, RunTimeout: protocol.MillisOf(protocol.DefaultRunTimeout), Payload: wire.Noop{},
	}, call)
	require.NoError(t, call.Validate())
}

func TestCall_TakesWhatThePlanSays(t *testing.T) {
	t.Parallel()
	resources := use("account/acme", protocol.Shared)
	plan := tools.Plan{
		Payload: wire.Noop{}, Resources: resources, Delivery: protocol.AtMostOnce, Timeout: time.Microsecond, Pool: "gpu",
	}
	call, err := plan.Call(scope, tools.Place{Turn: 1, Step: 1}, "", "pay", time.Now())
	require.Nil(t, err)
	require.Equal(t, use("account/acme", protocol.Shared), call.Resources)
	require.Equal(t, protocol.AtMostOnce, call.Delivery)
	require.Equal(t, protocol.Millis(1), call.RunTimeout, "never rounded to the default")
	require.Equal(t, protocol.Pool("gpu"), call.Pool)
	resources[0].Key = "changed/later"
	require.Equal(t, use("account/acme", protocol.Shared), call.Resources)
}

func TestCall_OfNoResourceHasALaneOfItsOwn(t *testing.T) {
	t.Parallel()
	plan := tools.Plan{Payload: wire.Noop{}, Resources: []protocol.Use{}}
	first, err := plan.Call(scope, tools.Place{Turn: 1, Step: 1}, "", "noop", time.Now())
	require.Nil(t, err)
	second, err := plan.Call(scope, tools.Place{Turn: 1, Step: 1, Index: 1}, "", "noop", time.Now())
	require.Nil(t, err)
	require.Equal(t, use("call/"+string(first.ID), protocol.Exclusive), first.Resources)
	require.NotEqual(t, first.Lane(), second.Lane())
}

func TestCall_WithoutAnIDIsNeverTheSameCall(t *testing.T) {
	t.Parallel()
	id := func(at tools.Place) protocol.CallID {
		call, err := tools.Plan{Payload: wire.Noop{}}.Call(scope, at, "", "noop", time.Now())
		require.Nil(t, err)
		return call.ID
	}
	for _, at := range []tools.Place{{}, {Turn: 1, Step: 2, Index: 3}} {
		first, again := id(at), id(at)
		require.NotEqual(t, first, again)
	}
}

func TestCall_BrokenPlansAreInternalErrors(t *testing.T) {
	t.Parallel()
	place := tools.Place{Turn: 1, Step: 1}
	for name, test := range map[string]struct {
		plan  tools.Plan
		scope tools.Scope
	}{
		"inline":             {tools.Plan{Inline: func(context.Context) (string, *protocol.Error) { return "", nil }}, scope},
		"two lanes":          {tools.Plan{Payload: wire.Noop{}, Resources: append(use("a/b", protocol.Shared), use("c/d", protocol.Shared)...)}, scope},
		"not canonical":      {tools.Plan{Payload: wire.Noop{}, Resources: use("a/./b", protocol.Shared)}, scope},
		"too many resources": {tools.Plan{Payload: wire.Noop{}, Resources: make([]protocol.Use, 65)}, scope},
		"a strange delivery": {tools.Plan{Payload: wire.Noop{}, Delivery: "twice"}, scope},
		"a negative timeout": {tools.Plan{Payload: wire.Noop{}, Timeout: -time.Second}, scope},
		"a strange pool":     {tools.Plan{Payload: wire.Noop{}, Pool: "A B"}, scope},
		"no sandbox":         {tools.Plan{Payload: wire.Noop{}}, tools.Scope{Session: "s"}},
		"a nested sandbox":   {tools.Plan{Payload: wire.Noop{}}, tools.Scope{Session: "s", Sandbox: "a/b"}},
		"no session":         {tools.Plan{Payload: wire.Noop{}}, tools.Scope{Sandbox: "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call, err := test.plan.Call(test.scope, place, "", "bad", time.Now())
			require.NotNil(t, err)
			require.Equal(t, protocol.CodeInternal, err.Code)
			require.Equal(t, protocol.Call{}, call)
		})
	}
}

func use(key string, access protocol.Access) []protocol.Use {
	return []protocol.Use{{Key: protocol.ResourceKey(key), Access: access}}
}

type convertArguments struct {
	Amount float64  `json:"amount" jsonschema:"how much"`
	To     []string `json:"to,omitempty"`
	Deep   *struct {
		N int `json:"n"`
	} `json:"deep,omitempty"`
}

func runFunction(t *testing.T, tool tools.Tool, arguments string) (string, *protocol.Error) {
	t.Helper()
	table, err := tools.NewTable(tool)
	require.NoError(t, err)
	_, plan, refusal := table.Plan(tools.Scope{Session: "s", Sandbox: "s"}, tool.Name, arguments)
	if refusal != nil {
		return "", refusal
	}
	require.NotNil(t, plan.Inline)
	return plan.RunInline(t.Context())
}

func TestNew_SchemaIsThatOfTheArguments(t *testing.T) {
	t.Parallel()
	tool := tools.New("convert", "Convert.", func(context.Context, convertArguments) (string, error) { return "", nil })
	require.JSONEq(t, `{
		"type": "object",
		"properties": {
			"amount": {"type": "number", "description": "how much"},
			"to": {"type": ["null", "array"], "items": {"type": "string"}},
			"deep": {"type": ["null", "object"], "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}
		},
		"required": ["amount"],
		"additionalProperties": false
	}`, string(tool.Schema))
}

func TestNew_Output(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tool tools.Tool
		text string
		code protocol.Code
	}{
		"text as it is": {
			tool: tools.New("t", "T.", func(_ context.Context, a convertArguments) (string, error) { return strings.Join(a.To, " <&> "), nil }),
			text: "EUR <&> USD",
		},
		"a struct as JSON": {
			tool: tools.New("t", "T.", func(_ context.Context, a convertArguments) (any, error) {
				return map[string]any{"n": a.Deep.N, "s": "<"}, nil
			}),
			text: `{"n":3,"s":"<"}`,
		},
		"an error": {
			tool: tools.New("t", "T.", func(context.Context, convertArguments) (int, error) { return 0, errors.New("no rate: try EUR") }),
			code: protocol.CodeToolFailed,
		},
		"an error of the fleet's": {
			tool: tools.New("t", "T.", func(context.Context, convertArguments) (int, error) {
				return 0, protocol.Errorf(protocol.CodeNotFound, "gone")
			}),
			code: protocol.CodeNotFound,
		},
		"no JSON": {
			tool: tools.New("t", "T.", func(context.Context, convertArguments) (float64, error) { return math.NaN(), nil }),
			code: protocol.CodeInternal,
		},
		"a panic": {
			tool: tools.New("t", "T.", func(context.Context, convertArguments) (float64, error) { panic("oh") }),
			code: protocol.CodePanic,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, failure := runFunction(t, test.tool, `{"amount":"2.5","to":["EUR","USD"],"deep":{"n":3.0}}`)
			require.Equal(t, test.text, text)
			if test.code != "" {
				require.Equal(t, test.code, failure.Code)
			} else {
				require.Nil(t, failure)
			}
		})
	}
}

func TestNew_EveryFaultOfTheArgumentsIsTold(t *testing.T) {
	t.Parallel()
	tool := tools.New("convert", "Convert.", func(context.Context, convertArguments) (string, error) { return "", nil })
	_, failure := runFunction(t, tool, `{"to":"EUR","from":"USD"}`)
	require.Equal(t, protocol.CodeInvalidArguments, failure.Code)
	for _, fault := range []string{"amount: is required", "from: there is no such property", "to: must be null or array"} {
		require.Contains(t, failure.Message, fault)
	}
}

func TestNewTable_TellsWhatCannotBeATool(t *testing.T) {
	t.Parallel()
	for want, tool := range map[string]tools.Tool{
		"arguments: string: must be a struct": tools.New("t", "T.", func(context.Context, string) (string, error) { return "", nil }),
		"is unsupported":                      tools.New("t", "T.", func(context.Context, struct{ F func() }) (string, error) { return "", nil }),
		"function: missing":                   tools.New[struct{}, string]("t", "T.", nil),
		"description: missing": tools.New("t", "", func(context.Context, struct{}) (string, error) {
			return "", nil
		}),
		"arguments: []int: must be a struct": tools.NewRemote[[]int]("t", "T.", tools.Remote{Kind: "k"}),
	} {
		_, err := tools.NewTable(tool)
		require.ErrorContains(t, err, "invalid tool ", want)
		require.ErrorContains(t, err, want)
	}
}

func TestNew_ErrorsThatAreNil(t *testing.T) {
	t.Parallel()
	text, failure := runFunction(t, tools.New("t", "T.", func(context.Context, struct{}) (string, error) {
		var none *protocol.Error
		return "said", none
	}), "{}")
	require.Nil(t, failure)
	require.Equal(t, "said", text)
	_, failure = runFunction(t, tools.New("t", "T.", func(context.Context, struct{}) (string, error) {
		return "", &protocol.Error{Message: "no code"}
	}), "{}")
	require.Equal(t, protocol.CodeToolFailed, failure.Code)
	require.Equal(t, "no code", failure.Message)
}

// What a person says takes nothing from the result, whose end says how to read on.
func TestWithNote_TakesNothingFromTheText(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("é", prose.MaxText)
	var tool *tools.Tool
	require.Equal(t, text, tool.WithNote(text, ""))
	require.Equal(t, text+"\n[the call was approved by a person, who said: only once]", tool.WithNote(text, "only once"))
}

// A call that was started again says so, and JSON is still what it was, and one entry more.
func TestText_StartedAgain(t *testing.T) {
	t.Parallel()
	const line = "attempt 2: a worker was lost while the call ran, and it was started again; what it does outside of the workspace may have happened more than once"
	command := tools.Remote{}.CommandTool(
		tools.Definition{Name: "t", Description: "t", Schema: json.RawMessage(`{"type":"object"}`)}, protocol.ToolRun{Argv: []string{"t"}})
	for output, want := range map[string]string{
		`{"a": [1]}`:  `{"a": [1],"[started again]":"` + line + `"}`,
		`{}`:          `{"[started again]":"` + line + `"}`,
		` [[]] `:      `[[],"[` + line + `]"]`,
		`[]`:          `["[` + line + `]"]`,
		`3`:           `3`,
		`"two words"`: "two words\n[" + line + "]",
	} {
		r := protocol.Result{Status: protocol.StatusOK, Attempt: 2, Value: protocol.ToolRunResult{Output: json.RawMessage(output)}}
		require.Equal(t, want, command.Text(&r), output)
		r.Attempt = 1
		require.NotContains(t, command.Text(&r), "attempt", output)
	}
	const again = "attempt 3: attempt 2 failed with run_timeout, and the tool's retry started the call again; what it did before it failed may still be there, in the workspace too"
	retried := protocol.Result{Status: protocol.StatusOK, Attempt: 3, Value: protocol.ToolRunResult{Output: json.RawMessage(`[]`)}, Tries: []protocol.Try{
		{Attempt: 1, Error: protocol.Errorf(protocol.CodeToolFailed, "no")}, {Attempt: 2, Error: protocol.Errorf(protocol.CodeRunTimeout, "late")},
	}}
	require.Equal(t, `["[`+again+`]"]`, command.Text(&retried))
	retried.Attempt = 4
	require.Contains(t, command.Text(&retried), "attempt 4: a worker was lost")
	failed := protocol.Result{Attempt: 2, Status: protocol.StatusFailed, Error: protocol.Errorf(protocol.CodeToolFailed, "no")}
	require.Regexp(t, `^\[failed: tool_failed\]\n(?s:.*)\n\[attempt 2: .*\]$`, command.Text(&failed))
	for code, status := range map[protocol.Code]protocol.Status{
		protocol.CodeAttemptsExhausted: protocol.StatusFailed, protocol.CodeOutcomeUnknown: protocol.StatusOutcomeUnknown,
	} {
		lost := protocol.Result{Attempt: 2, Status: status, Error: protocol.Errorf(code, "lost")}
		require.NotContains(t, command.Text(&lost), "attempt 2", "it says what became of it")
	}
}

// Only images of the types that models take are images for them; SVG is text.
func TestImage_TypesThatModelsTake(t *testing.T) {
	t.Parallel()
	result := func(mediaType string) *protocol.Result {
		return &protocol.Result{Value: protocol.MCPCallResult{Content: []protocol.MCPContent{{Type: "image", MediaType: mediaType, Data: []byte("<svg/>")}}}}
	}
	for given, want := range map[string]string{
		"image/png": "image/png", "image/jpg": "image/jpeg", "IMAGE/WEBP": "image/webp",
		"image/svg+xml": "", "image/bmp": "", "image/tiff": "", "": "",
	} {
		mediaType, _, ok := render.Image(result(given))
		require.Equal(t, want, mediaType, given)
		require.Equal(t, want != "", ok, given)
	}
	svg, ok := result("image/svg+xml").Value.(protocol.MCPCallResult)
	require.True(t, ok)
	require.Equal(t, "[image image/svg+xml]\n<svg/>", plain.MCP(svg))
}

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
