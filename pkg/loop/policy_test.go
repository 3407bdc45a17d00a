package loop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

func newJudge(t *testing.T, rules string) *policy.Judge {
	t.Helper()
	p, err := policy.Parse("rules", []byte(rules))
	require.NoError(t, err)
	j, err := policy.New(p)
	require.NoError(t, err)
	return j
}

// statuses are those of the results, in the order of the calls.
func statuses(r *rig) []string {
	out := make([]string, 0)
	results := r.watch.of(loop.EventToolResult)
	slices.SortFunc(results, func(a, b loop.Event) int { return 100*(a.Step-b.Step) + a.Index - b.Index })
	for _, e := range results {
		out = append(out, e.Status)
	}
	return out
}

func decisions(r *rig) []string {
	out := make([]string, 0)
	for _, e := range r.watch.of(loop.EventPolicyDecision) {
		out = append(out, fmt.Sprintf("%d.%d %s %s %s %s", e.Step, e.Index, e.Name, e.Status, e.Rule, e.By))
	}
	return out
}

func TestPolicy_AtMostOnceIsTheDeliveryOfTheCall(t *testing.T) {
	t.Parallel()
	for rules, want := range map[string]protocol.Delivery{
		"at_most_once: {tools: [work]}":  protocol.AtMostOnce,
		"at_most_once: {tools: [other]}": protocol.Rollback,
	} {
		r := newRig(asks("a", "work"), says("done"))
		r.opts.Policy = newJudge(t, rules)
		r.mustRun(t.Context(), t, "go")
		require.Equal(t, want, r.fleet.runs[0].Delivery, rules)
	}
}

// bare is a dispatcher that is not a fleet's.
type bare struct{ loop.Dispatcher }

// sentBefore is a rig whose coordinator was lost after it had journaled the calls of a step under
// some rules; with takes the fleet has taken them.
func sentBefore(t *testing.T, rules string, takes bool, names ...string) *rig {
	t.Helper()
	r := newRig(asks("a", names...), says("done"))
	r.opts.Policy = newJudge(t, rules)
	ctx, leave := context.WithCancelCause(t.Context())
	defer leave(nil)
	if takes {
		never := make(chan struct{})
		r.fleet.hold = func(*protocol.Call) <-chan struct{} { leave(loop.ErrDetached); return never }
	} else {
		r.fleet.err = errors.New("no servers")
	}
	_, err := r.run(ctx, t, "go")
	require.Error(t, err)
	r.fleet.hold, r.fleet.err = nil, nil
	return r
}

// A call that was journaled, and that is denied when the turn is resumed, goes on if the fleet has
// it, and is not sent if the fleet does not.
func TestPolicy_ADeniedCallIsSentAgainOnlyIfTheFleetHasIt(t *testing.T) {
	t.Parallel()
	const deny, ask = "{tools: {deny: [work]}}", "{approval: {tools: [work]}}"
	for name, c := range map[string]struct {
		rules string
		takes bool
		want  string
	}{
		"denied, and the fleet has it":     {deny, true, "ok"},
		"denied, and was never sent":       {deny, false, "rejected"},
		"to be asked, the fleet has it":    {ask, true, "ok"},
		"to be asked, and was never sent":  {ask, false, "rejected"}, // there is nobody to ask
		"allowed, and was never sent":      {"{}", false, "ok"},
		"another tool is denied, not sent": {"{tools: {deny: [greedy]}}", false, "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := sentBefore(t, "{}", c.takes, "work")
			r.opts.Policy = newJudge(t, c.rules)
			r.mustRun(t.Context(), t, "go")
			require.Equal(t, []string{c.want}, statuses(r))
			require.Len(t, r.fleet.ran(), map[string]int{"ok": 1, "rejected": 0}[c.want])
			require.Len(t, r.fleet.void, map[string]int{"ok": 0, "rejected": 1}[c.want], "what is refused cannot be sent later")
			requireOneResultEach(t, r.events(t))
		})
	}
	t.Run("the fleet cannot be asked", func(t *testing.T) {
		t.Parallel()
		r := sentBefore(t, "{}", false, "work")
		r.opts.Policy, r.fleet.err = newJudge(t, deny), errors.New("no servers")
		_, err := r.run(t.Context(), t, "go")
		require.ErrorContains(t, err, "no servers")
		require.Empty(t, r.watch.of(loop.EventTurnEnded), "unknown is no denial")
		require.Empty(t, decisions(r))
	})
}

