package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// hungry asks for a tool in each of so many replies, and then answers.
func hungry(replies int) []loop.Reply {
	var all []loop.Reply
	for i := range replies {
		all = append(all, asks(string(rune('a'+i)), "work"))
	}
	return append(all, says("as far as I came"), says("next"))
}

// told counts the messages of the last request that contain a text.
func (r *rig) told(text string) int {
	n := 0
	for _, message := range r.model.lastSeen() {
		n += strings.Count(message.Text, text)
	}
	return n
}

func TestBudget_IsToldOnceAndEndsWithAnAnswer(t *testing.T) {
	t.Parallel()
	price := &loop.Price{Input: 100_000, Output: 0} // a reply has 10 input tokens: $1
	for name, budget := range map[string]protocol.Spending{
		"5 steps": {Steps: 5}, "5 tool calls": {Calls: 5}, "55 tokens": {Tokens: 55}, "$5.00": {USD: 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(hungry(5)...)
			r.opts.Budget, r.opts.Price = &budget, price
			result := r.mustRun(t.Context(), t, "go")
			require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
			require.Equal(t, "as far as I came", result.Text)
			require.Equal(t, 6, result.Steps)
			require.InDelta(t, 6.0, *result.CostUSD, 1e-9)
			require.Equal(t, protocol.CodeLimitReached, result.Error.Code)
			require.Contains(t, result.Error.Message, " of "+name)
			for i, request := range r.model.seen {
				require.Equal(t, i == 5, len(request.Tools) == 0, "request %d", i)
			}
			require.Equal(t, 1, r.told("Most of the budget of the session is used"))
			require.Equal(t, 1, r.told("is used up"))
			require.Len(t, r.watch.of(loop.EventBudgetLow), 1)
			require.Equal(t, 4, r.watch.of(loop.EventBudgetLow)[0].Step)
			requireProtocol(t, r.model.lastSeen())

			// It is the session's, also for a process that names none.
			r.opts.Budget = nil
			result = r.mustRun(t.Context(), t, "more")
			require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
			require.Zero(t, result.Steps)
			require.Len(t, r.model.seen, 6)
			// A larger one goes on.
			r.opts.Budget = &protocol.Spending{}
			result = r.mustRun(t.Context(), t, "still more")
			require.Equal(t, "next", result.Text)
		})
	}
}

func TestBudget_TimeOfAllTurnsCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(says("one"), asks("b", "work"), says("two"))
		r.model.before = func(context.Context) { time.Sleep(10 * time.Second) }
		r.opts.Budget = &protocol.Spending{TimeMS: 15_000}
		result := r.mustRun(t.Context(), t, "go")
		require.Equal(t, loop.OutcomeAnswered, result.Outcome)
		time.Sleep(time.Hour) // between turns nothing is used
		result = r.mustRun(t.Context(), t, "more")
		require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
		require.Equal(t, "two", result.Text)
		require.Contains(t, result.Error.Message, "30s of 15s")
	})
}

func TestBudget_CrashAtAnyAppendChangesNothing(t *testing.T) {
	t.Parallel()
	session := protocol.NewSessionID()
	begin := func() *rig {
		r := newRig(hungry(5)...)
		r.session, r.opts.Budget = session, &protocol.Spending{Calls: 5}
		return r
	}
	clean := begin()
	want := clean.mustRun(t.Context(), t, "go")
	conversation := clean.placed(t, clean.model.lastSeen())
	for n := 0; ; n++ {
		crashed := false
		for kept := range 2 {
			name := fmt.Sprintf("append %d, of which %d events are stored", n+1, kept)
			r, journal := begin(), &crashingJournal{untilCrash: n, kept: kept}
			r.journal = journal
			got, err := r.run(t.Context(), t, "go")
			if err != nil {
				crashed = true
				require.ErrorIs(t, err, errCrash, name)
				if len(r.events(t)) > 1 { // else the turn is yet to begin
					r.opts.Budget = nil
				}
				got, err = r.run(t.Context(), t, "go")
			}
			require.NoError(t, err, name)
			if got.Turn == 1 {
				require.Equal(t, want, got, name)
				require.Equal(t, conversation, r.placed(t, r.model.lastSeen()), name)
			}
			require.Equal(t, clean.fleet.ran(), r.fleet.ran(), name)
		}
		if !crashed {
			require.Greater(t, n, 15)
			break
		}
	}
}

