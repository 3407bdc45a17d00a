package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

func denying(t *testing.T, names ...string) *policy.Judge {
	t.Helper()
	judge, err := policy.New(policy.Policy{Tools: policy.Names{Deny: names}})
	require.NoError(t, err)
	return judge
}

// leftOpen is a rig whose first turn was begun under options, and is open behind a call of "work".
func leftOpen(t *testing.T, began loop.Options, replies ...loop.Reply) *rig {
	t.Helper()
	r := newRig(append([]loop.Reply{asks("a", "work")}, replies...)...)
	began.Observe = r.opts.Observe
	r.opts, r.fleet.err = began, errors.New("no servers")
	_, err := r.run(t.Context(), t, "go")
	require.Error(t, err)
	r.fleet.err, r.opts = nil, loop.Options{Observe: began.Observe}
	return r
}

// statuses are those of the results of a turn, in their order.
func (r *rig) statuses(turn int) []string {
	var statuses []string
	for _, e := range r.watch.of(loop.EventToolResult) {
		if e.Turn == turn {
			statuses = append(statuses, e.Status)
		}
	}
	return statuses
}

// A turn keeps its policies until its end, however it is brought to that, and lends them to no
// other turn.
func TestTerms_PoliciesBindUntilTheEndOfTheTurn(t *testing.T) {
	t.Parallel()
	denied, ok := string(protocol.StatusRejected), string(protocol.StatusOK)
	r := leftOpen(t, loop.Options{Policy: denying(t, "greedy")}, asks("b", "greedy", "work"), says("done"), asks("c", "greedy", "work"), says("done"))
	r.mustRun(t.Context(), t, "and then")
	require.Equal(t, []string{ok, denied, ok}, r.statuses(1))
	require.ElementsMatch(t, []string{ok, ok}, r.statuses(2))

	// Those of whoever goes on bind beside them.
	r = leftOpen(t, loop.Options{Policy: denying(t, "greedy")}, asks("b", "greedy", "inline", "work"), says("done"), asks("c", "greedy", "inline"), says("done"))
	r.opts.Policy = denying(t, "inline")
	r.mustRun(t.Context(), t, "and then")
	require.Equal(t, []string{ok, denied, denied, ok}, r.statuses(1))
	require.ElementsMatch(t, []string{denied, ok}, r.statuses(2))

	// A turn under the rules that bind it anyway is judged once.
	r = leftOpen(t, loop.Options{Policy: denying(t, "greedy")}, asks("b", "greedy"), says("done"))
	r.opts.Policy = denying(t, "greedy")
	r.mustRunInput(t.Context(), t, loop.Input{})
	require.Len(t, r.watch.of(loop.EventPolicyDecision), 1)
}

// What a person said yes to, and was not sent, is not allowed to whoever may not do it.
func TestTerms_AnApprovalIsForOneWhoMay(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]loop.Policy{"denied": denying(t, "greedy"), "approved": nil} {
		r := newRig(asks("a", "greedy", "work"), says("done"))
		r.opts.Policy = newJudge(t, "approval: {tools: [greedy]}")
		ctx, crash := context.WithCancelCause(t.Context())
		r.opts.Approve = func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
			defer crash(loop.ErrDetached)
			return protocol.Approval{Granted: true}, nil
		}
		_, err := r.run(ctx, t, "go")
		require.ErrorIs(t, err, loop.ErrDetached)
		r.opts.Policy = policy
		r.mustRun(t.Context(), t, "go")
		want := []string{"ok", "ok"}
		if policy != nil {
			want = []string{"rejected", "ok"}
		}
		require.Equal(t, want, r.statuses(1), name)
	}
}

// What a call is bound to on its worker is the stricter of both.
func TestTerms_BindCallsOnTheirWorkers(t *testing.T) {
	t.Parallel()
	judge, err := policy.New(policy.Policy{MinLevel: "full"})
	require.NoError(t, err)
	r := leftOpen(t, loop.Options{Policy: judge, Guard: protocol.GuardChanged}, asks("b", "guarded"), says("done"))
	var guard protocol.Guard
	guarded := remote("account/7", false)
	guarded.Name = "guarded"
	plan := guarded.Plan
	guarded.Plan = func(scope tools.Scope, arguments json.RawMessage) (tools.Plan, *protocol.Error) {
		guard = scope.Guard
		return plan(scope, arguments)
	}
	r.mustRunInput(t.Context(), t, loop.Input{})
	require.Equal(t, []string{"ok", "rejected"}, r.statuses(1), "it did not have that tool")
	require.Equal(t, "full", r.fleet.runs[0].MinLevel)

	r = newRig(asks("a", "guarded"), says("done"))
	r.fleet.err, r.tools, r.opts.Guard = errors.New("no servers"), []tools.Tool{guarded}, protocol.GuardRead
	_, err = r.run(t.Context(), t, "go")
	require.Error(t, err)
	for _, now := range []protocol.Guard{"", protocol.GuardChanged} {
		r.opts.Guard = now
		_, err = r.run(t.Context(), t, "go")
		require.Error(t, err)
		require.Equal(t, protocol.GuardRead, guard)
	}
}

