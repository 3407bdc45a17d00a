package loop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// streaming passes the calls of each reply on one by one, with a pause before each but the first.
type streaming struct {
	*script

	pause time.Duration
	// breaks, if set, is called before the call at a position; its error ends the reply.
	breaks func(req loop.Request, index int) error
	// first, if set, is passed on before the reply, as one that begins again.
	first []loop.ToolCall
}

func (s *streaming) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	reply, err := s.script.Reply(ctx, req, delta)
	if err != nil {
		return reply, err
	}
	for i := range s.first {
		delta(loop.Delta{Call: &s.first[i], Index: i})
	}
	s.first = nil
	for i := range reply.ToolCalls {
		if i > 0 && s.pause > 0 {
			time.Sleep(s.pause)
		}
		if s.breaks != nil {
			if err := s.breaks(req, i); err != nil {
				return loop.Reply{}, err
			}
		}
		delta(loop.Delta{Call: &reply.ToolCalls[i], Index: i})
	}
	return reply, nil
}

func (r *rig) stream(t *testing.T, model *streaming) *loop.Runner {
	t.Helper()
	model.script = r.model
	runner := mustNew(t, model, r.fleet, r.journal, table(t, r.tools...), &r.opts)
	return runner
}

// Two seconds lie between the calls of a reply, and the first one takes two seconds: it has ended
// when the second one is there, so the turn takes two seconds and not four.
func TestStreamed_ACallRunsWhileTheReplyStreams(t *testing.T) {
	t.Parallel()
	turn := func(early bool) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(asks("a", "work", "work"), says("done"))
			r.fleet.takes = 2 * time.Second
			begun := time.Now()
			model := &streaming{pause: 2 * time.Second}
			if !early {
				model.breaks = nil
				r.opts.Policy = newJudge(t, "approval: {tools: [work]}")
				r.opts.Approve = func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
					return protocol.Approval{Granted: true}, nil
				}
			}
			result, err := r.stream(t, model).Run(t.Context(), r.session, loop.Input{Text: "go"})
			require.NoError(t, err)
			require.Equal(t, loop.OutcomeAnswered, result.Outcome)
			require.Equal(t, []string{"1/1/0", "1/1/1"}, r.fleet.ran())
			require.Equal(t, 2, r.fleet.sent, "the step holds what was sent early")
			took = time.Since(begun)
		})
		return took
	}
	require.Equal(t, 4*time.Second, turn(true), "the first call, and then the second one")
	require.Equal(t, 6*time.Second, turn(false), "after two seconds of the reply both calls, one after the other")
}

// A call is not sent early behind one that was not, or that a person is asked about.
func TestStreamed_OrderAndPolicy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		calls []string
		rules string
		early int
	}{
		"all":               {[]string{"work", "greedy", "work"}, "", 3},
		"behind inline":     {[]string{"work", "inline", "work"}, "", 1},
		"denied":            {[]string{"work", "greedy", "work"}, "tools: {deny: [greedy]}", 1},
		"asked about":       {[]string{"work", "greedy", "work"}, "approval: {tools: [greedy]}", 1},
		"bounded in total":  {[]string{"work", "work", "work"}, "max_calls: 2", 2},
		"unknown":           {[]string{"nothing", "work"}, "", 0},
		"in the background": {[]string{"build", "work"}, "", 0},
	} {
		r := newJobRig(asks("a", test.calls...), says("done"))
		if test.rules != "" {
			r.opts.Policy = newJudge(t, test.rules)
		}
		_, err := r.stream(t, &streaming{}).Run(t.Context(), r.session, loop.Input{Text: "go"})
		require.NoError(t, err, name)
		early, types := 0, []loop.EventType{}
		for _, e := range r.events(t) {
			if e.Type == loop.EventModelReply {
				break
			}
			if types = append(types, e.Type); e.Type == loop.EventToolCall {
				early++
			}
		}
		require.Equal(t, test.early, early, "%s: %v", name, types)
		requireProtocol(t, r.model.lastSeen())
		for _, n := range r.fleet.times() {
			require.Equal(t, 1, n, name)
		}
	}
}

