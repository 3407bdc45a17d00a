package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// byPrompt is a model that has a script for each first message of a user.
type byPrompt map[string]*script

func (m byPrompt) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	s := m[req.Messages[1].Text]
	if s == nil {
		return loop.Reply{}, fmt.Errorf("no script for %q", req.Messages[1].Text)
	}
	return s.Reply(ctx, req, delta)
}

// delegates is a reply that starts a sub-agent for each of the arguments.
func delegates(prefix string, arguments ...string) loop.Reply {
	reply := loop.Reply{Text: "delegating", Usage: protocol.Usage{InputTokens: 10, OutputTokens: 1}}
	for i, a := range arguments {
		reply.ToolCalls = append(reply.ToolCalls, loop.ToolCall{ID: fmt.Sprint(prefix, i), Name: "agent", Arguments: a})
	}
	return reply
}

// family is a rig whose first session starts sub-agents.
type family struct {
	*rig

	models byPrompt
	set    *triggers    // with withTriggers
	before []loop.Event // of turns that the session has already
}

// in has the family play in a session that a journal does not have yet.
func (f *family) in(t *testing.T, session protocol.SessionID, journal loop.Journal) *family {
	t.Helper()
	f.session = session
	_, err := journal.Append(t.Context(), session, 0, f.before...)
	require.NoError(t, err)
	return f
}

func newFamily(t *testing.T, models byPrompt) *family {
	t.Helper()
	r := newRig()
	set, err := toolset.Named("agents")
	require.NoError(t, err)
	r.tools = set
	return &family{rig: r, models: models}
}

func (f *family) run(ctx context.Context, t *testing.T) (loop.TurnResult, error) {
	t.Helper()
	runner := mustNew(t, f.models, f.fleet, f.journal, table(t, f.tools...), &f.opts)
	if f.set != nil {
		ctx = ports.WithTriggers(ctx, f.set)
	}
	return runner.Run(ctx, f.session, loop.Input{Text: "go"})
}

// mustRun runs a turn, which returns no error.
func (f *family) mustRun(ctx context.Context, t *testing.T) loop.TurnResult {
	t.Helper()
	result, err := f.run(ctx, t)
	require.NoError(t, err)
	return result
}

// child is the journal of the sub-agent that a call of the first turn started.
func (f *family) child(t *testing.T, step, index int) []loop.Event {
	t.Helper()
	history, err := f.journal.Load(context.Background(), protocol.SessionID(f.callID(t, 1, step, index)))
	require.NoError(t, err)
	return history.Events
}

// two has two sub-agents work, one after the other has begun.
func two() byPrompt {
	return byPrompt{
		"go": {replies: []loop.Reply{
			delegates("d", `{"prompt":"left"}`, `{"prompt":"right","workspace":"empty"}`, `{"prompt":"x","agent":"nobody"}`), asks("w", "work"), says("both are done"),
		}},
		"left":  {replies: []loop.Reply{asks("l", "work", "work"), asks("m", "work"), says("left is done")}},
		"right": {replies: []loop.Reply{asks("r", "greedy"), says("right is done")}},
	}
}

func TestAgent_WorksInASessionOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newFamily(t, two())
	f.opts.Price, f.opts.Sandbox = &loop.Price{Input: 100_000}, "shared"
	var both sync.WaitGroup // each waits for the other one
	both.Add(2)
	for _, prompt := range []string{"left", "right"} {
		var once sync.Once
		f.models[prompt].before = func(context.Context) { once.Do(func() { both.Done(); both.Wait() }) }
	}
	result := f.mustRun(t.Context(), t)
	require.Equal(t, "both are done", result.Text)
	require.Equal(t, 3, result.Steps)
	require.Equal(t, int64(8*11), result.Usage.Total(), "what sub-agents use counts")
	require.InDelta(t, 8.0, *result.CostUSD, 1e-9)

	said := texts(f.models["go"].lastSeen())
	require.Contains(t, said, "tool: left is done")
	require.Contains(t, said, "tool: right is done")
	require.Contains(t, strings.Join(said, "\n"), `There is no agent "nobody", and no other one`)
	requireProtocol(t, f.models["go"].lastSeen())
	events := f.child(t, 1, 0)
	require.Equal(t, &loop.Parent{SessionID: f.session, CallID: f.callID(t, 1, 1, 0)}, events[0].Parent)
	require.Equal(t, loop.EventTurnEnded, events[len(events)-1].Type)
	require.Equal(t, f.callID(t, 1, 1, 0), events[1].CallID)
	for _, e := range f.watch.events {
		require.Equal(t, f.session, e.SessionID, "observers see the session that they observe")
	}
	require.Contains(t, fmt.Sprint(f.watch.of(loop.EventAgentMoved)), "work {")
	for _, e := range f.watch.of(loop.EventToolResult) {
		if e.Index == 0 && e.Step == 1 {
			require.Equal(t, &protocol.Spending{Steps: 3, Calls: 3, Tokens: 33, USD: 3}, e.Spent)
		}
	}
	// Calls in the workspace of the parent have its key; an empty one is the sub-agent's own.
	for _, call := range f.fleet.runs {
		if call.Tool == "greedy" {
			require.Equal(t, protocol.ResourceKey("sandbox/"+call.SessionID), call.Resources[0].Key)
			require.NotEqual(t, f.session, call.SessionID)
		}
	}
	require.Len(t, f.fleet.runs, 5)
}