// What a denied call of this process may have done before is unknown, and it does not run again.
func TestPolicy_ADeniedInlineCallDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	ran := 0
	r, journal := newRig(asks("a", "here"), says("done")), &crashingJournal{untilCrash: 3}
	r.tools = []tools.Tool{tools.New("here", "Runs here.", func(context.Context, struct{}) (string, error) { ran++; return "said", nil })}
	r.model.replies[0].ToolCalls[0].Arguments = "{}"
	r.journal = journal
	_, err := r.run(t.Context(), t, "go")
	require.ErrorIs(t, err, errCrash)
	require.Equal(t, 1, ran)
	for crash := range 2 { // also if the decision is journaled, and not the result
		journal.untilCrash, journal.kept = 0-crash, 1
		r.opts.Policy = newJudge(t, "{tools: {deny: [here]}}")
		_, err = r.run(t.Context(), t, "go")
	}
	require.NoError(t, err)
	require.Equal(t, 1, ran)
	require.Equal(t, []string{"outcome_unknown"}, statuses(r))
}

// What bound a call when it was journaled binds it when it is sent by a coordinator whose rules
// demand less, or deny it.
func TestPolicy_WhatBindsACallNeverGetsWeaker(t *testing.T) {
	t.Parallel()
	const bound = "{at_most_once: {tools: [work]}, min_level: full, paths: {read: ['src/**'], write: ['src/**']}}"
	for name, change := range map[string]func(r *rig){
		"no rules":      func(r *rig) { r.opts.Policy = nil },
		"weaker rules":  func(r *rig) { r.opts.Policy = newJudge(t, "{min_level: paths}") },
		"it is denied":  func(r *rig) { r.opts.Policy = newJudge(t, "{tools: {deny: [work]}}") },
		"a lower level": func(r *rig) { r.opts.MinLevel = "none" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(asks("a", "work"), says("done"))
			r.opts.Policy = judges{newJudge(t, bound)} // no rules that the journal has
			r.fleet.err = errors.New("no servers")
			ctx := wire.WithFlow(t.Context(), "acme", "")
			_, err := r.run(ctx, t, "go")
			require.Error(t, err)
			r.fleet.err = nil
			change(r)
			runner := mustNew(t, r.model, bare{r.fleet}, r.journal, table(t), &r.opts)
			mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
			require.Len(t, r.fleet.runs, 1)
			call := r.fleet.runs[0]
			require.Equal(t, protocol.AtMostOnce, call.Delivery)
			require.Equal(t, "full", call.MinLevel)
			require.Equal(t, []protocol.Roots{{Read: []string{"src/**"}, Write: []string{"src/**"}}}, call.Roots)
			require.Equal(t, protocol.Tenant("acme"), call.Tenant)
			require.Nil(t, r.watch.of(loop.EventToolCall)[0].Bound, "observers do not see it")
		})
	}
}

// judges is a policy that is none of an operator's rules.
type judges struct{ judge *policy.Judge }

func (j judges) Judge(call policy.Call) policy.Verdict { return j.judge.Judge(call) }

// The least level of a turn is one of its terms: a coordinator that takes it over cannot lower it.
func TestPolicy_TheLeastLevelIsATermOfTheTurn(t *testing.T) {
	t.Parallel()
	for least, want := range map[string]string{"none": "full", "kernel": "kernel"} {
		sandboxed := tools.Tool{
			Definition: tools.Definition{Name: "sandboxed", Description: "Runs.", Schema: json.RawMessage(`{"type":"object"}`)},
			Plan: func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
				return tools.Plan{Payload: protocol.CommandRun{Command: "true"}, Resources: []protocol.Use{}}, nil
			},
			Render: func(r *protocol.Result) string { return string(r.Status) },
		}
		r, journal := newRig(asks("a", "sandboxed"), says("done")), &crashingJournal{untilCrash: 1}
		r.journal, r.tools, r.opts.MinLevel = journal, []tools.Tool{sandboxed}, "full"
		_, err := r.run(t.Context(), t, "go")
		require.ErrorIs(t, err, errCrash) // before the call is journaled
		r.opts.MinLevel = least
		r.mustRun(t.Context(), t, "go")
		require.Equal(t, want, r.fleet.runs[0].MinLevel)
	}
}

