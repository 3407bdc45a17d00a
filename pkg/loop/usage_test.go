package loop_test

import (
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
