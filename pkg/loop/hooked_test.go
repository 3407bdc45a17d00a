package loop_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

func denies(reason string) func(loop.HookRequest) (loop.HookAnswer, error) {
	return answers(loop.HookAnswer{Decision: policy.Denied, Reason: reason})
}

// Hooks see what a model reads and replies.
func TestHooks_SeeModelRequests(t *testing.T) {
	t.Parallel()
	var h hooked
	r := newRig(asks("a", "work"), says("done"))
	r.opts.ModelName = "small"
	r.opts.Hooks = []loop.Hook{h.on(loop.HookBeforeModel, answers(loop.HookAnswer{})), h.on(loop.HookAfterModel, answers(loop.HookAnswer{}))}
	r.mustRun(t.Context(), t, "go")
	require.Len(t, h.asked, 4)
	first, reply, second, last := h.asked[0], h.asked[1], h.asked[2], h.asked[3]
	require.Equal(t, "small", first.Request.Model)
	require.Equal(t, loop.HookMessage{Role: loop.RoleUser, Content: "go"}, first.Request.Messages[1])
	require.Contains(t, first.Request.Tools, "work")
	require.Equal(t, "work", reply.Reply.ToolCalls[0].Name)
	require.Equal(t, []int{1, 1, 2, 2}, []int{first.Step, reply.Step, second.Step, last.Step})
	require.Len(t, second.Request.Messages, 4)
	require.Equal(t, loop.RoleTool, second.Request.Messages[3].Role)
	require.Equal(t, "done", last.Reply.Content)
	require.Empty(t, r.watch.of(loop.EventTextDelta), "nothing is shown before hooks have seen it")
	require.Equal(t, loop.HookAfterModel, r.watch.of(loop.EventModelReply)[1].Hook.Event)
}

// A request that is refused is not made; a reply that is refused is paid, and otherwise nowhere.
func TestHooks_RefuseModelRequests(t *testing.T) {
	t.Parallel()
	var h hooked
	r := newRig(asks("a", "work"), says("not asked"))
	r.opts.Hooks = []loop.Hook{h.on(loop.HookBeforeModel, func(r loop.HookRequest) (loop.HookAnswer, error) {
		if r.Step == 2 {
			return loop.HookAnswer{Decision: policy.Denied, Reason: "it has a secret"}, nil
		}
		return loop.HookAnswer{}, nil
	})}
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	require.Equal(t, "a hook refused the turn (BeforeModel): it has a secret", result.Error.Message)
	require.Len(t, r.model.seen, 1)

	paid := says("the secret word")
	paid.Usage = protocol.Usage{InputTokens: 100, OutputTokens: 20}
	r = newRig(paid)
	r.opts.Price = &loop.Price{Input: 1_000_000}
	r.opts.Hooks = []loop.Hook{h.on(loop.HookAfterModel, denies("it says too much"))}
	result = r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	require.Equal(t, "a hook refused the turn (AfterModel): it says too much", result.Error.Message)
	require.EqualValues(t, 100, result.Usage.InputTokens)
	require.InDelta(t, 100, *result.CostUSD, 1e-9)
	stored, err := json.Marshal(r.events(t))
	require.NoError(t, err)
	require.NotContains(t, string(stored), "secret")
	observed, err := json.Marshal(r.watch.events)
	require.NoError(t, err)
	require.NotContains(t, string(observed), "secret")

	for _, a := range []loop.HookAnswer{{Context: "c"}, {Decision: policy.Ask}, {Input: json.RawMessage("{}")}} {
		r = newRig(says("done"))
		r.opts.Hooks = []loop.Hook{h.on(loop.HookAfterModel, answers(a))}
		require.Contains(t, r.mustRun(t.Context(), t, "go").Error.Message, "the hook failed")
	}
}

// What a person says while a hook decides is in no request that the hook has not seen.
func TestHooks_SeeWhatAPersonAddsMeanwhile(t *testing.T) {
	t.Parallel()
	var h hooked
	r := newRig(says("done"), says("that, too"))
	r.opts.Additions = &loop.Additions{}
	r.opts.Hooks = []loop.Hook{h.on(loop.HookBeforeModel, func(q loop.HookRequest) (loop.HookAnswer, error) {
		if len(q.Request.Messages) == 2 {
			added, err := r.opts.Additions.Add(context.Background(), "and this")
			require.True(t, added && err == nil)
		}
		return loop.HookAnswer{}, nil
	})}
	r.mustRun(t.Context(), t, "go")
	require.Len(t, h.asked, 2)
	for i, request := range r.model.seen {
		require.Len(t, request.Messages, len(h.asked[i].Request.Messages))
	}
	require.Equal(t, "and this", h.asked[1].Request.Messages[3].Content)
}

