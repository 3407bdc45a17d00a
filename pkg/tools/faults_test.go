package tools_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

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