func TestAgent_CrashAtAnyAppendStartsNoneTwice(t *testing.T) {
	t.Parallel()
	requireCrashesChangeNothing(t, 25, func() *family { return newFamily(t, two()) }, func(clean, f *family, name string) {
		require.Equal(t, clean.fleet.ran(), f.fleet.ran(), name)
		for i, steps := range []int{3, 2} {
			events, replies := f.child(t, 1, i), 0
			requireOneResultEach(t, events)
			for _, e := range events {
				if e.Type == loop.EventModelReply {
					replies++
				}
			}
			require.Equal(t, steps, replies, name)
			require.Equal(t, loop.EventTurnEnded, events[len(events)-1].Type, name)
		}
	})
}

// requireCrashesChangeNothing crashes families at each append, which are more than some, and
// compares what became of each with one that did not crash.
func requireCrashesChangeNothing(t *testing.T, more int, family func() *family, same func(clean, f *family, name string)) {
	t.Helper()
	session, clean := protocol.NewSessionID(), family()
	clean.in(t, session, clean.journal)
	want := clean.mustRun(t.Context(), t)
	conversation := clean.placed(t, clean.models["go"].lastSeen())
	for n := 0; ; n++ {
		crashed := false
		for kept := range 3 {
			name := fmt.Sprintf("append %d, of which %d events are stored", n+1, kept)
			f, journal := family(), &crashingJournal{untilCrash: n, kept: kept}
			f.in(t, session, &journal.Journal).journal = journal
			got, err := f.run(t.Context(), t)
			for tries := 0; err != nil && tries < 5; tries++ {
				crashed = true
				require.ErrorIs(t, err, errCrash, name)
				got, err = f.run(t.Context(), t)
			}
			require.NoError(t, err, name)
			if got.Turn == want.Turn { // else the end of the turn was stored before the crash
				require.Equal(t, want, got, name)
				require.Equal(t, conversation, f.placed(t, f.models["go"].lastSeen()), name)
				same(clean, f, name)
			}
			if kept == journal.size {
				break // all of it was stored
			}
		}
		if !crashed {
			require.Greater(t, n, more)
			break
		}
	}
}

func TestAgent_IsStoppedWithItsParent(t *testing.T) {
	t.Parallel()
	f := newFamily(t, two())
	ctx, stop := context.WithCancel(t.Context())
	var once sync.Once
	f.models["left"].before = func(context.Context) { once.Do(stop) }
	result := f.mustRun(ctx, t)
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	events := f.child(t, 1, 0)
	require.Equal(t, string(loop.OutcomeInterrupted), events[len(events)-1].Status)
}

// A parent that is ended without its coordinator ends what it had started.
func TestAgent_OfAParentThatIsGivenUpEnds(t *testing.T) {
	t.Parallel()
	f := newFamily(t, two())
	ctx, leave := context.WithCancelCause(t.Context())
	f.models["left"].before = func(context.Context) { leave(loop.ErrDetached) }
	_, err := f.run(ctx, t)
	require.ErrorIs(t, err, loop.ErrDetached)
	require.NotEqual(t, loop.EventTurnEnded, f.child(t, 1, 0)[len(f.child(t, 1, 0))-1].Type)

	stopped, stop := context.WithCancel(t.Context())
	f.models["left"].before = func(context.Context) { stop() }
	result := f.mustRun(stopped, t)
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	events := f.child(t, 1, 0)
	require.Equal(t, string(loop.OutcomeInterrupted), events[len(events)-1].Status)
}