// A reply that breaks off is journaled with the calls that were sent; the model is asked again, and
// reads their results.
func TestStreamed_AReplyThatBreaksOff(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "work", "work"), asks("b", "work"), says("done"))
	broken := errors.New("the stream broke")
	model := &streaming{breaks: func(req loop.Request, index int) error {
		if req.Step == 1 && index == 2 {
			return broken
		}
		return nil
	}}
	result, err := r.stream(t, model).Run(t.Context(), r.session, loop.Input{Text: "go"})
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, []string{"1/1/0", "1/1/1", "1/2/0"}, r.fleet.ran())
	reply := r.watch.of(loop.EventModelReply)[0]
	require.Equal(t, "broken_off", reply.Finish)
	require.Len(t, reply.ToolCalls, 2)
	require.Equal(t, "asking a", reply.Text)
	requireProtocol(t, r.model.lastSeen())
}

// A model that begins its reply again with another call has that journaled as well: what was sent
// was sent.
func TestStreamed_AReplyThatBeginsAgain(t *testing.T) {
	t.Parallel()
	other := loop.ToolCall{ID: "other", Name: "work", Arguments: `{"n":7}`}
	for name, first := range map[string][]loop.ToolCall{"the same": {asks("a", "work").ToolCalls[0]}, "another": {other}} {
		r := newRig(asks("a", "work", "work"), says("done"))
		result, err := r.stream(t, &streaming{first: first}).Run(t.Context(), r.session, loop.Input{Text: "go"})
		require.NoError(t, err, name)
		require.Equal(t, loop.OutcomeAnswered, result.Outcome, name)
		replies := r.watch.of(loop.EventModelReply)
		if name == "the same" {
			require.Len(t, replies[0].ToolCalls, 2)
			require.Empty(t, replies[0].Finish)
			continue
		}
		require.Equal(t, []loop.ToolCall{other}, replies[0].ToolCalls)
		require.Equal(t, "broken_off", replies[0].Finish)
	}
}

// After a crash at any append every call has run at most once, and has its result.
func TestStreamed_CrashAtAnyAppend(t *testing.T) {
	t.Parallel()
	for n := 0; ; n++ {
		crashed := false
		for kept := range 3 {
			name := fmt.Sprintf("append %d, of which %d events are stored", n+1, kept)
			r, journal := newRig(asks("a", "work", "greedy", "inline", "work"), asks("b", "work", "work"), says("done"), says("done"), says("checked"), says("checked")),
				&crashingJournal{untilCrash: n, kept: kept}
			r.journal = journal
			runner := r.stream(t, &streaming{})
			_, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
			if err != nil {
				crashed = true
				require.ErrorIs(t, err, errCrash, name)
				_, err = runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
			}
			journal.untilCrash = -1
			require.NoError(t, err, name)
			result, err := runner.Run(t.Context(), r.session, loop.Input{Text: "check"})
			require.NoError(t, err, name)
			require.Equal(t, loop.OutcomeAnswered, result.Outcome, name)
			requireProtocol(t, r.model.lastSeen())
			for place, n := range r.fleet.times() {
				require.Equal(t, 1, n, "%s: %s", name, place)
			}
			require.Empty(t, r.fleet.stopped, name)
			results := map[protocol.CallID]bool{}
			for _, e := range r.events(t) {
				if e.Type == loop.EventToolResult {
					results[e.CallID] = true
				}
			}
			for _, call := range r.fleet.runs {
				require.True(t, results[call.ID], "%s: call without a result", name)
			}
		}
		if !crashed {
			require.Greater(t, n, 12)
			return
		}
	}
}

// A turn that is stopped while a reply streams ends as interrupted, with the calls that were sent.
func TestStreamed_Interrupted(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "work"), says("done"))
	ctx, stop := context.WithCancel(t.Context())
	model := &streaming{breaks: func(_ loop.Request, index int) error {
		if index == 1 {
			stop()
			return ctx.Err()
		}
		return nil
	}}
	result, err := r.stream(t, model).Run(ctx, r.session, loop.Input{Text: "go"})
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.Len(t, r.watch.of(loop.EventToolResult), 1)
	require.True(t, slices.Contains(r.watch.types(), loop.EventModelReply))
}