func TestHooks_RefuseASummary(t *testing.T) {
	t.Parallel()
	var h hooked
	writer := &summarizer{}
	r := newRig(talkative(8)...)
	r.opts.Compaction = &loop.Compaction{Model: writer, ModelName: "small", At: 600}
	r.opts.Hooks = []loop.Hook{h.on(loop.HookCompact, denies("keep it"))}
	require.Equal(t, loop.OutcomeAnswered, r.mustRun(t.Context(), t, "go").Outcome)
	require.Empty(t, writer.asked)
	require.Equal(t, "small", h.asked[0].Request.Model)
	require.Contains(t, h.asked[0].Request.Messages[1].Content, "asking a")
	require.Len(t, r.watch.of(loop.EventHookDecided), 1)
	_, err := mustNew(t, r.model, r.fleet, r.journal, table(t), &r.opts).Compact(t.Context(), r.session, "")
	require.ErrorContains(t, err, "a hook refused it: keep it")
	_, err = loop.History{Events: r.events(t)}.Recording()
	require.NoError(t, err)
}

// Calls that no model makes are seen, changed and refused, and the session's journal says so.
func TestHooks_OfSingleCalls(t *testing.T) {
	t.Parallel()
	replaced := "redacted"
	plan := func(tool, arguments string, rules loop.Policy, hooks ...loop.Hook) (*loop.Single, *rig) {
		r := newRig()
		return loop.PlanSingle(t.Context(), table(t), r.session, tool, arguments, &loop.SingleOptions{
			Hooks: hooks, Policy: rules, Ledger: loop.NewLedger(r.journal), ID: "mine", Interface: "call",
		}), r
	}
	var h hooked
	changes := h.on(loop.HookBefore, answers(loop.HookAnswer{Input: json.RawMessage(`{"n":7}`), Context: "mind it"}))
	single, r := plan("work", `{"n":1}`, nil, changes, h.on(loop.HookAfter, answers(loop.HookAnswer{Output: &replaced})))
	require.NotNil(t, single.Call)
	require.Equal(t, []any{"call", "work", protocol.CallID("mine"), `{"n":1}`}, []any{h.asked[0].Interface, h.asked[0].Tool, h.asked[0].CallID, string(h.asked[0].Input)})
	entries := r.events(t)
	require.Equal(t, loop.EventCallJudged, entries[len(entries)-1].Type, "it is journaled before it is sent")
	require.JSONEq(t, `{"n":7}`, string(entries[len(entries)-1].Hook.Input))
	sent := r.fleet.Send(t.Context(), []protocol.Call{*single.Call}, nil)[0]
	<-sent.Done()
	result, err := sent.Result()
	require.NoError(t, err)
	single.Finish(t.Context(), result)
	require.Equal(t, "redacted\n[A hook changed the arguments of the call to {\"n\":7}]\n[A hook adds: mind it\n]", single.Text)
	require.Nil(t, single.Result.Value, "a typed value would say what the hook replaced")
	journaled := single.Turn(r.session, 1, "", "work", `{"n":1}`)
	require.JSONEq(t, `{"n":7}`, journaled[2].Arguments)
	require.True(t, journaled[3].Hook.Replaced)

	single, r = plan("work", "{}", nil, h.on(loop.HookBefore, denies("not now")))
	require.Nil(t, single.Call)
	require.Equal(t, "A hook refused the call: not now", single.Error.Message)
	entries = r.events(t)
	require.Equal(t, "denied hooks.PreToolUse", entries[len(entries)-1].Status+" "+entries[len(entries)-1].Rule)

	single, _ = plan("work", "{}", newJudge(t, "tools: {deny: [work]}"), h.on(loop.HookBefore, answers(loop.HookAnswer{Decision: policy.Allowed})))
	require.Nil(t, single.Call, "a hook weakens no policy")

	single, _ = plan("inline", "{}", nil, h.on(loop.HookAfter, denies("private")))
	require.Equal(t, "[A hook withheld the result: private]", single.Text)

	// A call that was planned before has no arguments to be changed, and hooks of each tool that
	// does the same decide.
	matching := changes
	matching.Matches = func(tool string) bool { return tool == "read" }
	act := loop.PlanAct(t.Context(), "s", "resources/read", []string{"other", "read"},
		tools.Plan{Payload: protocol.FilesRead{Path: "f"}}, "file:x", &loop.SingleOptions{Hooks: []loop.Hook{matching}})
	require.ErrorContains(t, act.Error, "changed arguments")

	// The reader of a result that another process gets.
	made := protocol.Result{SessionID: "s", CallID: "c", Tool: "work", Status: protocol.StatusOK, Value: protocol.FilesReadResult{}}
	require.Equal(t, "redacted", loop.ResultByHooks(t.Context(), []loop.Hook{h.on(loop.HookAfter, answers(loop.HookAnswer{Output: &replaced}))}, &made, "all", "http"))
	require.Nil(t, made.Value)
}
