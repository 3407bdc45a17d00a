package loop_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// journaled are the events of a type in the journal.
func (r *rig) journaled(t *testing.T, of loop.EventType) (events []loop.Event) {
	t.Helper()
	for _, e := range r.events(t) {
		if e.Type == of {
			events = append(events, e)
		}
	}
	return events
}

// TestQuestion_IsJournaledWithItsAnswer: the journal has what a call asked and who answered it; the
// end of a question that nobody knows changes nothing.
func TestQuestion_IsJournaledWithItsAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.fleet.asks = func(*protocol.Call) []loop.Update {
		return []loop.Update{
			{Question: &protocol.Question{ID: "q", Message: "Who?"}},
			{Answered: &protocol.Answer{Question: "other", Action: protocol.ActionDecline}},
			{Answered: &protocol.Answer{Question: "q", Action: protocol.ActionAccept, By: "ada"}},
			{Answered: &protocol.Answer{Question: "q", Action: protocol.ActionCancel}},
		}
	}
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	asked, answered := r.journaled(t, loop.EventQuestionAsked), r.journaled(t, loop.EventAnswered)
	require.Len(t, asked, 1)
	require.Equal(t, &protocol.Question{ID: "q", Message: "Who?"}, asked[0].Question)
	require.Equal(t, r.callID(t, 1, 1, 0), asked[0].CallID)
	require.NotEmpty(t, asked[0].Lane)
	require.Len(t, answered, 1)
	require.Equal(t, "accept by ada", answered[0].Status+" by "+answered[0].By)
	require.Equal(t, asked, r.watch.of(loop.EventQuestionAsked), "once")
	require.Equal(t, answered, r.watch.of(loop.EventAnswered))
}

// slowJournal calls before ahead of each append.
type slowJournal struct {
	loop.Journal

	before func(events []loop.Event)
}

func (j slowJournal) Append(ctx context.Context, session protocol.SessionID, last uint64, events ...loop.Event) (uint64, error) {
	j.before(events)
	return j.Journal.Append(ctx, session, last, events...)
}

// TestQuestion_ObserversDoNotWaitForTheJournal: a worker gives up after [wire.AskWait] unless
// somebody takes the question on.
func TestQuestion_ObserversDoNotWaitForTheJournal(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.fleet.asks = func(*protocol.Call) []loop.Update {
		return []loop.Update{{Question: &protocol.Question{ID: "q", Message: "Who?"}}}
	}
	var seen []loop.Event
	r.journal = slowJournal{r.journal, func(events []loop.Event) {
		if events[0].Type == loop.EventQuestionAsked {
			seen = r.watch.of(loop.EventQuestionAsked)
		}
	}}
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Len(t, seen, 1)
	require.Equal(t, seen, r.watch.of(loop.EventQuestionAsked), "once")
	require.Equal(t, seen, r.journaled(t, loop.EventQuestionAsked), "with the same time, by which attach knows it")
}

// TestQuestion_IsToldAgainByWhoResumes: a worker asks once, so whoever goes on with the turn tells
// what is not answered, and journals it no second time.
func TestQuestion_IsToldAgainByWhoResumes(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	ctx, detach := context.WithCancelCause(t.Context())
	r.fleet.asks = func(*protocol.Call) []loop.Update {
		detach(loop.ErrDetached)
		return []loop.Update{
			{Question: &protocol.Question{ID: "answered"}},
			{Answered: &protocol.Answer{Question: "answered", Action: protocol.ActionDecline}},
			{Question: &protocol.Question{ID: "open", Message: "Who?"}},
		}
	}
	_, err := r.run(ctx, t, "go")
	require.ErrorIs(t, err, loop.ErrDetached)
	r.watch.events = nil
	r.fleet.asks = func(*protocol.Call) []loop.Update {
		return []loop.Update{{Answered: &protocol.Answer{Question: "open", Action: protocol.ActionAccept}}}
	}
	_, err = r.run(t.Context(), t, "go")
	require.NoError(t, err)
	again := r.watch.of(loop.EventQuestionAsked)
	require.Len(t, again, 1)
	require.Equal(t, "Who?", again[0].Question.Message)
	require.NotEmpty(t, again[0].Lane)
	require.Len(t, r.journaled(t, loop.EventQuestionAsked), 2)
	require.Len(t, r.journaled(t, loop.EventAnswered), 2)
}

// TestQuestion_AFloodStaysOutOfTheJournal: whoever has a worker's key may ask for ever.
func TestQuestion_AFloodStaysOutOfTheJournal(t *testing.T) {
	t.Parallel()
	const flood = 100
	r := newRig(asks("a", "work"), says("done"))
	r.fleet.asks = func(*protocol.Call) (updates []loop.Update) {
		for n := range flood {
			updates = append(updates, loop.Update{Question: &protocol.Question{ID: strconv.Itoa(n)}})
		}
		return updates
	}
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Len(t, r.journaled(t, loop.EventQuestionAsked), 16)
	require.Len(t, r.watch.of(loop.EventQuestionAsked), flood)
}
