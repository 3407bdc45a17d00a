package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

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
	_, err := r.run(t.Context(), t, "and then")
	require.NoError(t, err)
	require.Equal(t, []string{ok, denied, ok}, r.statuses(1))
	require.ElementsMatch(t, []string{ok, ok}, r.statuses(2))

	// Those of whoever goes on bind beside them.
	r = leftOpen(t, loop.Options{Policy: denying(t, "greedy")}, asks("b", "greedy", "inline", "work"), says("done"), asks("c", "greedy", "inline"), says("done"))
	r.opts.Policy = denying(t, "inline")
	_, err = r.run(t.Context(), t, "and then")
	require.NoError(t, err)
	require.Equal(t, []string{ok, denied, denied, ok}, r.statuses(1))
	require.ElementsMatch(t, []string{denied, ok}, r.statuses(2))

	// A turn under the rules that bind it anyway is judged once.
	r = leftOpen(t, loop.Options{Policy: denying(t, "greedy")}, asks("b", "greedy"), says("done"))
	r.opts.Policy = denying(t, "greedy")
	_, err = r.runInput(t.Context(), t, loop.Input{})
	require.NoError(t, err)
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
		_, err = r.run(t.Context(), t, "go")
		require.NoError(t, err)
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
	_, err = r.runInput(t.Context(), t, loop.Input{})
	require.NoError(t, err)
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
	_, err := r.run(t.Context(), t, "and then")
	require.NoError(t, err)
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
			result, err := r.runInput(t.Context(), t, loop.Input{})
			require.NoError(t, err)
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
		Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{Input: "go", Terms: &loop.Terms{Policies: []json.RawMessage{json.RawMessage(`{"weather":"fine"}`)}}},
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
	_, err = r.run(t.Context(), t, "go")
	require.NoError(t, err)
	r.fleet.err, r.opts.Policy = nil, nil
	_, err = r.run(t.Context(), t, "and")
	require.NoError(t, err)
	require.Equal(t, "full", r.fleet.runs[0].MinLevel)
}
