package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// Whichever of a turn's last events are lost, its answer is shown, and once.
func TestLiveTurn_TheAnswerIsShown(t *testing.T) {
	t.Parallel()
	all := []loop.Event{
		{Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{Input: "go"}},
		{Type: loop.EventTextDelta, Turn: 1, Step: 1, Text: "The answer "},
		{Type: loop.EventTextDelta, Turn: 1, Step: 1, Text: "is 42."},
		{Type: loop.EventModelReply, Turn: 1, Step: 1, Text: "The answer is 42."},
		{Type: loop.EventTurnEnded, Turn: 1, Step: 1, Text: "The answer is 42.", Status: "answered"},
	}
	for heard := range len(all) + 1 {
		var out bytes.Buffer
		live := &liveTurn{show: terminal.New(&out, nil).Observe}
		for _, e := range all[:heard] {
			live.observe(e)
		}
		live.complete(loop.TurnResult{Turn: 1, Outcome: loop.OutcomeAnswered, Text: "The answer is 42.", Steps: 1})
		require.Equal(t, 1, strings.Count(out.String(), "The answer is 42."), "%d events were heard: %s", heard, out.String())
	}
}
