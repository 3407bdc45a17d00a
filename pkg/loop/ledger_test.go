package loop_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// bounded is a policy that allows some calls.
func bounded(t *testing.T, rules policy.Policy) *policy.Judge {
	t.Helper()
	judge, err := policy.New(rules)
	require.NoError(t, err)
	return judge
}

// TestLedger_BoundsHoldForAllInterfaces: the calls of turns and those from outside have one bound,
// in whatever order they come.
func TestLedger_BoundsHoldForAllInterfaces(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "work"), says("done"), asks("b", "work", "work"), says("done"))
	judge := bounded(t, policy.Policy{MaxCalls: 4})
	r.opts.Policy = judge
	r.mustRun(t.Context(), t, "go")
	require.Equal(t, []string{"ok", "ok"}, statuses(r))

	one := func(ledger *loop.Ledger, id protocol.CallID) *loop.Single {
		return loop.PlanSingle(t.Context(), table(t), r.session, "work", "{}", &loop.SingleOptions{Policy: judge, Ledger: ledger, ID: id, Interface: "call", By: "ada"})
	}
	require.NotNil(t, one(loop.NewLedger(r.journal), "k").Call)
	require.NotNil(t, one(loop.NewLedger(r.journal), "k").Call, "the same call once more is no other call")
	entries := r.events(t)
	require.Equal(t, loop.EventCallJudged, entries[len(entries)-1].Type)
	require.Equal(t, "call", entries[len(entries)-1].Interface)

	r.mustRun(t.Context(), t, "go")
	require.Equal(t, []string{"ok", "rejected"}, statuses(r)[2:], "the call from outside counts in the turn")
	refused := one(loop.NewLedger(r.journal), "")
	require.Nil(t, refused.Call)
	require.Contains(t, refused.Text, "used up its 4 tool calls")
}

// A single call begins its session in the journal, with its owner; that of another tenant then
// makes none in it, nor in its sandbox.
func TestLedger_ASingleCallBeginsASession(t *testing.T) {
	t.Parallel()
	r := newRig()
	one := func(who judge.Principal, session protocol.SessionID, o loop.SingleOptions) *loop.Single {
		o.Ledger = loop.NewLedger(r.journal)
		return loop.PlanSingle(judge.With(t.Context(), who), table(t), session, "work", "{}", &o)
	}
	first := func(session protocol.SessionID) loop.Event {
		history, err := r.journal.Load(t.Context(), session)
		require.NoError(t, err)
		require.True(t, history.Owned(), session)
		return history.Events[0]
	}
	ann := judge.Principal{Known: judge.ByToken, Name: "ann", Tenant: "acme"}
	eve := judge.Principal{Known: judge.ByToken, Name: "eve", Tenant: "other"}
	require.NotNil(t, one(ann, "anns", loop.SingleOptions{Sandbox: "box"}).Call)
	for _, session := range []protocol.SessionID{"anns", "box"} {
		require.Equal(t, judge.Owner{Tenant: first(session).Tenant, By: first(session).By}, ann.Owner())
		require.Nil(t, one(eve, session, loop.SingleOptions{}).Call)
	}
	require.Nil(t, one(eve, "eves", loop.SingleOptions{Sandbox: "box"}).Call)
	require.NotNil(t, one(judge.Principal{}, "operators", loop.SingleOptions{Policy: bounded(t, policy.Policy{MaxCalls: 4})}).Call)
	require.Empty(t, first("operators").By)
	require.Contains(t, one(eve, "operators", loop.SingleOptions{}).Text, "it needs a principal of tenant default")
}

// A failure of the journal is not a denial: the caller may try again.
func TestLedger_AJournalThatFailsIsNoRefusal(t *testing.T) {
	t.Parallel()
	o := loop.SingleOptions{Ledger: loop.NewLedger(full{newRig().journal})}
	ann := judge.Principal{Known: judge.ByToken, Name: "ann", Tenant: "acme"}
	single := loop.PlanSingle(judge.With(t.Context(), ann), table(t), "s", "work", "{}", &o)
	require.Nil(t, single.Call)
	require.Equal(t, protocol.CodeFleetUnavailable, single.Error.Code)
}

// full is a journal whose disk is full.
type full struct{ loop.Journal }

func (full) Append(context.Context, protocol.SessionID, uint64, ...loop.Event) (uint64, error) {
	return 0, errors.New("connection closed")
}

