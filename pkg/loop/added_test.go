package loop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// said are the texts of the messages of a role.
func said(messages []loop.Message, role loop.Role) (texts []string) {
	for _, m := range messages {
		if m.Role == role {
			texts = append(texts, m.Text)
		}
	}
	return texts
}

// roles says who speaks, in order.
func roles(messages []loop.Message) string {
	var b strings.Builder
	for _, m := range messages[1:] {
		b.WriteByte(string(m.Role)[0])
	}
	return b.String()
}

// What a person says while a tool runs is in the request behind its result, and in every later one
// at the same position.
func TestAdditions_ReachTheModelAtItsNextStep(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), asks("b", "work"), says("done"), says("again"))
	r.opts.Additions, r.opts.Author = &loop.Additions{}, protocol.Author{Name: "Ada", Email: "a@b.c"}
	taken, err := r.opts.Additions.Add(t.Context(), "nothing runs")
	require.NoError(t, err)
	require.False(t, taken)
	calls := 0
	r.fleet.told = func(protocol.Call) {
		if calls++; calls == 1 {
			taken, err = r.opts.Additions.Add(context.Background(), "more")
		}
	}
	_, runErr := r.run(t.Context(), t, "go")
	require.NoError(t, errors.Join(err, runErr))
	require.True(t, taken)
	require.Equal(t, []string{"go", "more"}, said(r.model.lastSeen(), loop.RoleUser))
	require.Equal(t, "uatuat", roles(r.model.lastSeen()), "behind the result of the first call")
	_, err = r.run(t.Context(), t, "next")
	require.NoError(t, err)
	require.Equal(t, "uatuatau", roles(r.model.lastSeen()))
	require.True(t, slices.ContainsFunc(r.events(t), func(e loop.Event) bool {
		return e.Type == loop.EventInputAdded && e.Turn == 1 && e.Step == 1 && e.Input == "more" && e.By == "Ada"
	}))
	taken, err = r.opts.Additions.Add(t.Context(), "nothing runs")
	require.NoError(t, err)
	require.False(t, taken)
}

// What a person says while the model answers is no part of that request: the model is asked once
// more, and the turn's answer is that of the last reply.
func TestAdditions_WhileTheModelAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(says("too early"), says("done"))
	r.opts.Additions = &loop.Additions{}
	asked := 0
	r.model.before = func(ctx context.Context) {
		if asked++; asked == 1 {
			taken, err := r.opts.Additions.Add(ctx, "wait")
			require.NoError(t, err)
			require.True(t, taken)
		}
	}
	result, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Equal(t, "done", result.Text)
	require.Equal(t, 2, result.Steps)
	require.Equal(t, "uau", roles(r.model.lastSeen()))
}

// A turn that ends otherwise leaves what the model has not read to the next turn.
func TestAdditions_OfATurnThatEndsOtherwise(t *testing.T) {
	t.Parallel()
	r := newRig()
	r.opts.Additions, r.model.err = &loop.Additions{}, errors.New("down")
	r.model.before = func(ctx context.Context) {
		_, err := r.opts.Additions.Add(ctx, "unread")
		require.NoError(t, err)
	}
	result, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	r.model.replies, r.model.before = []loop.Reply{says("done")}, nil
	_, err = r.run(t.Context(), t, "next")
	require.NoError(t, err)
	require.Equal(t, []string{"go", "unread", "next"}, said(r.model.lastSeen(), loop.RoleUser))
}

