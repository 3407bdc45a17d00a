package loop_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
	asked := []protocol.CallID{}
	r.opts.GivenUp = func(_ context.Context, id protocol.CallID) (bool, error) {
		asked = append(asked, id)
		return true, nil
	}
	result, err := r.runInput(t.Context(), t, loop.Input{Text: "and then", ID: "id-2"})
	require.NoError(t, err)
	require.Equal(t, 2, result.Turn)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, []protocol.CallID{"id-1"}, asked)
	require.ElementsMatch(t, []string{"cancelled", "cancelled"}, r.statuses(1))
	ended := r.watch.of(loop.EventTurnEnded)
	require.Equal(t, string(loop.OutcomeInterrupted), ended[0].Status)
	require.Contains(t, ended[0].Error.Message, "has given it up")
	require.Len(t, r.fleet.stopped, 1)

	r = open()
	r.opts.GivenUp = func(context.Context, protocol.CallID) (bool, error) { return false, errors.New("nobody knows") }
	_, err = r.runInput(t.Context(), t, loop.Input{Text: "and then", ID: "id-2"})
	require.ErrorContains(t, err, "nobody knows")
	require.Empty(t, r.watch.of(loop.EventTurnEnded))
}