func TestAgent_IsBoundByTheBudgetOfItsParent(t *testing.T) {
	t.Parallel()
	endless := hungry(30)
	f := newFamily(t, byPrompt{
		"go":   {replies: []loop.Reply{delegates("d", `{"prompt":"left"}`), says("not asked")}},
		"left": {replies: endless},
	})
	f.opts.Budget = &protocol.Spending{Steps: 5}
	f.models["left"].replies[4] = says("as far as I came")
	result := f.mustRun(t.Context(), t)
	require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
	last := f.models["left"].seen[len(f.models["left"].seen)-1]
	require.Empty(t, last.Tools, "it is asked for an answer without tools")
	require.Contains(t, last.Messages[len(last.Messages)-1].Text,
		fmt.Sprintf("[The budget of session %s, which started this one, is used up: 5 steps of 5 steps.", f.session))
	require.Len(t, f.models["left"].seen, 5)
	require.Contains(t, f.watch.of(loop.EventToolResult)[0].Content, "as far as I came")
}

// What a sub-agent used counts once, also when another one follows, or the parent was resumed.
func TestAgent_CountsOnceForTheBudgetOfItsParent(t *testing.T) {
	t.Parallel()
	working := func() *script {
		return &script{replies: []loop.Reply{asks("l", "work"), asks("m", "work"), says("done")}}
	}
	f := newFamily(t, byPrompt{
		"go":   {replies: []loop.Reply{delegates("d", `{"prompt":"left"}`), delegates("e", `{"prompt":"right"}`), says("done")}},
		"left": working(), "right": working(),
	})
	f.opts.Budget = &protocol.Spending{Steps: 10} // of which 9 are used
	result := f.mustRun(t.Context(), t)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	for _, e := range f.watch.of(loop.EventToolResult) {
		require.Nil(t, e.Error, "no sub-agent has come to the limit")
	}

	f = newFamily(t, byPrompt{"go": {replies: []loop.Reply{delegates("d", `{"prompt":"left"}`)}}, "left": {replies: hungry(30)}})
	f.opts.Budget = &protocol.Spending{Steps: 5}
	ctx, leave := context.WithCancelCause(t.Context())
	f.models["left"].before = func(context.Context) {
		if len(f.models["left"].seen) == 2 {
			leave(loop.ErrDetached)
		}
	}
	_, err := f.run(ctx, t)
	require.ErrorIs(t, err, loop.ErrDetached)
	result = f.mustRun(t.Context(), t)
	require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
	replies := 0
	for _, e := range f.child(t, 1, 0) {
		if e.Type == loop.EventModelReply {
			replies++
		}
	}
	require.Equal(t, 5, replies, "the last one is the answer without tools")
}

func TestAgent_StartsAreBounded(t *testing.T) {
	t.Parallel()
	arguments := slices.Repeat([]string{`{"prompt":"left"}`}, 66)
	f := newFamily(t, byPrompt{
		"go":   {replies: []loop.Reply{delegates("d", arguments...), says("done")}},
		"left": {replies: slices.Repeat([]loop.Reply{says("left is done")}, 66)},
	})
	f.mustRun(t.Context(), t)
	refused := slices.DeleteFunc(f.watch.of(loop.EventToolResult), func(e loop.Event) bool { return e.Error == nil })
	require.Len(t, refused, 2)
	require.Equal(t, protocol.CodeLimitReached, refused[0].Error.Code)
}

// A kind may have fewer tools and steps than its parent, no more steps, and a budget of its own.
func TestAgent_HasBoundsOfItsOwn(t *testing.T) {
	t.Parallel()
	for kind, want := range map[*loop.Agent]int{{MaxSteps: 50}: 3, {MaxSteps: 2}: 2, {Budget: &protocol.Spending{Steps: 1}}: 2} {
		kind.Name, kind.Description, kind.Without = "kind", "Works.", []string{"inline"}
		f := newFamily(t, byPrompt{
			"go":   {replies: []loop.Reply{delegates("d", `{"prompt":"left","agent":"kind"}`), says("done")}},
			"left": {replies: hungry(9)},
		})
		f.opts.MaxSteps, f.opts.Agents = 3, []loop.Agent{*kind}
		f.mustRun(t.Context(), t)
		require.Len(t, f.models["left"].seen, want)
		for _, d := range f.models["left"].seen[0].Tools {
			require.NotEqual(t, "inline", d.Name)
		}
		f.opts.Agents = append(f.opts.Agents, *kind)
		_, err := loop.New(f.models, f.fleet, f.journal, table(t, f.tools...), &f.opts)
		require.ErrorContains(t, err, "agent kind: is there twice")
	}
}