// A principal that may make no session begins none by a single call, be it refused or one that only
// reads.
func TestLedger_WhoMayMakeNoSessionBeginsNone(t *testing.T) {
	t.Parallel()
	r := newRig()
	reader := judge.Principal{Known: judge.ByToken, Name: "rita", Tenant: "acme", Role: judge.RoleRead}
	expired := judge.Principal{Known: judge.ByToken, Name: "ann", Tenant: "acme", Expires: time.Now().Add(-time.Second)}
	act := func(who judge.Principal, session protocol.SessionID, payload protocol.Payload) *loop.Single {
		o := loop.SingleOptions{Ledger: loop.NewLedger(r.journal)}
		return loop.PlanAct(judge.With(t.Context(), who), session, "", []string{"act"}, tools.Plan{Payload: payload}, "act", &o)
	}
	require.Contains(t, act(reader, "written", protocol.CommandRun{Command: "true"}).Text, "role run")
	require.Contains(t, act(expired, "late", protocol.FilesRead{Path: "f"}).Text, "expired")
	require.NotNil(t, act(reader, "read", protocol.FilesRead{Path: "f"}).Call, "there is nothing that it may not see")
	for _, session := range []protocol.SessionID{"written", "late", "read"} {
		history, err := r.journal.Load(t.Context(), session)
		require.NoError(t, err)
		require.Empty(t, history.Events, session)
	}
}

// A session that was removed is no session any more: another principal begins one of its name,
// whose owner counts from then on.
func TestLedger_ARemovedSessionHasNoOwner(t *testing.T) {
	t.Parallel()
	stored := &struct{ loop.Journal }{newRig().journal}
	ledger := loop.NewLedger(stored)
	one := func(tenant protocol.Tenant) *loop.Single {
		who := judge.Principal{Known: judge.ByToken, Name: "n", Tenant: tenant}
		return loop.PlanSingle(judge.With(t.Context(), who), table(t), "name", "work", "{}", &loop.SingleOptions{Ledger: ledger})
	}
	require.NotNil(t, one("acme").Call)
	require.Nil(t, one("other").Call)
	stored.Journal = newRig().journal // without the session
	require.NotNil(t, one("other").Call)
	require.Nil(t, one("acme").Call)
}

// TestLedger_ProcessesShareABound: many at once, each with what it knows, make exactly as many
// calls as are allowed.
func TestLedger_ProcessesShareABound(t *testing.T) {
	t.Parallel()
	r := newRig()
	judge := bounded(t, policy.Policy{MaxCallsOf: map[string]int{"work": 7}})
	var group sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 4 {
		ledger := loop.NewLedger(r.journal)
		for range 5 {
			group.Go(func() {
				single := loop.PlanSingle(t.Context(), table(t), r.session, "work", "{}", &loop.SingleOptions{Policy: judge, Ledger: ledger})
				mu.Lock()
				defer mu.Unlock()
				if single.Call != nil {
					made++
				}
			})
		}
	}
	group.Wait()
	require.Equal(t, 7, made)
}

// TestLedger_ARefusedCallIsNoCall: neither one that a rule refused, nor one that its worker
// refused.
func TestLedger_ARefusedCallIsNoCall(t *testing.T) {
	t.Parallel()
	r := newRig()
	judge := bounded(t, policy.Policy{MaxCalls: 1, Tools: policy.Names{Deny: []string{"inline"}}})
	ledger := loop.NewLedger(r.journal)
	plan := func(tool string) *loop.Single {
		return loop.PlanSingle(t.Context(), table(t), r.session, tool, "{}", &loop.SingleOptions{Policy: judge, Ledger: ledger})
	}
	require.Nil(t, plan("inline").Call)
	single := plan("work")
	require.NotNil(t, single.Call)
	refused := single.Finish(t.Context(), &protocol.Result{
		CallID: single.Call.ID, SessionID: r.session, Status: protocol.StatusRejected, Error: protocol.Errorf(protocol.CodePolicyDenied, "a link leads out"),
	})
	require.NoError(t, ledger.Append(t.Context(), r.session, "(called)", "work", "{}", refused))
	single = plan("work")
	require.NotNil(t, single.Call)
	require.NoError(t, ledger.Append(t.Context(), r.session, "(called)", "work", "{}",
		single.Finish(t.Context(), &protocol.Result{CallID: single.Call.ID, SessionID: r.session, Status: protocol.StatusOK})))
	require.Nil(t, plan("work").Call)
	ledger = loop.NewLedger(r.journal) // it counts as the first one did
	require.Nil(t, plan("work").Call)
}

