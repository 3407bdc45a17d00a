package loop_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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