func TestAgent_HasNothingThatItsParentHasNot(t *testing.T) {
	t.Parallel()
	f := newFamily(t, byPrompt{
		"go":   {replies: []loop.Reply{delegates("d", `{"prompt":"left","agent":"reader"}`), says("done")}},
		"left": {replies: []loop.Reply{asks("l", "work", "greedy", "inline"), says("left is done")}},
	})
	f.opts.Policy = denying(t, "greedy")
	f.opts.Agents = []loop.Agent{{Name: "reader", Description: "Reads.", System: "You read.", Tools: []string{"work", "greedy", "magic"}}}
	f.mustRun(t.Context(), t)
	require.Contains(t, f.models["go"].lastSeen()[0].Text, "- reader: Reads.")
	require.Contains(t, f.models["left"].lastSeen()[0].Text, "You read.")
	var names []string
	for _, d := range f.models["left"].seen[0].Tools {
		names = append(names, d.Name)
	}
	require.Equal(t, []string{"greedy", "work"}, names)
	said := texts(f.models["left"].lastSeen())
	require.Contains(t, said[4], "[rejected: policy_denied]")
	require.Contains(t, said[5], "There is no tool")
}

func TestAgent_DepthIsBounded(t *testing.T) {
	t.Parallel()
	deeper := []loop.Reply{delegates("d", `{"prompt":"deeper"}`), says("end")}
	f := newFamily(t, byPrompt{"go": {replies: deeper}, "deeper": {replies: deeper}})
	f.mustRun(t.Context(), t)
	require.Len(t, f.models["deeper"].seen, 6)
	text, err := json.Marshal(f.models["deeper"].seen)
	require.NoError(t, err)
	require.Contains(t, string(text), `There is no tool \"agent\"`)
}

// forking has two sub-agents work on forks of the workspace.
func forking(t *testing.T) *family {
	t.Helper()
	parent := delegates("d", `{"prompt":"left","workspace":"fork"}`, `{"prompt":"right","workspace":"fork"}`)
	before := asks("a", "greedy").ToolCalls
	parent.ToolCalls = append(before, parent.ToolCalls...)
	f := newFamily(t, byPrompt{
		"go":    {replies: []loop.Reply{parent, asks("w", "work"), says("both are done")}},
		"left":  {replies: []loop.Reply{asks("l", "greedy", "work"), says("left is done")}},
		"right": {replies: []loop.Reply{asks("r", "greedy"), says("right is done")}},
	})
	f.fleet.answer = func(call *protocol.Call) (protocol.Value, *protocol.Error) {
		switch call.Payload.(type) {
		case wire.WorkspaceFork:
			return wire.WorkspaceForkResult{Files: 1}, nil
		case wire.WorkspaceMerge:
			return wire.WorkspaceMergeResult{Written: []string{"new"}, Conflicts: []string{"both"}, Theirs: []string{"both.toolfleet-theirs"}, Checkpoint: 3}, nil
		default:
			return protocol.FilesWriteResult{}, nil
		}
	}
	return f
}

// kinds are the payloads that ran, in their order.
func (f *family) kinds() (kinds []string) {
	for _, call := range f.fleet.runs {
		kinds = append(kinds, string(wire.KindOf(call.Payload)))
	}
	return kinds
}

func TestAgent_WorksOnAForkThatIsMergedBack(t *testing.T) {
	t.Parallel()
	f := forking(t)
	result := f.mustRun(t.Context(), t)
	require.Equal(t, "both are done", result.Text)
	require.Equal(t, []string{"noop", "workspace_fork", "workspace_fork"}, f.kinds()[:3], "in the order of the step")
	parent := protocol.SandboxKey(string(f.session))
	for _, call := range f.fleet.runs {
		switch p := call.Payload.(type) {
		case wire.WorkspaceFork:
			require.Equal(t, []protocol.Use{{Key: parent, Access: protocol.Shared}}, call.Resources)
		case wire.WorkspaceMerge:
			require.Equal(t, []protocol.Use{{Key: parent, Access: protocol.Exclusive}}, call.Resources)
			require.Contains(t, []string{string(f.callID(t, 1, 1, 1)), string(f.callID(t, 1, 1, 2))}, p.From)
		default:
			if call.Tool == "greedy" && call.SessionID != f.session {
				require.Equal(t, protocol.ResourceKey("sandbox/"+call.SessionID), call.Resources[0].Key)
			}
		}
	}
	said := strings.Join(texts(f.models["go"].lastSeen()), "\n")
	require.Contains(t, said, "left is done\n\n[Merged into the workspace:\nchanged: new\nCONFLICTS, changed on both sides, and left as they are in the workspace: both\ntheir versions of the fork: both.toolfleet-theirs]")
}