// TestLedger_AnOpenTurnIsNotExtended: its process writes the journal, so a call that has to be
// counted is refused until it ends; others are made.
func TestLedger_AnOpenTurnIsNotExtended(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"))
	r.model.err = errors.New("down") //nolint:err113 // of one test
	_, err := r.journal.Append(t.Context(), r.session, 0, loop.Event{Type: loop.EventTurnStarted, SessionID: r.session, Turn: 1})
	require.NoError(t, err)
	plan := func(rules policy.Policy) *loop.Single {
		return loop.PlanSingle(t.Context(), table(t), r.session, "work", "{}", &loop.SingleOptions{Policy: bounded(t, rules), Ledger: loop.NewLedger(r.journal)})
	}
	refused := plan(policy.Policy{MaxCalls: 9})
	require.Nil(t, refused.Call)
	require.Equal(t, protocol.CodePolicyDenied, refused.Error.Code)
	require.Contains(t, refused.Text, "a turn of the session is open")
	require.NotNil(t, plan(policy.Policy{Tools: policy.Names{Deny: []string{"inline"}}}).Call)
	require.Len(t, r.events(t), 1)
}

// TestLedger_WhatIsHeldCountsTogether: calls that are not sent after all are not counted.
func TestLedger_WhatIsHeldCountsTogether(t *testing.T) {
	t.Parallel()
	r := newRig()
	judge := bounded(t, policy.Policy{MaxCalls: 2})
	plan := func(ledger *loop.Ledger) *protocol.Call {
		return loop.PlanSingle(t.Context(), table(t), r.session, "work", "{}", &loop.SingleOptions{Policy: judge, Ledger: ledger}).Call
	}
	batch, late := loop.NewLedger(r.journal), loop.NewLedger(r.journal)
	batch.Hold()
	late.Hold()
	for range 2 {
		require.NotNil(t, plan(batch))
		require.NotNil(t, plan(late))
	}
	require.Nil(t, plan(batch))
	require.Empty(t, r.events(t))
	require.NoError(t, batch.Flush(t.Context()))
	require.ErrorIs(t, late.Flush(t.Context()), loop.ErrJournalConflict)
	require.Nil(t, plan(loop.NewLedger(r.journal)))
}

// TestLedger_InMemoryIsBounded: without a journal a ledger counts so many sessions. Calls of one
// more are refused, and those of the others count on. One that has ended makes room, and so does
// one that has made no calls, or none for a day.
func TestLedger_InMemoryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		judge := bounded(t, policy.Policy{MaxCalls: 2, Tools: policy.Names{Deny: []string{"greedy"}}})
		ledger := loop.NewLedger(nil)
		tools := table(t)
		plan := func(session, tool string) *loop.Single {
			return loop.PlanSingle(t.Context(), tools, protocol.SessionID(session), tool, "{}", &loop.SingleOptions{Policy: judge, Ledger: ledger})
		}
		one := func(session string) *loop.Single { return plan(session, "work") }
		const most = 10_000
		for i := range most {
			require.NotNil(t, one(fmt.Sprint("s", i)).Call)
		}
		more := one("more")
		require.Nil(t, more.Call)
		require.Contains(t, more.Text, "the calls of 10000 sessions of the last 24h0m0s are counted in memory, and that is the limit: end sessions")
		require.NotNil(t, one("s0").Call)
		require.Contains(t, one("s0").Text, "used up its 2 tool calls", "it is not forgotten")
		ledger.Forget("s1")
		require.Nil(t, plan("without-calls", "greedy").Call)
		require.NotNil(t, one("more").Call, "it has no calls that count")
		require.Nil(t, one("yet-another").Call)
		time.Sleep(24*time.Hour - time.Second)
		require.Nil(t, one("yet-another").Call)
		require.Nil(t, one("s0").Call)
		time.Sleep(time.Second)
		last := one("yet-another")
		require.NotNil(t, last.Call, last.Text)
		require.Nil(t, one("s0").Call, "it was used since")
	})
}

// TestLedger_CallsSentAgainAreBounded: a call counts once when it is sent again, and as another one
// when so many came since that it is not known any more.
func TestLedger_CallsSentAgainAreBounded(t *testing.T) {
	t.Parallel()
	const known = 1000
	judge := bounded(t, policy.Policy{MaxCalls: known + 3})
	ledger := loop.NewLedger(nil)
	one := func(id int) bool {
		return loop.PlanSingle(t.Context(), table(t), "s", "work", "{}",
			&loop.SingleOptions{Policy: judge, Ledger: ledger, ID: protocol.CallID(fmt.Sprint("k", id))}).Call != nil
	}
	for i := range known + 1 {
		require.True(t, one(i))
	}
	require.True(t, one(known), "it is known")
	require.True(t, one(1))
	require.True(t, one(0), "it counts once more")
	require.True(t, one(known+1))
	require.False(t, one(known+2))
}