// An addition is in the journal before Add returns. A coordinator that ends at any event behind it
// neither loses it nor shows it to the model twice, and a replay of the session has it, too.
func TestAdditions_CrashAtAnyEvent(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"call", "reply", "answer"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			replies := []loop.Reply{asks("a", "work"), says("first"), says("second")}
			clean := newRig(replies...)
			clean.opts.Additions = &loop.Additions{}
			add := func() {
				_, err := clean.opts.Additions.Add(context.Background(), "more")
				require.NoError(t, err)
			}
			asked := 0
			clean.model.before = func(context.Context) {
				if asked++; when == "reply" && asked == 1 || when == "answer" && asked == 2 {
					add()
				}
			}
			clean.fleet.told = func(protocol.Call) {
				if when == "call" {
					add()
				}
			}
			_, err := clean.run(t.Context(), t, "go")
			require.NoError(t, err)
			events := clean.events(t)
			added := slices.IndexFunc(events, func(e loop.Event) bool { return e.Type == loop.EventInputAdded })
			require.Positive(t, added)
			for n := added + 1; n < len(events); n++ {
				r := newRig(replies...)
				r.session, r.fleet.known = clean.session, clean.fleet.known
				_, err := r.journal.Append(t.Context(), r.session, 0, events[:n]...)
				require.NoError(t, err)
				_, err = r.runInput(t.Context(), t, loop.Input{})
				require.NoError(t, err, n)
				_, err = r.run(t.Context(), t, "next")
				require.NoError(t, err)
				require.Equal(t, []string{"go", "more", "next"}, said(r.model.lastSeen(), loop.RoleUser), "after %d events", n)
				require.True(t, strings.HasPrefix(transcript(t, r.events(t)), transcript(t, events)), "after %d events", n)
			}
			recording, err := loop.History{Events: events}.Recording()
			require.NoError(t, err)
			played := newRig()
			played.opts.Replay = recording
			runner, err := loop.New(recording, played.fleet, played.journal, table(t), &played.opts)
			require.NoError(t, err)
			_, err = runner.Run(t.Context(), played.session, recording.Inputs()[0])
			require.NoError(t, err)
			require.Equal(t, transcript(t, events), transcript(t, played.events(t)))
		})
	}
}

// A conversation goes back: the model reads nothing of the later turns, also not by a summary, and
// what they used still counts.
func TestRewind_TheModelReadsNoLaterTurn(t *testing.T) {
	t.Parallel()
	r := newRig(says("one"), says("two"), says("three"), says("four"))
	for _, input := range []string{"first", "second"} {
		_, err := r.run(t.Context(), t, input)
		require.NoError(t, err)
	}
	runner, err := loop.New(r.model, r.fleet, r.journal, table(t), &r.opts)
	require.NoError(t, err)
	require.ErrorContains(t, runner.Rewind(t.Context(), r.session, 3), "turn 3: the session has turns 1 to 2")
	require.NoError(t, runner.Rewind(t.Context(), r.session, 1))
	require.NoError(t, runner.Rewind(t.Context(), r.session, 1), "again")
	result, err := r.run(t.Context(), t, "third")
	require.NoError(t, err)
	require.Equal(t, 3, result.Turn)
	require.Equal(t, []string{"first", "third"}, said(r.model.lastSeen(), loop.RoleUser))
	require.Equal(t, []string{"one"}, said(r.model.lastSeen(), loop.RoleAssistant))
	require.NoError(t, runner.Rewind(t.Context(), r.session, 0))
	_, err = r.run(t.Context(), t, "fourth")
	require.NoError(t, err)
	require.Equal(t, "u", roles(r.model.lastSeen()))
	events := r.events(t)
	require.Equal(t, 2, strings.Count(transcriptTypes(events), "conversation_rewound"))
	_, err = loop.History{Events: events}.Recording()
	require.NoError(t, err)
}

// A summary that stands for turns that are taken out is no part of the conversation, either.
func TestRewind_TakesBackASummary(t *testing.T) {
	t.Parallel()
	r := newRig(says("one"), says("two"), says("three"), loop.Reply{Text: "a summary"})
	for _, input := range []string{"first", "second", "third"} {
		_, err := r.run(t.Context(), t, input)
		require.NoError(t, err)
	}
	r.opts.Compaction = &loop.Compaction{}
	runner, err := loop.New(r.model, r.fleet, r.journal, table(t), &r.opts)
	require.NoError(t, err)
	done, err := runner.Compact(t.Context(), r.session, "")
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, runner.Rewind(t.Context(), r.session, 1))
	r.model.replies = append(r.model.replies, says("again"))
	_, err = r.run(t.Context(), t, "fourth")
	require.NoError(t, err)
	require.Equal(t, "uau", roles(r.model.lastSeen()))
	require.Equal(t, []string{"one"}, said(r.model.lastSeen(), loop.RoleAssistant))
}

func transcriptTypes(events []loop.Event) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString(string(e.Type) + "\n")
	}
	return b.String()
}