// The model has no tools in a turn that it had not when the turn began.
func TestTerms_ToolsAreThoseOfTheBeginning(t *testing.T) {
	t.Parallel()
	r := leftOpen(t, loop.Options{}, asks("b", "mine"), says("done"), asks("c", "mine"), says("done"))
	r.tools = []tools.Tool{remote("account/7", false)}
	r.mustRun(t.Context(), t, "and then")
	require.Equal(t, []string{"ok", "rejected"}, r.statuses(1))
	require.Equal(t, []string{"ok"}, r.statuses(2))
	names := func(request loop.Request) (names []string) {
		for _, tool := range request.Tools {
			names = append(names, tool.Name)
		}
		return names
	}
	require.NotContains(t, names(r.model.seen[1]), "mine")
	require.Contains(t, names(r.model.seen[3]), "mine")
}

func TestTerms_TheLesserLimitsHold(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ began, goes loop.Options }{
		"steps of the beginning":    {began: loop.Options{MaxSteps: 2}},
		"steps of whoever goes on":  {goes: loop.Options{MaxSteps: 2}},
		"tokens of the beginning":   {began: loop.Options{MaxTokens: 20}},
		"tokens of whoever goes on": {began: loop.Options{MaxTokens: 1000}, goes: loop.Options{MaxTokens: 20}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := leftOpen(t, test.began, asks("b", "work"), says("done"))
			test.goes.Observe = r.opts.Observe
			r.opts = test.goes
			result := r.mustRunInput(t.Context(), t, loop.Input{})
			require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
			require.Equal(t, 2, result.Steps)
		})
	}
}

// Rules that this version does not know are not passed over.
func TestTerms_RulesThatCannotBeReadEndNothing(t *testing.T) {
	t.Parallel()
	r := newRig(says("done"))
	_, err := r.journal.Append(t.Context(), r.session, 0, loop.Event{
		Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{
			Input: "go", Terms: &loop.Terms{Policies: []json.RawMessage{json.RawMessage(`{"weather":"fine"}`)}},
		},
	})
	require.NoError(t, err)
	_, err = r.run(t.Context(), t, "go")
	require.ErrorIs(t, err, loop.ErrJournalInvalid)
	require.ErrorContains(t, err, "terms.policies[0]")
	require.Empty(t, r.model.seen)
}

// A job that a later turn sends is bound as the turn that started it.
func TestTerms_BindJobs(t *testing.T) {
	t.Parallel()
	judge, err := policy.New(policy.Policy{MinLevel: "full"})
	require.NoError(t, err)
	r := newRig(asks("a", "mine"), says("done"), says("heard"))
	r.fleet.err, r.tools, r.opts.Policy = errors.New("no servers"), []tools.Tool{remote("account/7", true)}, judge
	r.mustRun(t.Context(), t, "go")
	r.fleet.err, r.opts.Policy = nil, nil
	r.mustRun(t.Context(), t, "and")
	require.Equal(t, "full", r.fleet.runs[0].MinLevel)
}

// shop is a tool of the user's own without arguments.
func shop(name string, revert *tools.Revert, with tools.Remote) tools.Tool {
	with.Kind, with.Resources = protocol.Kind(name), []tools.Resource{{Key: "shop/orders", Access: with.Resources[0].Access}}
	tool := tools.NewRemote[struct {
		N int `json:"n,omitempty"`
	}](name, "Does "+name+".", with)
	tool.Revert = revert
	return tool
}