func TestPolicy_DenialsAreResultsAndInTheAuditLog(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "inline", "nosuch", "greedy"), says("done"))
	var log bytes.Buffer
	r.opts.Policy = newJudge(t, "tools: {deny: [inline, greedy]}\nmin_level: full")
	r.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, []string{"ok", "rejected", "rejected", "rejected"}, statuses(r))
	require.Equal(t, []string{"1.1 inline denied tools.deny ", "1.3 greedy denied tools.deny "}, decisions(r))
	requireProtocol(t, r.model.lastSeen())
	seen := r.model.lastSeen()[4].Text
	require.Contains(t, seen, "[rejected: policy_denied]\nThe tool inline is not allowed in this session.")
	require.Contains(t, seen, "nothing was run and nothing has changed")
	require.Len(t, r.fleet.runs, 1)
	require.Equal(t, "full", r.fleet.runs[0].MinLevel)
	require.Equal(t, 2, strings.Count(log.String(), "decision=denied rule=tools.deny"))
	require.Contains(t, log.String(), "tool=greedy")
}

func TestPolicy_DeniedCallsSpendNothing(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "inline", "work", "inline"), asks("b", "nosuch", "work", "work"), asks("c", "work", "work"), says("done"))
	r.opts.Policy = newJudge(t, "tools: {deny: [inline]}\nmax_calls: 4\nmax_calls_of: {work: 4}")
	r.mustRun(t.Context(), t, "go")
	require.Equal(t, []string{"rejected", "ok", "rejected", "rejected", "ok", "ok", "ok", "rejected"}, statuses(r))
	// The bound is of the session, not of a turn.
	r.model.replies = append(r.model.replies, asks("d", "work"), says("done"))
	r.mustRun(t.Context(), t, "more")
	require.Equal(t, "rejected", statuses(r)[0], "the first of the second turn's steps")
	require.Len(t, r.fleet.runs, 4)
}

func TestPolicy_APersonIsAskedInOrderBeforeAnythingOfTheStepRuns(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "greedy", "greedy", "inline"), says("done"))
	r.opts.Policy = newJudge(t, "approval: {tools: [greedy]}")
	var asked []loop.ApprovalRequest
	r.opts.Approve = func(_ context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
		require.Empty(t, r.fleet.runs)
		asked = append(asked, request)
		return protocol.Approval{Granted: len(asked) == 1, By: "ada", Note: "not twice"}, nil
	}
	r.mustRun(t.Context(), t, "go")
	require.Equal(t, []string{"ok", "ok", "rejected", "ok"}, statuses(r))
	require.Equal(t, []string{"1.1 greedy approved approval.tools ada", "1.2 greedy refused approval.tools ada"}, decisions(r))
	require.Contains(t, r.model.lastSeen()[5].Text, "A person was asked about this call and said no. They said: not twice")
	require.Len(t, asked, 2)
	require.Equal(t, loop.ApprovalRequest{
		SessionID: r.session, CallID: r.watch.of(loop.EventToolCall)[1].CallID, Tool: "greedy", Arguments: `{"n":1}`, Reason: "calls of greedy need approval",
	}, asked[0])
	live := r.watch.of(loop.EventApprovalAsked)
	require.Len(t, live, 2)
	require.Equal(t, `{"n":1}`, live[0].Arguments)
	journaled := slices.DeleteFunc(r.events(t), func(e loop.Event) bool { return e.Type != loop.EventApprovalAsked })
	require.Equal(t, live, journaled, "others see that it waits")
}