// A fork and its merge are bound as each call of the turn: by its policy, else by the level of the
// process.
func TestAgent_ForksAndMergesAreBoundAsTheTurn(t *testing.T) {
	t.Parallel()
	for level, rules := range map[string][]policy.Policy{
		"paths": nil, "none": {{MinLevel: "none"}}, "full": {{MinLevel: "full", AtMostOnce: policy.AtMostOnce{Tools: []string{"agent"}}}},
	} {
		f := forking(t)
		f.opts.MinLevel = "paths"
		if len(rules) > 0 {
			judge, err := policy.New(rules...)
			require.NoError(t, err)
			f.opts.Policy = judge
		}
		f.mustRun(t.Context(), t)
		checked := 0
		for _, call := range f.fleet.runs {
			switch call.Payload.(type) {
			case wire.WorkspaceFork, wire.WorkspaceMerge:
				require.Equal(t, level, call.MinLevel)
				require.Equal(t, protocol.Idempotent, call.Delivery)
				checked++
			default:
			}
		}
		require.Equal(t, 4, checked)
	}
}

func TestAgent_CrashAtAnyAppendForksAndMergesOnce(t *testing.T) {
	t.Parallel()
	requireCrashesChangeNothing(t, 15, func() *family { return forking(t) }, func(clean, f *family, name string) {
		require.Equal(t, slices.Sorted(slices.Values(clean.kinds())), slices.Sorted(slices.Values(f.kinds())), name)
	})
}

// What an agent that was stopped has changed stays in its fork, and the model reads where.
func TestAgent_ThatIsStoppedIsNotMerged(t *testing.T) {
	t.Parallel()
	f := forking(t)
	ctx, stop := context.WithCancel(t.Context())
	f.models["left"].before = func(context.Context) { stop() }
	f.models["right"].before = func(ctx context.Context) { <-ctx.Done() }
	result := f.mustRun(ctx, t)
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.NotContains(t, f.kinds(), "workspace_merge")
	require.Contains(t, fmt.Sprint(f.watch.of(loop.EventToolResult)),
		"is not merged: it was stopped. Its files are in the workspace of session "+string(f.callID(t, 1, 1, 1)))
}

// leaving is a journal behind which a process loses its session as soon as a turn of another one
// has ended.
type leaving struct {
	loop.Journal

	parent protocol.SessionID
	leave  func()
}

func (j *leaving) Append(ctx context.Context, session protocol.SessionID, expected uint64, events ...loop.Event) (uint64, error) {
	last, err := j.Journal.Append(ctx, session, expected, events...)
	if session != j.parent && events[len(events)-1].Type == loop.EventTurnEnded {
		j.leave()
	}
	return last, err
}

// A process that loses the session between the end of an agent and the merge of its fork leaves the
// merge to the next one, and journals nothing about it.
func TestAgent_WhoseProcessIsLostIsMergedByTheNext(t *testing.T) {
	t.Parallel()
	f := forking(t)
	ctx, leave := context.WithCancelCause(t.Context())
	defer leave(nil)
	journal := f.journal
	f.journal = &leaving{journal, f.session, func() { leave(loop.ErrDetached) }}
	_, err := f.run(ctx, t)
	require.ErrorIs(t, err, loop.ErrDetached)
	f.journal = journal
	f.mustRun(t.Context(), t)
	for _, e := range f.events(t) {
		require.NotContains(t, e.Content, "is not merged")
	}
}

func TestAgent_WhoseForkFailsIsNotStarted(t *testing.T) {
	t.Parallel()
	f := forking(t)
	f.fleet.answer = func(call *protocol.Call) (protocol.Value, *protocol.Error) {
		if _, is := call.Payload.(wire.WorkspaceFork); is {
			return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "no room")
		}
		return protocol.FilesWriteResult{}, nil
	}
	f.mustRun(t.Context(), t)
	require.Contains(t, strings.Join(texts(f.models["go"].lastSeen()), "\n"), "no room")
	require.Empty(t, f.models["left"].seen)
}

// The answer of a fork that was merged is one message to the model.
func TestRun_ReadsOfASessionThatWasMerged(t *testing.T) {
	t.Parallel()
	f := newFamily(t, byPrompt{"go": {replies: []loop.Reply{says("first"), says("second")}}})
	f.mustRun(t.Context(), t)
	history, err := f.journal.Load(t.Context(), f.session)
	require.NoError(t, err)
	_, err = f.journal.Append(t.Context(), f.session, history.Last, loop.Event{Type: loop.EventSessionMerged, Turn: 1, Text: "the fork is done"})
	require.NoError(t, err)
	result := f.mustRun(t.Context(), t)
	require.Equal(t, "second", result.Text)
	require.Equal(t, []string{"user: go", "assistant: first", "user: the fork is done", "user: go"}, texts(f.models["go"].lastSeen())[1:])
}
