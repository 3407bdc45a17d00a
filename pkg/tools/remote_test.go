package tools_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type refundArguments struct {
	Account string `json:"account"`
	Path    string `json:"path,omitempty"`
	Order   int    `json:"order,omitempty"`
	User    *struct {
		ID string `json:"id"`
	} `json:"user,omitempty"`
}

func remoteTool(resources ...tools.Resource) tools.Tool {
	return tools.NewRemote[refundArguments]("refund", "Pay back.", tools.Remote{
		Kind: "refund", Resources: resources, Delivery: protocol.AtMostOnce, Timeout: 7 * time.Second, Pool: "billing", MinLevel: "paths",
	})
}

func planRemote(t *testing.T, tool tools.Tool, arguments string) (tools.Plan, *protocol.Error) {
	t.Helper()
	table, err := tools.NewTable(tool)
	require.NoError(t, err)
	_, plan, refusal := table.Plan(tools.Scope{Session: "s-1", Sandbox: "box"}, tool.Name, arguments)
	return plan, refusal
}

func TestNewRemote_PlansACall(t *testing.T) {
	t.Parallel()
	plan, refusal := planRemote(t, remoteTool(tools.Resource{Key: "account/{account}"}), `{"account":"acme","order":"7"}`)
	require.Nil(t, refusal)
	call, refusal := plan.Call(tools.Scope{Session: "s-1", Sandbox: "box"}, tools.Place{Turn: 1, Step: 1}, "c1", "refund", time.Now())
	require.Nil(t, refusal)
	require.NoError(t, call.Validate())
	require.Equal(t, []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}}, call.Resources)
	require.Equal(t, protocol.AtMostOnce, call.Delivery)
	require.Equal(t, protocol.Millis(7000), call.RunTimeout)
	require.Equal(t, protocol.Pool("billing"), call.Pool)
	require.Equal(t, "paths", call.MinLevel)
	payload, ok := call.Payload.(protocol.UnknownPayload)
	require.True(t, ok)
	require.Equal(t, protocol.Kind("refund"), wire.KindOf(payload))
	arguments, err := payload.Arguments()
	require.NoError(t, err)
	require.JSONEq(t, `{"account":"acme","order":7}`, string(arguments), "as the schema has them")
}

func TestResource_Keys(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		template, arguments string
		key                 string // "" with a code
		code                protocol.Code
	}{
		{"account/{account}", `{"account":"acme"}`, "account/acme", ""},
		{"account/{account}", `{"account":"a/b"}`, "account/a%2Fb", ""},
		{"account/{account}", `{"account":".."}`, "account/%2E%2E", ""},
		{"account/{account}", `{"account":"."}`, "account/%2E", ""},
		{"account/{account}", `{"account":""}`, "account/%", ""},
		{"account/{account}", `{"account":"100%"}`, "account/100%25", ""},
		{"account/{account}", `{"account":"a\u0000b"}`, "account/a%00b", ""},
		{"account/x-{account}-y/orders/{order}", `{"account":"a","order":12}`, "account/x-a-y/orders/12", ""},
		{"account/{account}/orders/{order}/items", `{"account":"a"}`, "account/a/orders", ""},
		{"account/{account}/{user.id}", `{"account":"a","user":{"id":"u"}}`, "account/a/u", ""},
		{"account/{account}/{user.id}", `{"account":"a","user":null}`, "account/a", ""},
		{"queue/{$session}", `{"account":"a"}`, "queue/s-1", ""},
		{"sandbox/{$sandbox}/{path...}", `{"account":"a","path":"./src//x/../a.go"}`, "sandbox/box/src/a.go", ""},
		{"sandbox/{$sandbox}/out/{path...}", `{"account":"a","path":"/workspace/b"}`, "sandbox/box/out/b", ""},
		{"sandbox/{$sandbox}/{path...}", `{"account":"a"}`, "sandbox/box", ""},
		{"sandbox/{$sandbox}/{path...}", `{"account":"a","path":"../x"}`, "", codes.PathEscape},
		{"sandbox/{$sandbox}/{order...}", `{"account":"a","order":1}`, "", protocol.CodeInvalidArguments},
		{"account/{account}", `{"account":"` + strings.Repeat("a", 1100) + `"}`, "", protocol.CodeInvalidArguments},
	} {
		t.Run(test.template+" "+short(test.arguments), func(t *testing.T) {
			t.Parallel()
			plan, refusal := planRemote(t, remoteTool(tools.Resource{Key: test.template, Access: protocol.Shared}), test.arguments)
			if test.code != "" {
				require.NotNil(t, refusal)
				require.Equal(t, test.code, refusal.Code)
				return
			}
			require.Nil(t, refusal)
			require.Equal(t, []protocol.Use{{Key: protocol.ResourceKey(test.key), Access: protocol.Shared}}, plan.Resources)
		})
	}
}