// The journal has how a call reaches outside of the workspace, and the call that undoes it as it
// was planned when the result came.
func TestEffect_IsJournaledWithItsRevert(t *testing.T) {
	t.Parallel()
	reply := asks("a", "order", "look", "broken", "work", "later")
	for i := range reply.ToolCalls {
		reply.ToolCalls[i].Arguments = `{"n":1}`
	}
	reply.ToolCalls[3].Arguments = `{}`
	r := newRig(reply, says("done"), says("I see"))
	touches := []tools.Resource{{Access: protocol.Exclusive}}
	r.tools = append(r.tools,
		shop("order", &tools.Revert{Tool: "cancel", Arguments: json.RawMessage(`{"n":"{n}"}`)}, tools.Remote{Resources: touches, Delivery: protocol.AtMostOnce}),
		shop("cancel", nil, tools.Remote{Resources: touches}),
		shop("look", nil, tools.Remote{Resources: []tools.Resource{{Access: protocol.Shared}}}),
		shop("broken", &tools.Revert{Tool: "nothing", Arguments: json.RawMessage(`{}`)}, tools.Remote{Resources: touches}),
		shop("later", &tools.Revert{Tool: "cancel", Arguments: json.RawMessage(`{"n":2}`)}, tools.Remote{Resources: touches, Background: true}),
	)
	r.mustRun(t.Context(), t, "go")
	history, err := r.journal.Load(t.Context(), r.session)
	require.NoError(t, err)
	_, err = r.journal.Append(t.Context(), r.session, history.Last, loop.Event{Type: loop.EventCallResolved, Turn: 1, Text: "[it did happen]"})
	require.NoError(t, err)
	r.mustRun(t.Context(), t, "and now?")
	require.Contains(t, strings.Join(texts(r.model.lastSeen()), "\n"), "it did happen")

	effects := map[string]*loop.Effect{}
	for _, e := range r.events(t) {
		if e.Type == loop.EventToolResult && e.Job == "" || e.Type == loop.EventJobEnded {
			effects[e.Name] = e.Effect
		}
	}
	require.Equal(t, []string{"tool", "at_most_once"}, effects["order"].Reaches)
	require.Nil(t, effects["look"], "it only reads")
	require.Equal(t, &loop.Effect{Reaches: []string{"tool"}}, effects["broken"], "there is no such tool")
	require.Equal(t, "cancel", effects["later"].Revert.Tool)
	revert := effects["order"].Revert
	require.Equal(t, `{"n":1}`, revert.Arguments)
	call, err := wire.DecodeCall(revert.Call)
	require.NoError(t, err)
	require.Equal(t, protocol.ResourceKey("shop/orders"), call.Resources[0].Key)
	require.Equal(t, protocol.Kind("cancel"), wire.KindOf(call.Payload))
}

// reporting is a fleet whose results are changed by the name of their tool.
type reporting struct {
	*fleet

	change map[string]func(*protocol.Result)
}

func (r reporting) Send(ctx context.Context, calls []protocol.Call, observe func(loop.Update), held ...loop.Handle) []loop.Handle {
	return dispatch(r.Dispatch).send(ctx, calls, observe, held, r.told)
}

func (r reporting) Dispatch(ctx context.Context, calls []protocol.Call, observe func(loop.Update)) error {
	return r.fleet.Dispatch(ctx, calls, func(u loop.Update) {
		for _, call := range calls {
			if change := r.change[call.Tool]; change != nil && call.ID == u.CallID && u.Result != nil {
				result := *u.Result
				change(&result)
				u.Result = &result
			}
		}
		observe(u)
	})
}

// judging is a policy.
type judging func(policy.Call) policy.Verdict

// Judge implements [loop.Policy].
func (j judging) Judge(call policy.Call) policy.Verdict { return j(call) }