// A person who approves for the session is not asked again about the same call, also in later
// turns; about other arguments they are.
func TestPolicy_AnApprovalForTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "inline", "greedy"), says("done"), asks("b", "inline", "greedy"), says("done"), asks("c", "greedy"), says("done"))
	r.opts.Policy = newJudge(t, "approval: {tools: [greedy, inline]}")
	asked := 0
	r.opts.Approve = func(_ context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
		asked++
		return protocol.Approval{Granted: true, Session: request.Tool == "greedy", By: "ada", Via: "fleet"}, nil
	}
	r.mustRun(t.Context(), t, "go")
	require.Equal(t, 2, asked)
	r.mustRun(t.Context(), t, "again")
	require.Equal(t, 3, asked, "the journal has it for greedy")
	decided, questions := r.journaled(t, loop.EventPolicyDecision), r.journaled(t, loop.EventApprovalAsked)
	scope, _ := loop.ScopeOf("greedy", `{"n":1}`)
	require.Equal(t, []string{"", scope, "", ""}, []string{decided[0].Scope, decided[1].Scope, decided[2].Scope, decided[3].Scope})
	require.Equal(t, "approved ada session", decided[3].Status+" "+decided[3].By+" "+decided[3].Via)
	require.Len(t, questions, 3)
	require.Equal(t, scope, questions[1].Scope)
	_, words := loop.ScopeOf("write", `{"path":"`+strings.Repeat("x", 5000)+`"}`)
	require.Equal(t, "this very call of write", words, "a question has room for its scope, too")
	require.NoError(t, mustNew(t, r.model, r.fleet, r.journal, table(t, r.tools...), &r.opts).Rewind(t.Context(), r.session, 0))
	r.mustRun(t.Context(), t, "once more")
	require.Equal(t, 4, asked, "the conversation was taken back to before the approval")
}

// An approval for the session counts as long as its giver could give it: not after the token of
// that client has expired or was removed, also for a call that is journaled as approved by it and
// was not sent, when its turn is resumed.
func TestPolicy_AnApprovalOfOneWhoseTokenIsGone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		giver  *protocol.Giver
		stands []bool // when the second and the third turn ask
		asked  int
	}{
		"no token":             {nil, nil, 1},
		"a good token":         {&protocol.Giver{Token: "stored:1", Until: time.Now().Add(time.Hour)}, []bool{true, true}, 1},
		"it was removed":       {&protocol.Giver{Token: "stored:1", Until: time.Now().Add(time.Hour)}, []bool{true, false}, 2},
		"it has expired":       {&protocol.Giver{Token: "stored:1", Until: time.Now().Add(-time.Second)}, nil, 3},
		"no process can look":  {&protocol.Giver{Token: "stored:1"}, nil, 3},
		"removed, then as was": {&protocol.Giver{Token: "stored:1"}, []bool{false, true}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(asks("a", "greedy"), says("done"), asks("b", "greedy"), says("done"), asks("c", "greedy"), says("done"))
			r.opts.Policy = newJudge(t, "approval: {tools: [greedy]}")
			asked, looks := 0, 0
			r.opts.Approve = func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
				asked++
				return protocol.Approval{Granted: true, Session: true, By: "ada", Via: "fleet", Giver: test.giver}, nil
			}
			if test.stands != nil {
				r.opts.GiverValid = func(_ context.Context, giver protocol.Giver) bool {
					require.Equal(t, "stored:1", giver.Token)
					looks++
					return test.stands[looks-1]
				}
			}
			for range 3 {
				r.mustRun(t.Context(), t, "go")
			}
			require.Equal(t, test.asked, asked)
			require.Len(t, test.stands, looks)
			for _, e := range r.journaled(t, loop.EventPolicyDecision) {
				if test.giver == nil {
					require.Nil(t, e.Giver)
					continue
				}
				require.Equal(t, test.giver.Token, e.Giver.Token, "who gave it is in the journal, also where it is used")
			}
		})
	}
}