func short(s string) string { return s[:min(len(s), 40)] }

func TestResource_DefaultsAndNothing(t *testing.T) {
	t.Parallel()
	tool := tools.NewRemote[refundArguments]("refund", "Pay back.", tools.Remote{Kind: "refund"})
	plan, refusal := planRemote(t, tool, `{"account":"a"}`)
	require.Nil(t, refusal)
	require.Nil(t, plan.Resources, "the whole sandbox")
	tool = tools.NewRemote[refundArguments]("refund", "Pay back.", tools.Remote{Kind: "refund", Resources: []tools.Resource{}})
	plan, refusal = planRemote(t, tool, `{"account":"a"}`)
	require.Nil(t, refusal)
	require.NotNil(t, plan.Resources)
	require.Empty(t, plan.Resources, "nothing at all")
}

func TestRemote_FaultsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		"account":                   "two segments",
		"{account}/x":               "no placeholder",
		"account//x":                "must have a name",
		"account/../x":              "must have a name",
		"account/{acount}":          "no such argument",
		"account/{path}":            "must be required",
		"account/{$worker}":         "must be the name of an argument",
		"account/{}":                "must be the name of an argument",
		"account/{account":          "braces enclose placeholders",
		"account/50%":               "are not allowed",
		"account/{path...}":         "must be the last segment, behind the two",
		"sandbox/{account}":         "of its own session only",
		"sandbox/other":             "of its own session only",
		"session/{$session}":        "the fleet's own",
		"call/x":                    "the fleet's own",
		"a/b/{path...}/c":           "must be the last segment",
		"a/b/x{path...}":            "a path stands alone",
		"account/{account}/{x}/{y}": "no such argument",
	} {
		_, err := tools.NewTable(remoteTool(tools.Resource{Key: template}))
		require.ErrorContains(t, err, "invalid resource", template)
		require.ErrorContains(t, err, want, template)
	}
	_, err := tools.NewTable(remoteTool(tools.Resource{Key: "a/b/c"}, tools.Resource{Key: "a/d"}))
	require.ErrorContains(t, err, `must be "a/b"`)
	_, err = tools.NewTable(remoteTool(tools.Resource{Key: "a/b", Access: "some"}))
	require.ErrorContains(t, err, `access "some"`)
	for _, remote := range []tools.Remote{
		{Kind: "files_read"},
		{Kind: "Bad"},
		{Kind: "k", Delivery: "twice"},
		{Kind: "k", Timeout: -1},
		{Kind: "k", Timeout: 25 * time.Hour},
		{Kind: "k", Pool: "session"},
		{Kind: "k", Pool: "P"},
		{Kind: "k", MinLevel: "most"},
	} {
		_, err := tools.NewTable(remote.Tool(tools.Definition{Name: "t", Description: "T.", Schema: json.RawMessage(`{"type":"object"}`)}))
		require.ErrorContains(t, err, "invalid tool ", "%+v", remote)
	}
}

// TestResource_DifferentValuesHaveDifferentKeys is what makes a lane per value.
func TestResource_DifferentValuesHaveDifferentKeys(t *testing.T) {
	t.Parallel()
	tool := remoteTool(tools.Resource{Key: "account/{account}"})
	table, err := tools.NewTable(tool)
	require.NoError(t, err)
	key := func(rt *rapid.T, account string) protocol.ResourceKey {
		arguments, err := json.Marshal(map[string]string{"account": account})
		require.NoError(rt, err)
		_, plan, refusal := table.Plan(tools.Scope{Session: "s", Sandbox: "s"}, "refund", string(arguments))
		require.Nil(rt, refusal)
		require.Equal(rt, plan.Resources[0].Key.Lane(), protocol.Lane(plan.Resources[0].Key), "one segment: %q", account)
		return plan.Resources[0].Key
	}
	values := rapid.StringOfN(rapid.SampledFrom([]rune("ab./%25EF ")), 0, 6, -1)
	rapid.Check(t, func(rt *rapid.T) {
		a, b := values.Draw(rt, "a"), values.Draw(rt, "b")
		require.Equal(rt, a == b, key(rt, a) == key(rt, b))
	})
}

