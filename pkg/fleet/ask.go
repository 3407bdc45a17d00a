package fleet

import (
	"cmp"
	"context"
	"strings"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/mcptools"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// ServerTools asks MCP servers for their tools: those of [mcp.Parse], or of a folder of manifests.
// The servers run in the sandbox of the session, or are reached from its worker. What is wrong with
// one, and tools with the name of one of taken, are problems; the tools of other servers are
// returned all the same. The error means that the fleet failed. Call it again when a turn begins:
// servers may have other tools then.
func (c *Client) ServerTools(
	ctx context.Context, session protocol.SessionID, servers []mcp.Server, taken []tools.Tool,
) (made []tools.Tool, problems []error, err error) {
	if _, err := protocol.ParseSessionID(string(session)); err != nil {
		return nil, nil, err
	}
	made, err = do(ctx, c, nil, func(ctx context.Context) (made []tools.Tool, err error) {
		made, problems, err = mcptools.Open(ctx, c.inner.Dispatcher.One, session, servers, taken)
		return made, err
	})
	return made, problems, err
}

// Answer answers the question of a running call, such as one of an MCP server. asked is the event
// [loop.EventQuestionAsked] from [loop.Options] or [Call].Observe; only its ids and lane are used.
// Answer returns when the worker has the answer. The error wraps [ErrNotFound] when no call waits
// for the answer: it has one, or its time is over. It wraps [ErrInvalid] when the answer does not
// fit the question, which then stays open. A question without an answer within 2 s is declined:
// send the action "wait" first to have half of the call's time.
func (c *Client) Answer(ctx context.Context, asked loop.Event, answer protocol.Answer) error {
	pool, _, _ := strings.Cut(asked.Lane, "/")
	if asked.Question != nil {
		answer.Question = cmp.Or(answer.Question, asked.Question.ID)
	}
	of := approval.Asked{Pool: cmp.Or(protocol.Pool(pool), protocol.DefaultPool), Session: asked.SessionID, Call: asked.CallID}
	return act(ctx, c, nil, func(ctx context.Context) error {
		return approval.Reply(ctx, c.inner.Conn(of.Pool), c.inner.Name, of, answer)
	})
}

// AwaitApproval waits until a person approves or denies a call: by [Sessions.Approve] in any
// program of the fleet, or by coordinator approve. It is for [loop.Options] and [Call].Approve.
func (c *Client) AwaitApproval(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
	return do(ctx, c, nil, func(ctx context.Context) (protocol.Approval, error) {
		return approval.Waiter(c.inner.NC, c.inner.Name)(ctx, request)
	})
}