// A turn that crashed at any write asks again about a call that an approval for the session has let
// pass, if it was not sent and the token of the giver was removed meanwhile.
func TestPolicy_AnApprovalForTheSessionIsJudgedAtResume(t *testing.T) {
	t.Parallel()
	outcomes := map[int]int{}
	for crash := range 12 {
		journal := &crashingJournal{untilCrash: -1, kept: 1}
		r := newRig(asks("a", "greedy"), says("done"), asks("b", "greedy"), says("done"), says("more"))
		r.journal = journal
		r.opts.Policy = newJudge(t, "approval: {tools: [greedy]}")
		asked, removed := 0, false
		r.opts.Approve = func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
			asked++
			return protocol.Approval{Granted: true, Session: true, Giver: &protocol.Giver{Token: "stored:1"}}, nil
		}
		r.opts.GiverValid = func(context.Context, protocol.Giver) bool { return !removed }
		r.mustRun(t.Context(), t, "go")
		journal.untilCrash = crash
		_, err := r.run(t.Context(), t, "again")
		journal.untilCrash = -1
		if err == nil {
			continue
		}
		decided, sent := len(r.journaled(t, loop.EventPolicyDecision)) == 2, len(r.journaled(t, loop.EventToolCall)) == 2
		removed = true
		r.mustRun(t.Context(), t, "again")
		want := 2
		if sent {
			want = 1
		}
		require.Equal(t, want, asked, "crash %d, decided %t, sent %t", crash, decided, sent)
		if decided {
			outcomes[asked]++
		}
	}
	require.Positive(t, outcomes[1])
	require.Positive(t, outcomes[2], "it was approved, and not sent")
}

// A person is asked about a call with all of its arguments, or the call is not made: they are never
// left out because the journal takes no more.
func TestPolicy_NoApprovalOfWhatIsNotShown(t *testing.T) {
	t.Parallel()
	call := asks("a", "greedy")
	call.ToolCalls[0].Arguments = `{"n":1` + strings.Repeat(" ", 20_000) + `}`
	decisions := map[string]int{}
	for most := 20_300; most < 20_900; most += 20 {
		r := newRig(call, says("done"), says("checked"), says("checked"))
		r.journal = &tightJournal{most: most}
		r.opts.Policy = newJudge(t, "approval: {tools: [greedy]}")
		r.opts.Approve = func(_ context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
			require.Equal(t, call.ToolCalls[0].Arguments, request.Arguments)
			return protocol.Approval{Granted: true}, nil
		}
		_, err := r.run(t.Context(), t, "go")
		require.NoError(t, err)
		for _, e := range r.events(t) {
			switch e.Type {
			case loop.EventApprovalAsked:
				require.Equal(t, call.ToolCalls[0].Arguments, e.Arguments, most)
			case loop.EventPolicyDecision:
				decisions[e.Status]++
			default:
			}
		}
	}
	require.Positive(t, decisions["approved"])
	require.Positive(t, decisions["denied"])
}

// What a person says with a yes reaches the model with the result, and the audit log.
func TestPolicy_TheNoteOfAYesReachesTheModel(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "greedy", "inline", "inline_fails", "work"), says("done"))
	var log bytes.Buffer
	r.opts.Policy = newJudge(t, "approval: {tools: [greedy, inline, inline_fails]}")
	r.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	note := " only\xff once " + strings.Repeat("n", 3000)
	r.opts.Approve = func(_ context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
		return protocol.Approval{Granted: true, By: "ada", Note: map[bool]string{true: note, false: "for " + request.Tool}[request.Tool == "inline_fails"]}, nil
	}
	r.mustRun(t.Context(), t, "go")
	seen := r.model.lastSeen()
	for i, want := range []string{"for greedy", "for inline", "only\uFFFD once " + strings.Repeat("n", 1988) + "…"} {
		require.True(t, strings.HasSuffix(seen[3+i].Text, "\n[the call was approved by a person, who said: "+want+"]"), seen[3+i].Text)
	}
	require.NotContains(t, seen[6].Text, "approved")
	decided := r.watch.of(loop.EventPolicyDecision)
	require.Equal(t, "for greedy", decided[0].Note)
	require.Equal(t, "ada", decided[0].By)
	require.Contains(t, log.String(), `decision=approved rule=approval.tools by=ada note="for greedy"`)
}

