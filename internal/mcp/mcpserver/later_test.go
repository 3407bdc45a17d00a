package mcpserver_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/mcpserver"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// impatient has clients that know no tasks wait for next to nothing.
func impatient(o *mcpserver.Options) { o.Patience = 200 * time.Millisecond }

// TestLater_WhoKnowsNoTasksReadsTheResult: a call that takes long goes on, and says where its
// result will be.
func TestLater_WhoKnowsNoTasksReadsTheResult(t *testing.T) {
	t.Parallel()
	s, workspace := open(t, shared, impatient)
	c, other := connect(t, s, nil), connect(t, s, nil)
	later := func(command string) (path, uri string) {
		t.Helper()
		result := bash(t, c, command)
		require.False(t, result.IsError)
		require.Equal(t, "working", field(t, result, "status"))
		path = "result:" + as[string](t, field(t, result, "call_id"))
		require.Contains(t, text(t, result), path)
		return path, as[*mcp.ResourceLink](t, result.Content[1]).URI
	}
	read := func(path string) *mcp.CallToolResult {
		t.Helper()
		return call(t, other, "read", map[string]any{"path": path})
	}
	wait := "until [ -e go ]; do sleep 0.05; done; "
	path, uri := later(wait + "echo done")
	require.Equal(t, "working", field(t, read(path), "status"), "it still goes on")
	resource, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
	require.NoError(t, err)
	require.Contains(t, resource.Contents[0].Text, "still runs")
	require.NoError(t, os.WriteFile(filepath.Join(workspace, "shared", "go"), nil, 0o600))
	require.Eventually(t, func() bool { return field(t, read(path), "status") == "ok" }, time.Minute, time.Millisecond)
	require.Equal(t, "done\n", text(t, read(path)), "what the call would have been answered with")
	resource, err = c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
	require.NoError(t, err)
	require.Equal(t, "done\n", resource.Contents[0].Text)
}

// TestLater_ItsEndIsTold also where there is nothing to read: reading waits for the end of a call.
func TestLater_ItsEndIsTold(t *testing.T) {
	t.Parallel()
	var same mcpserver.Options
	s, _ := open(t, shared, impatient, func(o *mcpserver.Options) { same = *o })
	c := connect(t, s, nil)
	result := bash(t, c, "sleep 1000")
	require.Equal(t, "working", field(t, result, "status"))
	id := as[string](t, field(t, result, "call_id"))
	path := "result:" + id
	require.NoError(t, same.Dispatcher.Cancel(t.Context(), &protocol.Call{
		ID: protocol.CallID(id), SessionID: "shared", Pool: protocol.DefaultPool, Resources: []protocol.Use{{Key: protocol.SandboxKey("shared")}},
	}))
	require.Eventually(t, func() bool {
		result = call(t, c, "read", map[string]any{"path": path})
		return field(t, result, "status") != "working"
	}, time.Minute, time.Millisecond)
	require.True(t, result.IsError)
	require.Equal(t, "cancelled", field(t, result, "status"))
	require.Equal(t, text(t, result), text(t, call(t, c, "read", map[string]any{"path": path})), "also later")
}

// TestLater_WhoHearsOfTheCallWaits: progress is what keeps a client patient.
func TestLater_WhoHearsOfTheCallWaits(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared, impatient)
	params := &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "sleep 1; echo done"}}
	params.SetProgressToken("p")
	result, err := connect(t, s, nil).CallTool(t.Context(), params)
	require.NoError(t, err)
	require.Equal(t, "done\n", text(t, result))
}
