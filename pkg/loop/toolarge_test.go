package loop_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// tightJournal takes no event that has more than so many bytes.
type tightJournal struct {
	looptest.Journal

	most int
}

func (j *tightJournal) Append(ctx context.Context, session protocol.SessionID, expected uint64, events ...loop.Event) (uint64, error) {
	for i := range events {
		if body, err := json.Marshal(events[i]); err != nil || len(body) > j.most {
			return 0, loop.ErrEventTooLarge
		}
	}
	return j.Journal.Append(ctx, session, expected, events...)
}

// Whatever of a turn is too large for the journal, the turn ends, and the next one goes on.
func TestRun_WhateverIsTooLargeForTheJournalTheTurnEnds(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 20_000)
	call := asks("a", "work", "inline")
	call.ToolCalls[0].Arguments = `{"n":1` + strings.Repeat(" ", 20_000) + `}`
	for name, replies := range map[string][]loop.Reply{
		"an answer":  {says(long), says("checked"), says("checked")},
		"arguments":  {call, says("done"), says("checked"), says("checked")},
		"the result": {asks("a", "long", "work"), says("done"), says("checked"), says("checked")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outcomes := map[loop.Outcome]bool{}
			for most := 19_900; most < 20_600; most += 7 {
				r, journal := newRig(replies...), &tightJournal{most: most}
				r.journal, r.tools = journal, []tools.Tool{tools.New("long", "Returns a long text.", func(context.Context, struct {
					N int `json:"n,omitempty"`
				},
				) (string, error) {
					return long, nil
				})}
				result, err := r.run(t.Context(), t, "go")
				require.NoError(t, err, most)
				outcomes[result.Outcome] = true
				if result.Outcome == loop.OutcomeFailed {
					require.Equal(t, codes.PayloadTooLarge, result.Error.Code)
					r.model.replies = []loop.Reply{says("checked")}
				}
				ended := r.watch.of(loop.EventTurnEnded)
				require.Len(t, ended, 1, most)
				settled(t, r)
				requireOneResultEach(t, r.events(t))
			}
			require.True(t, outcomes[loop.OutcomeAnswered])
			require.Equal(t, name != "the result", outcomes[loop.OutcomeFailed])
		})
	}
}

// A prompt that is too large begins nothing.
func TestRun_APromptThatIsTooLargeBeginsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(says("checked"))
	r.journal = &tightJournal{most: 1000}
	result, err := r.run(t.Context(), t, strings.Repeat("x", 1000))
	require.ErrorIs(t, err, loop.ErrEventTooLarge)
	require.Equal(t, codes.PayloadTooLarge, result.Error.Code)
	require.Empty(t, r.events(t))
	_, err = r.run(t.Context(), t, "go")
	require.NoError(t, err)
}