func TestBudget_WithoutAnAnswerItEndsAllTheSame(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), asks("b", "work"))
	r.opts.Budget = &protocol.Spending{Steps: 1}
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeLimitReached, result.Outcome, "a tool call that was not offered is not made")
	require.Equal(t, "asking b", result.Text)
	require.Len(t, r.fleet.ran(), 1)

	r = newRig(asks("a", "work"))
	r.opts.Budget = &protocol.Spending{Steps: 1}
	result = r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeLimitReached, result.Outcome, "the model has no reply left")
}

func TestBudget_InDollarsNeedsAPrice(t *testing.T) {
	t.Parallel()
	r := newRig(says("one"), says("two"))
	r.opts.ModelName = "openai:some"
	r.opts.Budget = &protocol.Spending{USD: 1}
	_, err := loop.New(r.model, r.fleet, r.journal, table(t), &r.opts)
	require.EqualError(t, err, "budget: usd 1: the price of model openai:some is unknown")

	r.opts.Price = &loop.Price{}
	r.mustRun(t.Context(), t, "go")
	r.opts.Price, r.opts.Budget = nil, nil
	result := r.mustRun(t.Context(), t, "more")
	require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
	require.Contains(t, result.Error.Message, "the price of model openai:some is unknown")
}

func TestBudget_RefusesWhatIsNoBound(t *testing.T) {
	t.Parallel()
	r := newRig()
	r.opts.Budget = &protocol.Spending{Steps: -1, Calls: -1, Tokens: -1, TimeMS: -1, USD: math.NaN()}
	_, err := loop.New(r.model, r.fleet, r.journal, table(t), &r.opts)
	for _, field := range []string{"steps", "calls", "tokens", "time", "usd"} {
		require.ErrorContains(t, err, "budget: "+field)
	}
	r.opts.Budget, r.opts.Price = &protocol.Spending{USD: math.Inf(1)}, &loop.Price{}
	_, err = loop.New(r.model, r.fleet, r.journal, table(t), &r.opts)
	require.ErrorContains(t, err, "budget: usd +Inf: must")
}

func TestBudget_RefusedCallsDoNotCount(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "nothing", "nothing"), asks("b", "work"), says("done"))
	r.opts.Budget = &protocol.Spending{Calls: 2}
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
}

func TestCost_IsUnknownWithOneReplyOfAnUnknownPrice(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.opts.Price = &loop.Price{Input: 100_000}
	ctx, stop := context.WithCancelCause(t.Context())
	r.fleet.told = func(protocol.Call) { stop(loop.ErrDetached) }
	_, err := r.run(ctx, t, "go")
	require.ErrorIs(t, err, loop.ErrDetached)
	r.opts.Price = nil
	result := r.mustRun(t.Context(), t, "go")
	require.Nil(t, result.CostUSD)
	require.Nil(t, r.watch.of(loop.EventTurnEnded)[0].CostUSD)
	require.NotNil(t, r.watch.of(loop.EventModelReply)[0].CostUSD)
}