func TestNewRemote_Text(t *testing.T) {
	t.Parallel()
	tool := remoteTool(tools.Resource{Key: "account/{account}"})
	ok := func(output string) *protocol.Result {
		value, err := wire.NewUserValue("refund", json.RawMessage(output))
		require.NoError(t, err)
		return &protocol.Result{Status: protocol.StatusOK, Value: value}
	}
	require.Equal(t, "paid <1>", tool.Text(ok(`"paid <1>"`)))
	require.JSONEq(t, `{"paid":1}`, tool.Text(ok(`{"paid":1}`)))
	require.Equal(t, "[done; nothing was returned]", tool.Text(ok(`null`)))
	failed := ok(`{"paid":0}`)
	failed.Status, failed.Error = protocol.StatusTimeout, protocol.Errorf(protocol.CodeRunTimeout, "too slow")
	require.Contains(t, tool.Text(failed), `[timeout: run_timeout]`)
	require.Contains(t, tool.Text(failed), fmt.Sprintf("Partial output:\n%s", `{"paid":0}`))
	require.Contains(t, tool.Text(&protocol.Result{Status: protocol.StatusFailed, Error: protocol.Errorf(protocol.CodeToolFailed, "no")}), "no")
}

func TestCommandTool_Text(t *testing.T) {
	t.Parallel()
	tool := tools.Remote{}.CommandTool(
		tools.Definition{Name: "count", Description: "Count.", Schema: json.RawMessage(noArguments)}, protocol.ToolRun{Argv: []string{"count"}})
	_, err := tools.NewTable(tool)
	require.NoError(t, err)
	result := func(output, stdout string) *protocol.Result {
		v := protocol.ToolRunResult{Execution: protocol.Execution{Reason: "exited", Stdout: protocol.Bytes(stdout)}}
		if output != "" {
			v.Output = json.RawMessage(output)
		}
		return &protocol.Result{Status: protocol.StatusOK, Value: v}
	}
	require.Equal(t, `{"n":1}`, tool.Text(result(`{"n":1}`, "")))
	require.Equal(t, "a\nb", tool.Text(result(`"a\nb"`, "")))
	require.Equal(t, "[done; nothing was returned]", tool.Text(result(`null`, "")))
	failed := result("", "not \x1b[1mJSON\n")
	failed.Status, failed.Error = protocol.StatusFailed, protocol.Errorf(protocol.CodeToolFailed, "no JSON")
	require.Equal(t, "[failed: tool_failed]\nno JSON\nNext: the tool ran and failed. Act on the message; the same call again will most likely fail again."+
		"\nPartial output:\nnot JSON\n", tool.Text(failed))
	long := result(`"`+strings.Repeat("x", 100_000)+`"`, "")
	require.LessOrEqual(t, len(tool.Text(long)), prose.MaxText)
	require.Contains(t, tool.Text(long), "characters left out")
}

func TestRemote_Background(t *testing.T) {
	t.Parallel()
	tool := tools.NewRemote[refundArguments]("refund", "Pay back.", tools.Remote{Kind: "refund", Background: true})
	plan, refusal := planRemote(t, tool, `{"account":"a"}`)
	require.Nil(t, refusal)
	require.True(t, plan.Background)
}

// A number is one resource, however a model writes it: else calls that conflict would overlap.
func TestResource_EqualNumbersHaveOneKey(t *testing.T) {
	t.Parallel()
	tool := tools.NewRemote[struct {
		Account any     `json:"account"`
		Order   float64 `json:"order"`
	}]("refund", "Pay back.", tools.Remote{Kind: "refund", Resources: []tools.Resource{{Key: "account/{account}/{order}"}}})
	for key, spellings := range map[protocol.ResourceKey][]string{
		"account/7/12":        {`{"account":7,"order":12}`, `{"account":7.0,"order":12.00}`, `{"account":70e-1,"order":1.2e1}`, `{"account":"7","order":"12"}`},
		`account/{"a":[1]}/0`: {`{"account":{"a":[1.0]},"order":-0}`, `{"account":{"a":[1]},"order":0e9}`},
		"account/9007199254740993/0.5": {
			`{"account":9007199254740993,"order":0.50}`, `{"account":9007199254740993.0,"order":5E-1}`,
		},
	} {
		for _, arguments := range spellings {
			plan, refusal := planRemote(t, tool, arguments)
			require.Nil(t, refusal, arguments)
			require.Equal(t, key, plan.Resources[0].Key, arguments)
		}
	}
}

func TestHigherLevel(t *testing.T) {
	t.Parallel()
	for _, test := range [][3]string{
		{"", "", ""},
		{"", "none", "none"},
		{"paths", "full", "full"},
		{"kernel", "full", "kernel"},
		{"full", "", "full"},
		{"", "FULL", "FULL"},
		{"kernel", "FULL", "FULL"},
		{"FULL", "kernel", "FULL"},
	} {
		require.Equal(t, test[2], wire.HigherLevel(test[0], test[1]), test)
	}
}

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
