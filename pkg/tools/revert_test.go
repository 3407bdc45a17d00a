package tools_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

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
		"values":             {`{"id":"{result.id}","all":"{result}","n":"{amount}"}`, `{"account":"acme","amount":3}`, ok, `{"all":{"id":12345678901234567890,"tags":["a"]},"id":12345678901234567890,"n":3}`},
		"in texts":           {`{"why":"order {result.id} of {account}: {to}"}`, `{"account":"a<b","to":{"x":1}}`, ok, `{"why":"order 12345678901234567890 of a<b: {\"x\":1}"}`},
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