// A budget in dollars is refused where a model of unknown price may reply, whichever way that one
// comes into the session; a budget that the session has already ends the turn.
func TestBudget_InDollarsNeedsThePriceOfEachModel(t *testing.T) {
	t.Parallel()
	agentTool := tools.Tool{
		Definition: tools.Definition{Name: "agent", Description: "x", Schema: json.RawMessage(`{"type":"object"}`)},
		Plan:       func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) { return tools.Plan{}, nil },
	}
	other := &script{}
	for name, change := range map[string]func(*rig) loop.Model{
		"other (fallback)": func(r *rig) loop.Model { return standIn{r.model} },
		"other (compaction)": func(r *rig) loop.Model {
			r.opts.Compaction = &loop.Compaction{Model: other, ModelName: "other"}
			return r.model
		},
		"other (agent helper)": func(r *rig) loop.Model {
			r.opts.Agents = []loop.Agent{{Name: "helper", Model: other, ModelName: "other"}}
			return r.model
		},
		"other (fallback) is unknown\nbudget: usd 1: the price of model other (fallback) (agent h)": func(r *rig) loop.Model {
			r.opts.Agents = []loop.Agent{{Name: "h", Model: standIn{other}, Price: &loop.Price{}}}
			return standIn{r.model}
		},
	} {
		r := newRig(says("one"), says("two"))
		r.opts.Price, r.opts.Budget = &loop.Price{}, &protocol.Spending{USD: 1}
		model := change(r)
		_, err := loop.New(model, r.fleet, r.journal, table(t, agentTool), &r.opts)
		require.ErrorContains(t, err, "budget: usd 1: the price of model "+name)
		require.EqualError(t, r.opts.CheckPrices(model, table(t, agentTool)), err.Error())

		plain := r.opts
		plain.Compaction, plain.Agents = nil, nil
		first := mustNew(t, r.model, r.fleet, r.journal, table(t), &plain)
		mustRun(t.Context(), t, first, r.session, loop.Input{Text: "go"})
		r.opts.Budget = nil // the session has one
		next := mustNew(t, model, r.fleet, r.journal, table(t), &r.opts)
		result := mustRun(t.Context(), t, next, r.session, loop.Input{Text: "more"})
		if len(r.opts.Agents) == 0 { // this one is refused when it is started
			require.Contains(t, result.Error.Message, "the price of model other")
		}
	}
}

// standIn is a model with a fallback of unknown price.
type standIn struct{ *script }

func (standIn) Fallback() loop.Fallback { return loop.Fallback{Model: "other"} }

// What a provider bills in addition to tokens counts: writes to its cache, and calls of its tools.
func TestCost_OfCacheWritesAndTheProvidersTools(t *testing.T) {
	t.Parallel()
	reply := says("done")
	reply.Usage = protocol.Usage{InputTokens: 1000, CachedTokens: 100, CacheWriteTokens: 800, OutputTokens: 100}
	reply.Native = []loop.NativeCall{{Name: "web_search", Kind: "web_search"}, {Name: "new_tool", Kind: "new_tool", Uses: 2}}
	r := newRig(reply)
	r.opts.Price = &loop.Price{Input: 1_000_000, Output: 2_000_000, Tools: map[string]float64{"web_search": 10, "code": 50}}
	result := r.mustRun(t.Context(), t, "go")
	require.InDelta(t, 1000+0.25*800+200+10+2*50, *result.CostUSD, 1e-9)
}

// A fork starts at zero: what its origin used is the origin's, and its budget is whole.
func TestBudget_AForkStartsAtZero(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), asks("b", "work"), says("one"), says("two"))
	r.opts.Budget = &protocol.Spending{Steps: 3}
	r.mustRun(t.Context(), t, "go")
	fork := append(r.events(t), loop.Event{Type: loop.EventSessionForked})
	for i := range fork {
		fork[i].SessionID, fork[i].Seed = "fork", ""
	}
	_, err := r.journal.Append(t.Context(), "fork", 0, fork...)
	require.NoError(t, err)
	r.session = "fork"
	result := r.mustRun(t.Context(), t, "go on")
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, "two", result.Text)
}

// What a sub-agent in the background uses counts for its parent while it runs, and the parent's end
// names the bound and whose it is.
func TestBudget_TheEndNamesTheBoundAndWhoseItIs(t *testing.T) {
	t.Parallel()
	f := newFamily(t, byPrompt{
		"go":   {replies: []loop.Reply{calls("a", "agent", `{"prompt":"left"}`), says("done")}},
		"left": {replies: hungry(9)},
	})
	f.opts.Budget = &protocol.Spending{Steps: 4}
	f.mustRun(t.Context(), t)
	result := f.journaled(t, loop.EventToolResult)[0]
	require.Contains(t, result.Error.Message, fmt.Sprintf("the budget of session %s, which started this one, is used up (", f.session))
	require.Contains(t, result.Error.Message, "steps of 4 steps)")
	ended := f.journaled(t, loop.EventTurnEnded)
	require.Contains(t, ended[len(ended)-1].Error.Message, "the budget of the session is used up (")
}