// turnCaller is a fleet that knows of calls for turns.
type turnCaller struct {
	*fleet

	gone  bool
	err   error
	asked []protocol.CallID
}

func (c *turnCaller) GivenUp(_ context.Context, _ protocol.SessionID, id protocol.CallID) (bool, error) {
	c.asked = append(c.asked, id)
	return c.gone, c.err
}

// An open turn that nobody wants any more is ended, not brought to its end, and the next one runs.
func TestRun_AnOpenTurnThatIsGivenUpIsEnded(t *testing.T) {
	t.Parallel()
	open := func(replies ...loop.Reply) *rig {
		r := newRig(append([]loop.Reply{asks("a", "work", "wait")}, replies...)...)
		r.fleet.err = errors.New("no servers")
		ctx, leave := context.WithCancelCause(t.Context())
		r.opts.Observe = func(e loop.Event) {
			if r.watch.observe(e); e.Type == loop.EventToolCall {
				leave(loop.ErrDetached)
			}
		}
		_, err := r.runInput(ctx, t, loop.Input{Text: "go", ID: "id-1"})
		require.Error(t, err)
		r.fleet.err = nil
		return r
	}
	r := open(says("second"))
	caller := &turnCaller{fleet: r.fleet, gone: true}
	next := func(r *rig) (loop.TurnResult, error) {
		caller.fleet = r.fleet
		runner := mustNew(t, r.model, caller, r.journal, table(t), &r.opts)
		return runner.Run(t.Context(), r.session, loop.Input{Text: "and then", ID: "id-2"})
	}
	result, err := next(r)
	require.NoError(t, err)
	require.Equal(t, 2, result.Turn)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, []protocol.CallID{"id-1"}, caller.asked)
	require.ElementsMatch(t, []string{"cancelled", "cancelled"}, r.statuses(1))
	ended := r.watch.of(loop.EventTurnEnded)
	require.Equal(t, string(loop.OutcomeInterrupted), ended[0].Status)
	require.Contains(t, ended[0].Error.Message, "the call that asked for it is over")
	require.Len(t, r.fleet.stopped, 1)

	r = open()
	caller.gone, caller.err = false, errors.New("nobody knows")
	_, err = next(r)
	require.ErrorContains(t, err, "nobody knows")
	require.Empty(t, r.watch.of(loop.EventTurnEnded))
}

// A turn that is given up is ended by a coordinator that does not have its tools, as those of an
// MCP server: its calls are cancelled all the same, and a result that the fleet has is the result.
func TestRun_GivenUpWithoutTheTool(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		now  []tools.Tool // of the coordinator that ends the turn
		over bool         // the call has ended meanwhile
		want string
	}{
		"it runs": {nil, false, "cancelled"}, "it has ended": {nil, true, "ok"},
		"its tool makes jobs now": {[]tools.Tool{remote("account/7", true)}, false, "cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(asks("a", "mine"), says("x"))
			r.tools = []tools.Tool{remote("account/7", false)}
			ctx, leave := context.WithCancelCause(t.Context())
			defer leave(nil)
			never := make(chan struct{})
			r.fleet.hold = func(*protocol.Call) <-chan struct{} { leave(loop.ErrDetached); return never }
			_, err := r.runInput(ctx, t, loop.Input{Text: "go", ID: "id-1"})
			require.ErrorIs(t, err, loop.ErrDetached)
			if c.over {
				r.fleet.hold = nil
				require.NoError(t, r.fleet.Dispatch(t.Context(), r.fleet.runs, func(loop.Update) {}))
			}
			runner := mustNew(t, r.model, &turnCaller{fleet: r.fleet, gone: true}, r.journal, table(t, c.now...), &r.opts)
			require.NoError(t, runner.EndGivenUp(t.Context(), r.session, "id-1"))
			require.Equal(t, []string{c.want}, statuses(r))
			require.Len(t, r.fleet.stopped, map[bool]int{false: 1}[c.over])
			require.Len(t, r.watch.of(loop.EventTurnEnded), 1)
			requireOneResultEach(t, r.events(t))
		})
	}
}