// A call has an effect if it may have run, and reaches outside of the workspace, or nobody knows
// what it did. Its revert is bound by the policy, and there is none that could not run.
func TestEffect_WhatReachesOutside(t *testing.T) {
	t.Parallel()
	touches := []tools.Resource{{Access: protocol.Exclusive}}
	planned := func(name string, effect tools.Effect, payload protocol.Payload) tools.Tool {
		return tools.Tool{
			Metadata:   tools.Metadata{Effect: effect},
			Revert:     &tools.Revert{Tool: "undo", Arguments: json.RawMessage(`{}`)},
			Definition: tools.Definition{Name: name, Description: name, Schema: json.RawMessage(`{"type":"object"}`)},
			Plan: func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
				return tools.Plan{Payload: payload}, nil
			},
		}
	}
	reverted := func(name string, revert *tools.Revert) tools.Tool {
		return shop(name, revert, tools.Remote{Resources: touches})
	}
	by := func(tool string) *tools.Revert { return &tools.Revert{Tool: tool, Arguments: json.RawMessage(`{}`)} }
	large := &tools.Revert{Tool: "said", Func: func(json.RawMessage, *protocol.Result) json.RawMessage {
		text, err := json.Marshal(map[string]string{"text": strings.Repeat("x", 70<<10)})
		require.NoError(t, err)
		return text
	}}
	command := protocol.CommandRun{Command: "true"}
	unknown := func(r *protocol.Result) { r.Status, r.Attempt, r.Value = protocol.StatusOutcomeUnknown, 0, nil }
	for name, test := range map[string]struct {
		tool   tools.Tool
		change func(*protocol.Result)
		want   *loop.Effect
	}{
		"not started":        {planned("a", tools.Effect{}, protocol.MCPCall{}), func(r *protocol.Result) { r.Attempt = 0 }, nil},
		"rejected":           {planned("a", tools.Effect{}, protocol.MCPCall{}), func(r *protocol.Result) { r.Status = protocol.StatusRejected }, nil},
		"in the workspace":   {planned("a", tools.Effect{}, command), nil, nil},
		"of unknown outcome": {planned("a", tools.Effect{}, command), unknown, &loop.Effect{}},
		"with a network": {
			planned("a", tools.Effect{}, command), func(r *protocol.Result) { r.Network = "all" },
			&loop.Effect{Reaches: []string{"network"}, Revert: &loop.RevertCall{Tool: "undo"}},
		},
		"of an MCP server": {planned("a", tools.Effect{}, protocol.MCPCall{}), nil, &loop.Effect{Reaches: []string{"mcp"}, Revert: &loop.RevertCall{Tool: "undo"}}},
		"a claim to only read": {
			planned("a", tools.Effect{ReadOnly: true, Hinted: true}, protocol.MCPCall{}), nil,
			&loop.Effect{Reaches: []string{"mcp"}, Revert: &loop.RevertCall{Tool: "undo"}},
		},
		"reading":                     {planned("a", tools.Effect{ReadOnly: true}, protocol.MCPCall{}), nil, nil},
		"whose revert is inline":      {reverted("a", by("inline")), nil, &loop.Effect{Reaches: []string{"tool"}}},
		"whose revert is denied":      {reverted("a", by("forbidden")), nil, &loop.Effect{Reaches: []string{"tool"}}},
		"whose revert is too large":   {reverted("a", large), nil, &loop.Effect{Reaches: []string{"tool"}}},
		"whose revert needs approval": {reverted("a", by("asked")), nil, &loop.Effect{Reaches: []string{"tool"}, Revert: &loop.RevertCall{Tool: "asked"}}},
	} {
		reply := asks("a", "a")
		reply.ToolCalls[0].Arguments = `{}`
		r := newRig(reply, says("done"))
		said := tools.NewRemote[struct {
			Text string `json:"text"`
		}]("said", "Says.", tools.Remote{Kind: "said", Resources: []tools.Resource{{Key: "shop/orders", Access: protocol.Exclusive}}})
		undo := planned("undo", tools.Effect{}, command)
		undo.Revert = nil
		r.tools = append(r.tools, test.tool, said, undo, reverted("forbidden", nil), reverted("asked", nil))
		r.opts.MinLevel = "paths"
		r.opts.Policy = judging(func(call policy.Call) policy.Verdict {
			return map[string]policy.Verdict{
				"undo": {MinLevel: "full"}, "forbidden": {Decision: policy.Denied, Reason: "no"}, "asked": {Decision: policy.Ask, MinLevel: "kernel"},
			}[call.Tool]
		})
		runner := mustNew(t, r.model, reporting{r.fleet, map[string]func(*protocol.Result){"a": test.change}}, r.journal, table(t, r.tools...), &r.opts)
		_, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
		require.NoError(t, err, name)
		got := r.watch.of(loop.EventToolResult)[0].Effect
		if test.want == nil || test.want.Revert == nil {
			require.Equal(t, test.want, got, name)
			continue
		}
		require.NotNil(t, got, name)
		require.Equal(t, test.want.Reaches, got.Reaches, name)
		require.NotNil(t, got.Revert, name)
		call, err := wire.DecodeCall(got.Revert.Call)
		require.NoError(t, err)
		require.Equal(t, test.want.Revert.Tool, got.Revert.Tool, name)
		require.Equal(t, map[string]string{"undo": "full", "asked": "kernel"}[call.Tool], call.MinLevel, name)
	}
}