// After a crash nobody is asked again, and the note is there still.
func TestPolicy_NotesSurviveACrash(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "greedy"), says("done"))
	r.opts.Policy = newJudge(t, "approval: {tools: [greedy]}")
	ctx, crash := context.WithCancelCause(t.Context())
	r.opts.Approve = func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
		defer crash(loop.ErrDetached)
		return protocol.Approval{Granted: true, Note: "once"}, nil
	}
	_, err := r.run(ctx, t, "go")
	require.ErrorIs(t, err, loop.ErrDetached)
	require.Empty(t, r.watch.of(loop.EventToolResult))
	r.opts.Approve = nil
	r.mustRun(t.Context(), t, "")
	require.Contains(t, r.model.lastSeen()[3].Text, "who said: once]")
}

// What a rule denies is journaled when it is decided, as what a person decides is: it is in the
// journal while the person is asked about another call, and a process that ends then loses nothing.
func TestPolicy_ADenialIsJournaledWhenItIsDecided(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "inline", "greedy"), says("done"))
	r.opts.Policy = newJudge(t, "{tools: {deny: [inline]}, approval: {tools: [greedy]}}")
	ctx, end := context.WithCancelCause(t.Context())
	r.opts.Approve = func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
		defer end(loop.ErrDetached)
		denied := r.journaled(t, loop.EventPolicyDecision)
		if assert.Len(t, denied, 1) {
			assert.Equal(t, "inline denied tools.deny", denied[0].Name+" "+denied[0].Status+" "+denied[0].Rule)
		}
		return protocol.Approval{Granted: true}, nil
	}
	_, err := r.run(ctx, t, "go")
	require.ErrorIs(t, err, loop.ErrDetached)
	_, err = r.run(t.Context(), t, "")
	require.NoError(t, err)
	require.Equal(t, []string{"1.0 inline denied tools.deny ", "1.1 greedy approved approval.tools "}, decisions(r), "each once")
	require.Equal(t, []string{"rejected", "ok"}, statuses(r))
}

func TestPolicy_NoAnswerIsNo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(asks("a", "greedy"), says("done"))
		r.opts.Policy = newJudge(t, "approval: {tools: [greedy], timeout: 90s}")
		r.opts.Approve = func(ctx context.Context, _ loop.ApprovalRequest) (protocol.Approval, error) {
			<-ctx.Done()
			return protocol.Approval{}, ctx.Err()
		}
		start := time.Now()
		r.mustRun(t.Context(), t, "go")
		require.Equal(t, 90*time.Second, time.Since(start))
		require.Equal(t, []string{"1.0 greedy expired approval.tools "}, decisions(r))
		require.Contains(t, r.model.lastSeen()[3].Text, "nobody answered within 1m30s")
	})
}

func TestPolicy_NobodyToAsk(t *testing.T) {
	t.Parallel()
	for name, approve := range map[string]func(context.Context, loop.ApprovalRequest) (protocol.Approval, error){
		"there is nobody to ask": nil,
		"nobody could be asked (no terminal)": func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
			return protocol.Approval{Granted: true}, errors.New("no terminal")
		},
	} {
		r := newRig(asks("a", "greedy"), says("done"))
		r.opts.Policy, r.opts.Approve = newJudge(t, "approval: {tools: [greedy]}"), approve
		r.mustRun(t.Context(), t, "go")
		require.Equal(t, []string{"rejected"}, statuses(r))
		require.Contains(t, r.model.lastSeen()[3].Text, name)
		require.Empty(t, r.fleet.runs)
	}
}