// The sub-agents in the background of a turn that is given up end with it, wherever its coordinator
// was lost. None of them works on in the next turn.
func TestRun_GivenUpWithASubAgentInTheBackground(t *testing.T) {
	t.Parallel()
	f := newFamily(t, byPrompt{
		"go":   {replies: []loop.Reply{delegates("d", `{"prompt":"left","background":true}`), says("never"), says("and then")}},
		"left": {replies: []loop.Reply{asks("l", "work"), asks("m", "work"), says("left is done")}},
	})
	ctx, leave := context.WithCancelCause(t.Context())
	defer leave(nil)
	working := make(chan struct{})
	asked := 0
	f.models["left"].before = func(ctx context.Context) {
		if asked++; asked == 2 {
			close(working)
			<-ctx.Done()
		}
	}
	f.models["go"].before = func(context.Context) {
		if f.models["go"].lastSeen()[len(f.models["go"].lastSeen())-1].Role == loop.RoleTool { // its second reply: the coordinator is lost
			<-working
			leave(loop.ErrDetached)
		}
	}
	caller := &turnCaller{fleet: f.fleet, gone: true}
	runner := mustNew(t, f.models, caller, f.journal, table(t, f.tools...), &f.opts)
	_, err := runner.Run(ctx, f.session, loop.Input{Text: "go", ID: "id-1"})
	require.ErrorIs(t, err, loop.ErrDetached)
	child := f.child(t, 1, 0)
	require.NotEqual(t, loop.EventTurnEnded, child[len(child)-1].Type)

	f.models["left"].before, f.models["go"].before = nil, nil
	require.NoError(t, runner.EndGivenUp(t.Context(), f.session, "id-1"))
	child = f.child(t, 1, 0)
	require.Equal(t, string(loop.OutcomeInterrupted), child[len(child)-1].Status)
	events := f.events(t)
	require.Equal(t, []loop.EventType{loop.EventJobEnded, loop.EventTurnEnded}, []loop.EventType{events[len(events)-2].Type, events[len(events)-1].Type})
	mustRun(t.Context(), t, runner, f.session, loop.Input{Text: "and then", ID: "id-2"})
	require.Len(t, f.child(t, 1, 0), len(child), "it is over")
	require.Len(t, f.fleet.ran(), 1)
}

// endless is a journal that fails the first end of a turn of a session.
type endless struct {
	looptest.Journal

	of     protocol.SessionID
	failed bool
}

func (j *endless) Append(ctx context.Context, session protocol.SessionID, expected uint64, events ...loop.Event) (uint64, error) {
	if session == j.of && events[0].Type == loop.EventTurnEnded && !j.failed {
		j.failed = true
		return 0, errCrash
	}
	return j.Journal.Append(ctx, session, expected, events...)
}

// So they do if the turn had its last answer, for which its budget was used up, and not its end.
func TestRun_GivenUpBehindItsLastAnswer(t *testing.T) {
	t.Parallel()
	f := newFamily(t, byPrompt{
		"go":   {replies: []loop.Reply{delegates("d", `{"prompt":"left","background":true}`), asks("w", "work"), says("that is all")}},
		"left": {replies: []loop.Reply{says("left is done")}},
	})
	f.opts.Budget = &protocol.Spending{Tokens: 20} // used up by the second reply
	f.journal = &endless{of: f.session}
	begun, once := make(chan struct{}), sync.Once{}
	f.models["left"].before = func(ctx context.Context) { once.Do(func() { close(begun) }); <-ctx.Done() }
	f.models["go"].before = func(context.Context) {
		if len(f.models["go"].lastSeen()) > 2 {
			<-begun
		}
	}
	runner := mustNew(t, f.models, &turnCaller{fleet: f.fleet, gone: true}, f.journal, table(t, f.tools...), &f.opts)
	_, err := runner.Run(t.Context(), f.session, loop.Input{Text: "go", ID: "id-1"})
	require.ErrorIs(t, err, errCrash)
	f.models["left"].before = nil
	require.NoError(t, runner.EndGivenUp(t.Context(), f.session, "id-1"))
	events := f.events(t)
	require.Equal(t, "that is all", events[len(events)-1].Text)
	child := f.child(t, 1, 0)
	require.Equal(t, string(loop.OutcomeInterrupted), child[len(child)-1].Status)
}
