package loop_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

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
		runner, err := loop.New(r.model, caller, r.journal, table(t), &r.opts)
		require.NoError(t, err)
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
			runner, err := loop.New(r.model, &turnCaller{fleet: r.fleet, gone: true}, r.journal, table(t, c.now...), &r.opts)
			require.NoError(t, err)
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
	runner, err := loop.New(f.models, caller, f.journal, table(t, f.tools...), &f.opts)
	require.NoError(t, err)
	_, err = runner.Run(ctx, f.session, loop.Input{Text: "go", ID: "id-1"})
	require.ErrorIs(t, err, loop.ErrDetached)
	child := f.child(t, 1, 0)
	require.NotEqual(t, loop.EventTurnEnded, child[len(child)-1].Type)

	f.models["left"].before, f.models["go"].before = nil, nil
	require.NoError(t, runner.EndGivenUp(t.Context(), f.session, "id-1"))
	child = f.child(t, 1, 0)
	require.Equal(t, string(loop.OutcomeInterrupted), child[len(child)-1].Status)
	events := f.events(t)
	require.Equal(t, []loop.EventType{loop.EventJobEnded, loop.EventTurnEnded}, []loop.EventType{events[len(events)-2].Type, events[len(events)-1].Type})
	_, err = runner.Run(t.Context(), f.session, loop.Input{Text: "and then", ID: "id-2"})
	require.NoError(t, err)
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
	runner, err := loop.New(f.models, &turnCaller{fleet: f.fleet, gone: true}, f.journal, table(t, f.tools...), &f.opts)
	require.NoError(t, err)
	_, err = runner.Run(t.Context(), f.session, loop.Input{Text: "go", ID: "id-1"})
	require.ErrorIs(t, err, errCrash)
	f.models["left"].before = nil
	require.NoError(t, runner.EndGivenUp(t.Context(), f.session, "id-1"))
	events := f.events(t)
	require.Equal(t, "that is all", events[len(events)-1].Text)
	child := f.child(t, 1, 0)
	require.Equal(t, string(loop.OutcomeInterrupted), child[len(child)-1].Status)
}
