package loop

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// Effect says how a call reaches outside of the workspace, where restoring the workspace undoes
// nothing.
type Effect struct {
	// Reaches has the reasons: network, at_most_once, mcp, tool.
	Reaches []string `json:"reaches"`
	// Revert undoes it; nil when nothing does.
	Revert *RevertCall `json:"revert,omitempty"`
}

// How calls reach outside of the workspace.
const (
	reachNetwork = "network"      // its program could reach hosts
	reachOnce    = "at_most_once" // running it twice makes a difference
	reachMCP     = "mcp"          // a tool of an MCP server
	reachTool    = "tool"         // a tool of the user's own
)

// RevertCall is the tool call that undoes the effect of another one; see [tools.Revert].
type RevertCall struct {
	Tool      string `json:"tool"`
	Arguments string `json:"arguments"`
	// Call is the call as docs/wire.md describes it, with an id that is not its own. It was planned
	// when the result came, so it runs whatever the tools are by then.
	Call json.RawMessage `json:"call"`
}

// maxRevert bounds the size of a revert in the journal, in bytes.
const maxRevert = 64 << 10

// effectOf is the effect of a call with a result; nil when it has none outside of the workspace.
func (r *Runner) effectOf(ctx context.Context, scope tools.Scope, tool *tools.Tool, call *protocol.Call, result *protocol.Result) *Effect {
	started := result.Attempt > 0 || result.Status == protocol.StatusOutcomeUnknown
	if call == nil || !started || result.Status == protocol.StatusRejected || tool != nil && tool.Effect.ReadOnly && !tool.Effect.Hinted {
		return nil
	}
	var effect Effect
	switch kind := wire.KindOf(call.Payload); {
	case kind == wire.KindMCPCall:
		effect.Reaches = append(effect.Reaches, reachMCP)
	case wire.ClassOf(kind) == wire.ClassNone:
		effect.Reaches = append(effect.Reaches, reachTool)
	}
	if result.Network != "" {
		effect.Reaches = append(effect.Reaches, reachNetwork)
	}
	if call.Delivery == protocol.AtMostOnce {
		effect.Reaches = append(effect.Reaches, reachOnce)
	}
	if effect.Reaches == nil && result.Status != protocol.StatusOutcomeUnknown {
		return nil
	}
	effect.Revert = r.revertOf(ctx, scope, tool, result)
	return &effect
}

// revertOf plans what undoes the effect of a call. A tool whose revert cannot run is reported in
// the log: its calls have none.
func (r *Runner) revertOf(ctx context.Context, scope tools.Scope, tool *tools.Tool, result *protocol.Result) *RevertCall {
	name, arguments, has := tool.Reverted(result)
	if !has {
		return nil
	}
	broken := func(reason any) *RevertCall {
		r.opts.Logger.WarnContext(ctx, "call has no revert", slog.String("call_id", string(result.CallID)),
			slog.String("tool", tool.Name), slog.String("revert", name), slog.Any("reason", reason))
		return nil
	}
	_, plan, failure := r.table.Plan(scope, name, string(arguments))
	if failure != nil {
		return broken(failure)
	}
	if plan.Payload == nil {
		return broken("the tool does not run on workers")
	}
	judged := r.judge(policy.Call{Tool: name, Plan: plan}, "")
	if judged.Decision == policy.Denied { // what asks for approval has that of the person who reverts
		return broken(judged.Reason)
	}
	call, failure := plan.Call(scope, tools.Place{ID: result.CallID}, "", name, time.Now().UTC())
	if failure != nil {
		return broken(failure)
	}
	binding(judged).bind(&call, r.opts.MinLevel)
	body, err := wire.EncodeCall(&call)
	if err != nil || len(body) > maxRevert {
		return broken("the call is too large")
	}
	return &RevertCall{Tool: name, Arguments: string(arguments), Call: body}
}
