package toolset_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

var scope = tools.Scope{Session: "session-1", Sandbox: "box"}

func newTable(tb testing.TB, all ...tools.Tool) *tools.Table {
	tb.Helper()
	table, err := tools.NewTable(all...)
	require.NoError(tb, err)
	return table
}

func coreTable(tb testing.TB) *tools.Table {
	tb.Helper()
	return newTable(tb, toolset.Core()...)
}

// named returns the tools of a built-in toolset.
func named(name string) []tools.Tool {
	set, err := toolset.Named(name)
	if err != nil {
		panic(err)
	}
	return set
}

// tool is one that plans nothing to do.
func tool(name, schema string) tools.Tool {
	return tools.Tool{
		Definition: tools.Definition{Name: name, Description: "Does something.", Schema: json.RawMessage(schema)},
		Plan: func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			return tools.Plan{Payload: wire.Noop{}}, nil
		},
	}
}

func use(key string, access protocol.Access) []protocol.Use {
	return []protocol.Use{{Key: protocol.ResourceKey(key), Access: access}}
}