func TestPolicy_InterruptedQuestionCancelsTheStep(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "greedy", "work"), says("done"))
	r.opts.Policy = newJudge(t, "approval: {tools: [greedy]}")
	ctx, cancel := context.WithCancel(t.Context())
	r.opts.Approve = func(ctx context.Context, _ loop.ApprovalRequest) (protocol.Approval, error) {
		cancel()
		return protocol.Approval{}, ctx.Err()
	}
	result := r.mustRun(ctx, t, "go")
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.Equal(t, []string{"cancelled", "cancelled", "cancelled"}, statuses(r))
	require.Empty(t, decisions(r))
	require.Empty(t, r.fleet.runs)
}

func TestPolicy_DetachedQuestionIsAskedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "greedy"), says("done"))
	r.opts.Policy = newJudge(t, "approval: {tools: [greedy]}")
	ctx, detach := context.WithCancelCause(t.Context())
	r.opts.Approve = func(ctx context.Context, _ loop.ApprovalRequest) (protocol.Approval, error) {
		detach(loop.ErrDetached)
		return protocol.Approval{}, ctx.Err()
	}
	_, err := r.run(ctx, t, "go")
	require.ErrorIs(t, err, loop.ErrDetached)
	require.Empty(t, r.fleet.runs)
	r.opts.Approve = func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
		return protocol.Approval{Granted: true}, nil
	}
	r.mustRun(t.Context(), t, "go")
	require.Len(t, r.fleet.runs, 2)
}

// guarded is a conversation in which a policy has much to say.
func guarded() []loop.Reply {
	return []loop.Reply{
		asks("a", "work", "greedy", "inline_fails", "greedy", "work"),
		asks("b", "nosuch", "greedy", "inline", "work"),
		asks("c", "work", "greedy", "work"),
		says("done"),
		says("checked"),
	}
}

func TestPolicy_CrashAtAnyAppendChangesNothing(t *testing.T) {
	t.Parallel()
	session := protocol.NewSessionID()
	rules := newJudge(t, "tools: {deny: [inline]}\nmax_calls: 8\nmax_calls_of: {work: 4}\napproval: {tools: [greedy]}")
	guard := func(r *rig) *rig {
		r.session, r.opts.Policy = session, rules
		r.opts.Approve = func(_ context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
			return protocol.Approval{Granted: request.Arguments != `{"n":3}`, Note: "never the fourth"}, nil
		}
		return r
	}
	clean := guard(newRig(guarded()...))
	clean.mustRun(t.Context(), t, "go")
	require.Equal(t, []string{"ok", "ok", "failed", "rejected", "ok", "rejected", "ok", "rejected", "ok", "ok", "ok", "rejected"}, statuses(clean))
	want := settled(t, clean)

	appends := 0
	for n := 0; ; n++ {
		crashed := false
		for kept := range 5 {
			name := fmt.Sprintf("append %d, of which %d events are stored", n+1, kept)
			r, journal := guard(newRig(guarded()...)), &crashingJournal{untilCrash: n, kept: kept}
			r.journal = journal
			result, err := r.run(t.Context(), t, "go")
			if err != nil {
				crashed = true
				require.ErrorIs(t, err, errCrash, name)
				result, err = r.run(t.Context(), t, "go")
			}
			require.NoError(t, err, name)
			journal.untilCrash = -1
			if result.Turn == 1 {
				require.Equal(t, want, settled(t, r), name)
			}
			require.Equal(t, clean.fleet.ran(), r.fleet.ran(), name)
			requireOneResultEach(t, r.events(t))
		}
		if !crashed {
			break
		}
		appends++
	}
	require.Greater(t, appends, 15)
}

// verdicts is a policy that gives every call one verdict.
type verdicts policy.Verdict

func (v verdicts) Judge(policy.Call) policy.Verdict { return policy.Verdict(v) }

func TestPolicy_WhatAPolicySaysThatIsNoDecisionIsNo(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.opts.Policy = verdicts{Decision: "deny"}
	r.mustRun(t.Context(), t, "go")
	require.Equal(t, []string{"rejected"}, statuses(r))
	require.Contains(t, r.watch.of(loop.EventToolResult)[0].Content, `"deny"`)
	single := loop.PlanSingle(t.Context(), table(t), "s", "work", "{}", &loop.SingleOptions{Policy: verdicts{Decision: "deny"}})
	require.Nil(t, single.Call)
	require.Equal(t, protocol.CodePolicyDenied, single.Error.Code)

	r = newRig(asks("a", "work"), says("done"))
	r.opts.Policy = verdicts{MinLevel: "Full"}
	r.mustRun(t.Context(), t, "go")
	require.Equal(t, "Full", r.fleet.runs[0].MinLevel, "for a worker to refuse")
}

