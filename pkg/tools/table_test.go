package tools_test

import (
	"context"
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
	for _, word := range []string{
		`"b@d": name`, `"b@d": description`, `"b@d": plan`, `"b@d": schema`,
		`"twin": the name is defined more than once`, `"twin": schema`, `"worse": schema`,
	} {
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
	table := newTable(t, tool("old",
		`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"$ref":"#/definitions/a"}},"definitions":{"a":{"type":"integer"}}}`))
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

type order struct {
	Account string         `json:"account"`
	Amount  int            `json:"amount,omitempty"`
	To      map[string]any `json:"to,omitempty"`
}

func orderTool(revert *tools.Revert) tools.Tool {
	tool := tools.NewRemote[order]("order", "Order.", tools.Remote{Kind: "order", Resources: []tools.Resource{}})
	tool.Revert = revert
	return tool
}

func TestRevert_IsMadeOfArgumentsAndResult(t *testing.T) {
	t.Parallel()
	ok := &protocol.Result{Status: protocol.StatusOK, Value: protocol.ToolRunResult{Output: json.RawMessage(`{"id": 12345678901234567890, "tags": ["a"]}`)}}
	text := &protocol.Result{Status: protocol.StatusOK, Value: protocol.ToolRunResult{Output: json.RawMessage(`"o-1"`)}}
	for name, test := range map[string]struct {
		template  string
		arguments string
		result    *protocol.Result
		want      string // "" is no revert
	}{
		"values": {
			`{"id":"{result.id}","all":"{result}","n":"{amount}"}`, `{"account":"acme","amount":3}`, ok,
			`{"all":{"id":12345678901234567890,"tags":["a"]},"id":12345678901234567890,"n":3}`,
		},
		"in texts": {
			`{"why":"order {result.id} of {account}: {to}"}`, `{"account":"a<b","to":{"x":1}}`, ok, `{"why":"order 12345678901234567890 of a<b: {\"x\":1}"}`,
		},
		"nested":             {`{"list":[1,{"name":"{to.name}"}],"flag":true}`, `{"account":"acme","to":{"name":"bob"}}`, ok, `{"flag":true,"list":[1,{"name":"bob"}]}`},
		"a text as result":   {`{"id":"{result}"}`, `{"account":"acme"}`, text, `{"id":"o-1"}`},
		"a missing argument": {`{"n":"{amount}"}`, `{"account":"acme"}`, ok, ""},
		"a missing field":    {`{"n":"x{result.name}"}`, `{"account":"acme"}`, ok, ""},
		"a failed call":      {`{}`, `{"account":"acme"}`, &protocol.Result{Status: protocol.StatusFailed}, ""},
		"no result":          {`{}`, `{"account":"acme"}`, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table, err := tools.NewTable(orderTool(&tools.Revert{Tool: "cancel", Arguments: json.RawMessage(test.template)}))
			require.NoError(t, err)
			tool, _, refusal := table.Plan(tools.Scope{Session: "s", Sandbox: "s"}, "order", test.arguments)
			require.Nil(t, refusal)
			by, arguments, has := tool.Reverted(test.result)
			require.Equal(t, test.want != "", has)
			if has {
				require.Equal(t, "cancel", by)
				require.JSONEq(t, test.want, string(arguments))
				require.Equal(t, test.want, string(arguments))
			}
		})
	}
}

func TestRevert_OfAFunction(t *testing.T) {
	t.Parallel()
	panics := false
	table, err := tools.NewTable(orderTool(&tools.Revert{Tool: "cancel", Func: func(arguments json.RawMessage, _ *protocol.Result) json.RawMessage {
		if panics {
			panic("a bug")
		}
		return arguments
	}}))
	require.NoError(t, err)
	tool, _, refusal := table.Plan(tools.Scope{Session: "s", Sandbox: "s"}, "order", `{"account":"acme"}`)
	require.Nil(t, refusal)
	_, arguments, has := tool.Reverted(&protocol.Result{Status: protocol.StatusOK})
	require.True(t, has)
	require.JSONEq(t, `{"account":"acme"}`, string(arguments))
	panics = true
	_, _, has = tool.Reverted(&protocol.Result{Status: protocol.StatusOK})
	require.False(t, has)
}

func TestRevert_WhatCannotBe(t *testing.T) {
	t.Parallel()
	for want, revert := range map[string]tools.Revert{
		"revert: tool: missing": {Arguments: json.RawMessage(`{}`)},
		"revert: arguments: must be an object with the arguments of the tool that reverts": {Tool: "cancel"},
		`revert: arguments ["{account}"]: must be an object`:                               {Tool: "cancel", Arguments: json.RawMessage(`["{account}"]`)},
		"revert: arguments: placeholder {acount}: must be account, amount, to, result":     {Tool: "cancel", Arguments: json.RawMessage(`{"a":"{acount}"}`)},
		"revert: arguments: placeholder {results.id}: must be account, amount, to, result": {Tool: "cancel", Arguments: json.RawMessage(`{"a":{"b":["{results.id}"]}}`)},
	} {
		_, err := tools.NewTable(orderTool(&revert))
		require.ErrorContains(t, err, "invalid tool ")
		require.ErrorContains(t, err, want)
	}
}

// refusal is what a table says about arguments, line by line.
func refusal(t *testing.T, table *tools.Table, tool, raw string) (faults []string, message string) {
	t.Helper()
	_, _, err := table.Plan(scope, tool, raw)
	require.NotNil(t, err)
	require.Equal(t, protocol.CodeInvalidArguments, err.Code, err.Message)
	list, _, found := strings.Cut(err.Message, "\nExpected schema: {")
	require.True(t, found, err.Message)
	return strings.Split(list, "\n- ")[1:], err.Message
}

// What a schema cannot say is told with what it says, in one message.
func TestPlan_RulesAreToldWithTheFaultsOfTheSchema(t *testing.T) {
	t.Parallel()
	const forms = "; want {path, old, new, replace_all?} or {path, patch}"
	for name, test := range map[string]struct {
		set, tool, raw string
		want           []string
	}{
		"edit, an extra property and no text": {"core", "edit", `{"path":"a","file":"b"}`, []string{
			"file: there is no such property; allowed are new, old, patch, path, replace_all",
			"old and new, or patch, are required, but missing" + forms,
		}},
		"edit, nothing": {"core", "edit", ``, []string{
			"old and new, or patch, are required, but missing" + forms, "path: is required, but missing",
		}},
		"edit, wrong types": {"core", "edit", `{"path":1,"old":2,"replace_all":"maybe"}`, []string{
			"new: is required beside old, but missing" + forms, "old: must be string, not number",
			"path: must be string, not number", "replace_all: must be boolean, not string",
		}},
		"edit, null is nothing": {"core", "edit", `{"path":"a","old":null,"new":"x"}`, []string{"old: is required beside new, but missing" + forms}},
		"edit, both": {"core", "edit", `{"old":"a","patch":"","x":1}`, []string{
			"patch: has 0 characters, must have 1 or more", "patch: must not be beside old and new" + forms,
			"path: is required, but missing", "x: there is no such property; allowed are new, old, patch, path, replace_all",
		}},
		"bash, variables": {"core", "bash", `{"env":{"A=B":"1","":"x","C":"\u0000"},"timeout":0}`, []string{
			"command: is required, but missing",
			"env.: the name of a variable must not be empty, or contain \"=\" or a NUL character",
			"env.A=B: the name of a variable must not be empty, or contain \"=\" or a NUL character",
			"env.C: a value must not contain a NUL character", "timeout: is 0, must be more than 0",
		}},
		"bash that keeps its shell": {"core-shell", "bash", `{"env":{"A=B":"1"}}`, []string{
			"command: is required, but missing", "env.A=B: the name of a variable must not be empty, or contain \"=\" or a NUL character",
		}},
		"process": {"core", "process", `{"action":"kill","pid":7}`, []string{
			"pid: there is no such property; allowed are action, keys, limit, offset, process, text, wait",
			"process: is required, but missing: action \"kill\" needs the name of a process; action \"list\" tells their names",
		}},
		"process, no action": {"core", "process", `{"command":"sleep 1"}`, []string{
			"action: is required, but missing", "command: there is no such property; allowed are action, keys, limit, offset, process, text, wait",
		}},
		"json_write": {"core", "json_write", `{"path":"a","query":"b"}`, []string{
			"content: is required, but missing",
			"query: must be empty or a JSON pointer, which starts with a slash, as in /dependencies/react or /items/0",
		}},
		"run_shell_command": {"openrath", "run_shell_command", `{"cmd":"a\n` + strings.Repeat("b", 2047) + `","cwd":"x"}`, []string{
			"cmd: command too long: it has 2049 characters, at most 2048 are allowed; write a script with write_workspace_file and run that",
			"cmd: multiline commands are rejected: send one line, or write a script with write_workspace_file and run that",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, err := toolset.Named(test.set)
			require.NoError(t, err)
			faults, message := refusal(t, newTable(t, set...), test.tool, test.raw)
			require.Equal(t, test.want, faults)
			if test.raw != "" {
				require.Contains(t, message, "You sent: "+test.raw[:5])
			}
		})
	}
}

func TestPlan_ResourcesAreToldWithTheFaultsOfTheSchema(t *testing.T) {
	t.Parallel()
	type arguments struct {
		User map[string]any `json:"user"`
		File any            `json:"file"`
		Sum  int8           `json:"sum"`
	}
	table := newTable(t, tools.NewRemote[arguments]("pay", "Pay.", tools.Remote{Kind: "pay", Resources: []tools.Resource{
		{Key: "user/{user.id}/{file...}"},
	}}))
	faults, _ := refusal(t, table, "pay", `{"user":{},"file":7,"sum":"many"}`)
	require.Equal(t, []string{`sum: must be integer, not string`, "user.id: is required, but missing"}, faults)
	faults, _ = refusal(t, table, "pay", `{"user":{"id":1},"file":7,"sum":1}`)
	require.Equal(t, []string{"file: must be a path, as a string"}, faults)
}

func TestPlan_WhatGoCannotTakeIsToldWithTheSchema(t *testing.T) {
	t.Parallel()
	table := newTable(t, tools.New("add", "Add.", func(_ context.Context, args struct {
		N int `json:"n"`
	},
	) (int, error) {
		return args.N, nil
	}))
	faults, message := refusal(t, table, "add", `{"n":1e300}`)
	require.Len(t, faults, 1)
	require.True(t, strings.HasPrefix(faults[0], "n: the tool cannot take this number 1000"), faults[0])
	require.Contains(t, message, `You sent: {"n":1e300}`)
}

// A tool of somebody's own has rules like those of ours.
func TestPlan_RulesOfOnesOwn(t *testing.T) {
	t.Parallel()
	own := tool("own", `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`)
	own.Rules = func(arguments map[string]any) []string {
		switch arguments["a"] {
		case nil:
			return []string{"b: is missing, too"}
		case json.Number("3"): // coerced
			panic("a bug")
		default:
			return nil
		}
	}
	table := newTable(t, own)
	faults, _ := refusal(t, table, "own", `{}`)
	require.Equal(t, []string{"a: is required, but missing", "b: is missing, too"}, faults)
	_, _, err := table.Plan(scope, "own", `{"a":"3.0"}`)
	require.Equal(t, protocol.CodePanic, err.Code)
	_, _, err = table.Plan(scope, "own", `{"a":2}`)
	require.Nil(t, err)
}

func TestPlan_AHandleThatIsMissingIsToldWithTheRest(t *testing.T) {
	t.Parallel()
	table := newTable(t, tools.NewStateful[struct{}, string]("repl", "Evaluate.", tools.Remote{Kind: "repl"}))
	faults, _ := refusal(t, table, "tool_continue", `{"id":"h-1","input":1}`)
	require.Equal(t, []string{"handle: is required, but missing", "id: there is no such property; allowed are handle, input"}, faults)
	faults, _ = refusal(t, table, "tool_end", `{"id":"h-1"}`)
	require.Equal(t, []string{"handle: is required, but missing", "id: there is no such property; allowed are handle"}, faults)
}
