package fleet

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/session/approval"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// ServerTools asks MCP servers for their tools: those of [mcp.Parse], or of a folder of manifests.
// The servers run in the sandbox of the session, or are reached from its worker. What is wrong with
// one, and tools with the name of one of taken, are problems; the tools of other servers are
// returned all the same. The error means that the fleet failed. Call it again when a turn begins:
// servers may have other tools then. Servers that a policy denies are for the caller to leave out:
// see [policy.Judge.Server].
func (c *Client) ServerTools(
	ctx context.Context, session protocol.SessionID, servers []mcp.Server, taken []tools.Tool,
) (made []tools.Tool, problems []error, err error) {
	if _, err := protocol.ParseSessionID(string(session)); err != nil {
		return nil, nil, invalid(err)
	}
	made, err = do(ctx, c, nil, func(ctx context.Context) (made []tools.Tool, err error) {
		made, problems, err = mcptools.Open(ctx, c.inner.Dispatcher.Call, session, mcptools.Rules{MinLevel: c.least()}, servers, taken)
		return made, err
	})
	return made, problems, err
}

// AwaitApproval waits until a person approves or denies a call: by [Sessions.Approve] in any
// program of the fleet, or by coordinator approve. It is for [loop.Options] and [Call].Approve.
func (c *Client) AwaitApproval(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
	return do(ctx, c, nil, func(ctx context.Context) (protocol.Approval, error) {
		return approval.Waiter(c.inner.NC, c.inner.Name, c.inner.Keys())(ctx, request)
	})
}