func TestPolicy_AQuestionWithoutATimeHasTheDefault(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.opts.Policy = verdicts{Decision: policy.Ask}
	r.opts.Approve = func(ctx context.Context, _ loop.ApprovalRequest) (protocol.Approval, error) {
		until, _ := ctx.Deadline()
		require.Greater(t, time.Until(until), 4*time.Minute)
		return protocol.Approval{Granted: true}, nil
	}
	r.mustRun(t.Context(), t, "go")
	require.Equal(t, []string{"ok"}, statuses(r))
}

// A tool may have rules of its own, which are none of the session's.
func TestPolicy_ADenialOfTheToolIsNoDecision(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.fleet.answer = func(*protocol.Call) (protocol.Value, *protocol.Error) {
		return nil, protocol.Errorf(protocol.CodePolicyDenied, "not on a Sunday")
	}
	r.mustRun(t.Context(), t, "go")
	require.Empty(t, decisions(r))
	require.Equal(t, []string{"rejected"}, statuses(r))
}

// One call of a session and its sub-agents is asked about at a time, and each has the whole time of
// its rule: it begins when the call can be answered.
func TestPolicy_TheTimeForAnAnswerBeginsWhenItCanBeGiven(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reply := delegates("d", `{"prompt":"left","background":true}`, `{"prompt":"right","background":true}`)
		f := newFamily(t, byPrompt{
			"go":    {replies: []loop.Reply{reply, asks("w", "work"), says("x"), says("both are done"), says("both are done")}},
			"left":  {replies: []loop.Reply{asks("l", "work"), says("left is done")}},
			"right": {replies: []loop.Reply{asks("r", "work"), says("right is done")}},
		})
		f.opts.Policy = newJudge(t, "{approval: {tools: [work], timeout: 10s}}")
		asked := 0
		f.opts.Approve = func(ctx context.Context, _ loop.ApprovalRequest) (protocol.Approval, error) {
			asked++
			defer func() { asked-- }()
			require.Equal(t, 1, asked)
			select {
			case <-time.After(9 * time.Second): // a person who takes nearly all of it
				return protocol.Approval{Granted: true}, nil
			case <-ctx.Done():
				return protocol.Approval{}, ctx.Err()
			}
		}
		begun := time.Now()
		f.mustRun(t.Context(), t)
		require.Equal(t, 27*time.Second, time.Since(begun))
		decided := f.watch.of(loop.EventPolicyDecision)
		for i := range 2 {
			for _, e := range f.child(t, 1, i) {
				if e.Type == loop.EventPolicyDecision {
					decided = append(decided, e)
				}
			}
		}
		require.Len(t, decided, 3)
		for _, e := range decided {
			require.Equal(t, "approved", e.Status)
		}
	})
}

// A question that could not be shown is asked again, with its whole time, until the turn ends.
func TestPolicy_AQuestionThatWaitedIsAskedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, asked := newRig(asks("a", "greedy"), says("done")), 0
		r.opts.Policy = newJudge(t, "approval: {tools: [greedy], timeout: 90s}")
		r.opts.Approve = func(ctx context.Context, _ loop.ApprovalRequest) (protocol.Approval, error) {
			if asked++; asked < 3 {
				<-ctx.Done()
				return protocol.Approval{}, fmt.Errorf("%w: %w", loop.ErrAskAgain, ctx.Err())
			}
			time.Sleep(80 * time.Second)
			return protocol.Approval{Granted: true}, ctx.Err()
		}
		r.mustRun(t.Context(), t, "go")
		require.Equal(t, []string{"ok"}, statuses(r))
		require.Len(t, r.watch.of(loop.EventApprovalAsked), 1)
	})
}
