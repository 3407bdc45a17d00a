package tools

import (
	"cmp"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/workspace"
)

// Place is where in its session a tool call stands.
type Place struct {
	Turn  int // from 1
	Step  int // from 1
	Index int // in the step, from 0
}

// Call makes the call that carries the plan to a worker. It is valid, and the
// same plan at the same place makes the same call: its id derives from session and
// place. Only the zero place, of a tool call that belongs to no step, gets a random id.
//
// Defaults: the scope's whole sandbox, exclusively; delivery rollback; the default
// pool; [protocol.DefaultRunTimeout]. Deadline, QueueTimeout and MaxAttempts
// are left to the caller. The error is "internal": the plan is inline,
// or its tool named resources or limits that no call can have.
func (p Plan) Call(
	scope Scope, at Place, toolCallID, toolName string, issuedAt time.Time,
) (protocol.Call, *protocol.Error) {
	if refusal := p.needsSession(toolName, at); refusal != nil {
		return protocol.Call{}, refusal
	}
	id := protocol.NewCallID(scope.Session, at.Turn, at.Step, at.Index)
	if at == (Place{}) {
		id = protocol.RandomCallID()
	}
	resources, refusal := p.uses(scope, id)
	if refusal != nil {
		return protocol.Call{}, refusal
	}
	call := protocol.Call{
		ID: id, SessionID: scope.Session, ToolCallID: toolCallID, Tool: toolName,
		Turn: at.Turn, Step: at.Step, Index: at.Index,
		Pool:       cmp.Or(p.Pool, protocol.DefaultPool),
		Resources:  resources,
		Delivery:   cmp.Or(p.Delivery, protocol.Rollback),
		IssuedAt:   issuedAt,
		RunTimeout: protocol.MillisOf(cmp.Or(p.Timeout, protocol.DefaultRunTimeout)),
		MinLevel:   p.MinLevel,
		Payload:    p.Payload,
	}
	if err := call.Validate(); err != nil {
		return protocol.Call{}, protocol.Errorf(protocol.CodeInternal,
			"The tool %s is broken: its plan makes no valid call (%v). Your arguments are not the cause; go on without it.", toolName, err)
	}
	return call, nil
}

// uses returns the plan's resources or their default.
func (p Plan) uses(scope Scope, id protocol.CallID) ([]protocol.Use, *protocol.Error) {
	switch {
	case p.Resources == nil:
		return wholeSandbox(scope)
	case len(p.Resources) == 0:
		return []protocol.Use{{Key: protocol.ResourceKey("call/" + string(id)), Access: protocol.Exclusive}}, nil
	default:
		return slices.Clone(p.Resources), nil
	}
}

// wholeSandbox is the exclusive use of all of the scope's sandbox.
func wholeSandbox(scope Scope) ([]protocol.Use, *protocol.Error) {
	return workspace.Use(scope.Sandbox, "", protocol.Exclusive)
}
