package loop

import (
	"context"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// fork is a sub-agent's fork of the workspace of its parent. Two calls in the parent's lane make
// it and merge it: the first is one of the calls of the step, in their order, the second comes when
// the sub-agent has ended. Their ids derive from the journal, as all do, and both can be repeated.
type fork struct {
	call protocol.Call
	sent Handle // of the call
}

// Where the calls of a fork are in the session of the sub-agent, which has no turn 0.
const (
	forkIndex  = 0
	mergeIndex = 1
)

// forkTimeout bounds the run of each of the two calls.
const forkTimeout = 10 * time.Minute

// newFork plans the fork of a sub-agent; nil when it does not work on one.
func (t *turnRun) newFork(ctx context.Context, p *pendingCall, sent bool) *fork {
	request, is := p.plan.Session.(wire.AgentRequest)
	if !is || request.Workspace != wire.AgentWorkspaceFork {
		return nil
	}
	f := &fork{}
	f.call = t.forkCall(ctx, p, forkIndex, protocol.Shared, wire.WorkspaceFork{To: string(p.event.CallID)})
	f.call.Again = sent
	return f
}

// forkCall is a call about the fork of a sub-agent, in the lane of this session's sandbox. It is
// bound as each call of the turn that started the sub-agent.
func (t *turnRun) forkCall(ctx context.Context, p *pendingCall, index int, access protocol.Access, payload protocol.Payload) protocol.Call {
	child := protocol.SessionID(p.event.CallID)
	call := protocol.Call{
		ID: wire.NewCallID(child, t.session.seed, 0, 0, index), SessionID: t.id, ToolCallID: p.event.ToolCallID, Tool: string(wire.KindOf(payload)),
		Turn: p.place.Turn, Step: p.place.Step, Index: p.place.Index, Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(t.scope(t.id).Sandbox), Access: access}},
		IssuedAt:  time.Now().UTC(), RunTimeout: protocol.MillisOf(forkTimeout), Payload: payload,
	}
	bound, err := t.under(t.session.turns[p.place.Turn-1].terms)
	if err != nil {
		bound = t.Runner // of the turn that runs
	}
	binding(bound.judge(policy.Call{Tool: p.event.Name, Plan: p.plan}, "")).bind(&call, bound.opts.MinLevel)
	call.Delivery = protocol.Idempotent // whatever the policy says of the tool: it is done once
	endWith(ctx, &call)
	return call
}

// ready waits for the fork. It returns the failure of the call that makes it; an error is the
// fleet's, or that of ctx.
func (f *fork) ready(ctx context.Context) (*protocol.Result, error) {
	if f == nil {
		return nil, nil //nolint:nilnil // there is nothing to wait for
	}
	<-f.sent.Done() // soon after the end of ctx
	switch result, err := f.sent.Result(); {
	case result == nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case result == nil:
		return nil, fmt.Errorf("call %s that forks the workspace came back without result: %w", f.call.ID, err)
	case result.Status != protocol.StatusOK:
		return result, nil
	default:
		return nil, nil //nolint:nilnil // it is there
	}
}

// merge merges a sub-agent's changes into the workspace, and returns a text for the model. Changes
// of a stopped sub-agent are not merged.
func (t *turnRun) merge(ctx context.Context, p *pendingCall, outcome Outcome) (string, error) {
	child := string(p.event.CallID)
	if ctx.Err() != nil || outcome == OutcomeInterrupted {
		return fmt.Sprintf("[What the agent changed is not merged: it was stopped. Its files are in the workspace of session %s.]", child), nil //nolint:nilerr // the text says it
	}
	call := t.forkCall(ctx, p, mergeIndex, protocol.Exclusive, wire.WorkspaceMerge{From: child})
	call.Again = true // an earlier run may have sent it
	result, err := runCall(ctx, t.dispatcher, call)
	switch {
	case detached(ctx):
		return "", context.Cause(ctx)
	case err != nil:
		return "", fmt.Errorf("merge the workspace of agent %s: %w", child, err)
	}
	merged, is := result.Value.(wire.WorkspaceMergeResult)
	if !is {
		message := string(result.Status)
		if result.Error != nil {
			message = result.Error.Message
		}
		return fmt.Sprintf("[What the agent changed is not merged: %s. Its files are in the workspace of session %s.]", message, child), nil
	}
	return render.Merge(merged), nil
}