// Whatever a server says that its replies took, or does not say, the bounds of a turn's tokens and
// of a session's budget are reached. What is estimated says so.
func TestRun_TokensThatAreMissingOrMakeNoSenseAreEstimated(t *testing.T) {
	t.Parallel()
	for name, said := range map[string]protocol.Usage{
		"missing": {}, "negative": {InputTokens: -1_000_000, OutputTokens: -1}, "only output": {OutputTokens: 20},
		"very many": {InputTokens: math.MaxInt64, OutputTokens: math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var replies []loop.Reply
			for i := range 4 {
				reply := asks(strconv.Itoa(i), "work")
				reply.Usage = said
				replies = append(replies, reply)
			}
			r := newRig(append(replies, says("too much"))...)
			r.opts.MaxTokens, r.opts.System = 3000, "x"
			result, err := r.run(t.Context(), t, strings.Repeat("word ", 1000)) // 1,250 tokens in each request
			require.NoError(t, err)
			require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
			require.Equal(t, 3, result.Steps)
			require.True(t, result.Usage.Estimated)
			require.InDelta(t, 3*1450, result.Usage.InputTokens, 200)
			require.Positive(t, r.watch.of(loop.EventModelReply)[0].Usage.OutputTokens)
		})
	}
	reported := newRig(says("done"))
	result := reported.mustRun(t.Context(), t, "go")
	require.Equal(t, protocol.Usage{InputTokens: 10, OutputTokens: 1}, result.Usage)
}

// wasteful fails once before each of its replies, and the server reports what that took.
type wasteful struct {
	*script

	as *loop.Fallback
}

func (w wasteful) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	delta(loop.Delta{Failed: &loop.Reply{Usage: protocol.Usage{InputTokens: 100}, Fallback: w.as}})
	return w.script.Reply(ctx, req, delta)
}

// What failed attempts and replies took that are of no use counts in usage, cost and budget, once
// each, whether the turn goes on or fails.
func TestBudget_CountsRepliesThatFailed(t *testing.T) {
	t.Parallel()
	empty := says(" ")
	for name, test := range map[string]struct {
		replies []loop.Reply
		err     error
		as      *loop.Fallback
		tokens  int64
		cost    float64
	}{
		"an attempt":             {[]loop.Reply{says("done")}, nil, nil, 111, 110},
		"that of a fallback":     {[]loop.Reply{says("done")}, nil, &loop.Fallback{Model: "other", Price: &loop.Price{Input: 2_000_000}}, 111, 210},
		"an error":               {nil, errors.New("filtered"), nil, 100, 100},
		"a reply that is empty":  {[]loop.Reply{empty, says("done")}, nil, nil, 222, 220},
		"one that is two times ": {[]loop.Reply{empty}, nil, nil, 222, 220},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(test.replies...)
			r.model.err, r.opts.Price = test.err, &loop.Price{Input: 1_000_000}
			if len(test.replies) == 1 && test.replies[0].Text == empty.Text {
				r.model.replies = []loop.Reply{empty}
			}
			model := wasteful{r.model, test.as}
			asked := 0
			runner, err := loop.New(modelFunc(func(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
				req.Replies = min(asked, max(len(test.replies)-1, 0)) // the empty one is in no conversation
				asked++
				return model.Reply(ctx, req, delta)
			}), r.fleet, r.journal, table(t), &r.opts)
			require.NoError(t, err)
			result := mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
			require.Equal(t, test.tokens, result.Usage.Total())
			require.InDelta(t, test.cost, *result.CostUSD, 1e-9)
			budget := &protocol.Spending{Tokens: test.tokens}
			r.opts.Budget = budget
			next := r.mustRun(t.Context(), t, "more")
			require.Equal(t, loop.OutcomeLimitReached, next.Outcome)
			require.Zero(t, next.Steps)
		})
	}
}

// patient waits before its last reply, which another model makes.
type patient struct{ *script }

func (p patient) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	delta(loop.Delta{Waits: "429: slow down"})
	reply, err := p.script.Reply(ctx, req, delta)
	if len(reply.ToolCalls) == 0 {
		reply.Fallback = &loop.Fallback{Model: "other", Price: &loop.Price{Input: 200_000}}
	}
	return reply, err
}

// A reply of a fallback is journaled with its model, and costs that one's price; waits are shown.
func TestRun_FallbackRepliesAndWaitsAreShown(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.opts.Price = &loop.Price{Input: 100_000} // a reply has 10 input tokens: $1
	runner := mustNew(t, patient{r.model}, r.fleet, r.journal, table(t), &r.opts)
	result := mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
	require.InDelta(t, 3, *result.CostUSD, 1e-9)
	replies := r.watch.of(loop.EventModelReply)
	require.Empty(t, replies[0].Model)
	require.Equal(t, "other", replies[1].Model)
	require.Equal(t, "429: slow down", r.watch.of(loop.EventModelWaits)[0].Text)
	history, err := r.journal.Load(t.Context(), r.session)
	require.NoError(t, err)
	for _, e := range history.Events {
		require.NotEqual(t, loop.EventModelWaits, e.Type, "it is live")
	}
}
