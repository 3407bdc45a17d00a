package loop_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
	result, err := reported.run(t.Context(), t, "go")
	require.NoError(t, err)
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
			result, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
			require.NoError(t, err)
			require.Equal(t, test.tokens, result.Usage.Total())
			require.InDelta(t, test.cost, *result.CostUSD, 1e-9)
			budget := &protocol.Spending{Tokens: test.tokens}
			r.opts.Budget = budget
			next, err := r.run(t.Context(), t, "more")
			require.NoError(t, err)
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
	runner, err := loop.New(patient{r.model}, r.fleet, r.journal, table(t), &r.opts)
	require.NoError(t, err)
	result, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
	require.NoError(t, err)
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
