package loop_test

import (
	"context"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Whatever a server says that its replies took, the bound of a turn's tokens is one.
func TestRun_TokensThatMakeNoSenseGiveNoneBack(t *testing.T) {
	t.Parallel()
	for name, said := range map[string][]protocol.Usage{
		"negative":  {{InputTokens: 90}, {InputTokens: -1_000_000, OutputTokens: -1}, {OutputTokens: 20}},
		"very many": {{InputTokens: 90}, {InputTokens: math.MaxInt64, OutputTokens: math.MaxInt64}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var replies []loop.Reply
			for i, usage := range said {
				reply := asks(strconv.Itoa(i), "work")
				reply.Usage = usage
				replies = append(replies, reply)
			}
			r := newRig(append(replies, says("too much"))...)
			r.opts.MaxTokens = 100
			result, err := r.run(t.Context(), t, "go")
			require.NoError(t, err)
			require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
			require.Equal(t, len(said), result.Steps)
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
