package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// narrow is a model that takes so many bytes.
type narrow struct {
	*script

	most    int
	refused int
}

func (n *narrow) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	size := 0
	for _, message := range req.Messages[1:] {
		size += len(message.Text)
		for _, call := range message.ToolCalls {
			size += len(call.Arguments)
		}
	}
	if size > n.most {
		n.refused++
		return loop.Reply{}, fmt.Errorf("%d bytes: %w", size, loop.ErrTooLong)
	}
	return n.script.Reply(ctx, req, delta)
}

// wordy is a tool that answers at length.
func wordy() tools.Tool {
	return tools.New("wordy", "Answer at length.", func(_ context.Context, args struct {
		N    int    `json:"n"`
		Text string `json:"text,omitempty"`
	},
	) (string, error) {
		return fmt.Sprintf("answer %d ", args.N) + strings.Repeat("é", 4000), nil
	})
}

// runNarrow runs a turn of so many steps, each with one long answer.
func runNarrow(t *testing.T, steps, most int) (*rig, *narrow, loop.TurnResult) {
	t.Helper()
	r := newRig()
	for i := range steps {
		call := loop.ToolCall{Name: "wordy", Arguments: fmt.Sprintf(`{"n":%d,"text":%q}`, i, strings.Repeat("x", 3000))}
		r.model.replies = append(r.model.replies, loop.Reply{Text: "asking", ToolCalls: []loop.ToolCall{call}})
	}
	r.model.replies = append(r.model.replies, says("done"))
	model := &narrow{script: r.model, most: most}
	runner, err := loop.New(model, r.fleet, r.journal, table(t, wordy()), &r.opts)
	require.NoError(t, err)
	result, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
	require.NoError(t, err)
	return r, model, result
}

func TestRun_AConversationThatIsTooLongIsShownInPart(t *testing.T) {
	t.Parallel()
	r, model, result := runNarrow(t, 12, 60_000)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, 1, model.refused, "what was cut once stays cut")

	seen := r.model.lastSeen()
	requireProtocol(t, seen)
	var results, arguments []string
	for _, message := range seen {
		if message.Role == loop.RoleTool {
			results = append(results, message.Text)
		}
		for _, call := range message.ToolCalls {
			require.True(t, json.Valid([]byte(call.Arguments)))
			arguments = append(arguments, call.Arguments)
		}
	}
	require.Len(t, results, 12)
	require.Contains(t, results[0], "answer 0 é")
	require.Contains(t, results[0], "[3509 more characters were here")
	require.Less(t, len(results[0]), 2000)
	require.Less(t, len(arguments[7]), 1000)
	require.Greater(t, len(arguments[8]), 3000, "the last calls are whole")
	require.Less(t, len(results[7]), 2000)
	require.Greater(t, len(results[8]), 8000)
	for _, event := range r.events(t) {
		if event.Type == loop.EventToolResult {
			require.Greater(t, len(event.Content), 8000, "the journal has all of it")
		}
	}
}

func TestRun_AConversationThatCannotBeCutAnyMoreEndsTheTurn(t *testing.T) {
	t.Parallel()
	_, model, result := runNarrow(t, 3, 900)
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	require.Contains(t, result.Error.Message, loop.ErrTooLong.Error())
	require.Equal(t, 2, model.refused, "whole, and with nothing whole")
}
