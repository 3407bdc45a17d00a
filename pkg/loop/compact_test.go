package loop_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// summarizer writes numbered summaries.
type summarizer struct {
	err error

	mu    sync.Mutex
	asked []string // what the summaries were to be made of
}

func (s *summarizer) Reply(_ context.Context, req loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return loop.Reply{}, s.err
	}
	s.asked = append(s.asked, req.Messages[1].Text)
	return loop.Reply{Text: "The gist.", Usage: protocol.Usage{InputTokens: 7, OutputTokens: 3}}, nil
}

// talkative asks for a tool in each of so many replies, which take ever more tokens, and answers.
func talkative(replies int) []loop.Reply {
	all := hungry(replies)
	for i := range all {
		all[i].Usage = protocol.Usage{InputTokens: int64(100 * (i + 1))}
	}
	return all
}

func TestCompaction_SummaryStandsForOlderReplies(t *testing.T) {
	t.Parallel()
	writer := &summarizer{}
	r := newRig(talkative(8)...)
	r.opts.Compaction = &loop.Compaction{Model: writer, ModelName: "small", At: 600, Price: &loop.Price{Input: 100_000}}
	r.opts.Price = &loop.Price{}
	result, err := r.run(t.Context(), t, "port it to Go")
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, 9, result.Steps)
	require.Len(t, writer.asked, 1)
	require.Contains(t, writer.asked[0], "## User\nport it to Go")
	require.Contains(t, writer.asked[0], "## Agent\nasking a")
	require.Contains(t, writer.asked[0], "## Tool call work\n{\"n\":0}")
	require.Contains(t, writer.asked[0], "## Result of work\nok ")
	require.NotContains(t, writer.asked[0], "asking f", "what is kept is not in the summary")

	compacted := r.watch.of(loop.EventCompacted)
	require.Len(t, compacted, 1)
	require.Equal(t, 6, compacted[0].Step)
	require.InDelta(t, 0.7, *compacted[0].CostUSD, 1e-9)
	require.InDelta(t, 0.7, *result.CostUSD, 1e-9)
	require.Equal(t, int64(4500+10), result.Usage.Total(), "the summary is part of what the turn took")
	said := texts(r.model.seen[6].Messages)[1:]
	require.Equal(t, "user: port it to Go", said[0])
	require.True(t, strings.HasPrefix(said[1], "user: [A summary stands for your first "), said[1])
	require.Contains(t, said[1], "The gist.")
	require.True(t, strings.HasPrefix(said[2], "assistant: asking "), said[2])
	require.Less(t, len(said), 8)
	for _, request := range r.model.seen {
		requireProtocol(t, request.Messages)
	}
	require.Len(t, r.fleet.ran(), 8)

	// A later turn, of another process, sees the same; the journal has all of it.
	r.opts.Compaction = nil
	_, err = r.run(t.Context(), t, "and then")
	require.NoError(t, err)
	require.Equal(t, said[:3], texts(r.model.lastSeen())[1:4])
	require.Len(t, r.watch.of(loop.EventToolResult), 8)
}

func TestCompaction_CrashAtAnyAppendChangesNothing(t *testing.T) {
	t.Parallel()
	session := protocol.NewSessionID()
	begin := func() *rig {
		r := newRig(talkative(8)...)
		r.session, r.opts.Compaction = session, &loop.Compaction{Model: &summarizer{}, At: 600}
		return r
	}
	clean := begin()
	want, err := clean.run(t.Context(), t, "go")
	require.NoError(t, err)
	conversation := clean.placed(t, clean.model.lastSeen())
	for n := 0; ; n++ {
		crashed := false
		for kept := range 2 {
			name := fmt.Sprintf("append %d, of which %d events are stored", n+1, kept)
			r, journal := begin(), &crashingJournal{untilCrash: n, kept: kept}
			r.journal = journal
			got, err := r.run(t.Context(), t, "go")
			if err != nil {
				crashed = true
				require.ErrorIs(t, err, errCrash, name)
				got, err = r.run(t.Context(), t, "go")
			}
			require.NoError(t, err, name)
			if got.Turn == 1 {
				require.Equal(t, want, got, name)
				require.Equal(t, conversation, r.placed(t, r.model.lastSeen()), name)
			}
			journaled := 0
			for _, e := range r.events(t) {
				if e.Type == loop.EventCompacted {
					journaled++
				}
			}
			require.Equal(t, 1, journaled, name)
			require.Equal(t, clean.fleet.ran(), r.fleet.ran(), name)
		}
		if !crashed {
			require.Greater(t, n, 15)
			break
		}
	}
}

func TestCompaction_SummaryOfASummaryKeepsWhatIsOpen(t *testing.T) {
	t.Parallel()
	writer := &summarizer{}
	r := newJobRig(append([]loop.Reply{asks("j", "build")}, talkative(12)...)...)
	defer r.holdJobs()()
	r.opts.Compaction = &loop.Compaction{Model: writer, At: 400}
	_, err := r.run(t.Context(), t, "first words")
	require.NoError(t, err)
	require.Greater(t, len(writer.asked), 1)
	require.Contains(t, writer.asked[1], "## Summary of what was before")
	require.Contains(t, writer.asked[1], "The gist.")
	require.NotContains(t, writer.asked[1], "asking a", "it stands for that")
	said := texts(r.model.lastSeen())[1:]
	require.Equal(t, "user: first words", said[0])
	require.Equal(t, 1, strings.Count(strings.Join(said, "\n"), "A summary stands for"))
	require.Contains(t, said[1], "[job_1_1_0 (build) runs, since ")
	requireProtocol(t, r.model.lastSeen())
}

func TestCompaction_OfAConversationThatIsTooLong(t *testing.T) {
	t.Parallel()
	for _, fails := range []error{nil, errors.New("no servers")} {
		r := newRig()
		r.opts.Compaction = &loop.Compaction{Model: &summarizer{err: fails}}
		for i := range 12 {
			r.model.replies = append(r.model.replies, loop.Reply{Text: fmt.Sprint("step ", i, "."), ToolCalls: []loop.ToolCall{{Name: "wordy", Arguments: `{"n":1}`}}})
		}
		r.model.replies = append(r.model.replies, says("done"))
		model := &narrow{script: r.model, most: 60_000}
		runner, err := loop.New(model, r.fleet, r.journal, table(t, wordy()), &r.opts)
		require.NoError(t, err)
		result, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
		require.NoError(t, err)
		require.Equal(t, loop.OutcomeAnswered, result.Outcome)
		require.Equal(t, 1, model.refused)
		said := strings.Join(texts(r.model.lastSeen()), "\n")
		require.Equal(t, fails == nil, len(r.watch.of(loop.EventCompacted)) == 1)
		require.Equal(t, fails == nil, !strings.Contains(said, "step 0."), "the summary stands for it")
		require.Equal(t, fails == nil, !strings.Contains(said, "more characters were here"), "without a summary results are cut")
	}
}

func TestCompact_OnDemand(t *testing.T) {
	t.Parallel()
	writer := &summarizer{}
	r := newRig(talkative(4)...)
	r.opts.Compaction = &loop.Compaction{Model: writer}
	runner, err := loop.New(r.model, r.fleet, r.journal, table(t), &r.opts)
	require.NoError(t, err)
	done, err := runner.Compact(t.Context(), r.session, "")
	require.NoError(t, err)
	require.False(t, done, "there is nothing yet")
	_, err = r.run(t.Context(), t, "go")
	require.NoError(t, err)
	for range 2 { // the id is answered once
		done, err = runner.Compact(t.Context(), r.session, "id-1")
		require.NoError(t, err)
		require.True(t, done)
	}
	require.Len(t, writer.asked, 1)
	_, err = r.run(t.Context(), t, "more")
	require.NoError(t, err)
	require.Contains(t, texts(r.model.lastSeen())[2], "The gist.")

	r.session = protocol.NewSessionID()
	r.model.replies = talkative(4)
	_, err = r.run(t.Context(), t, "go")
	require.NoError(t, err)
	for _, want := range []bool{true, false} { // an empty id names no earlier one
		done, err = runner.Compact(t.Context(), r.session, "")
		require.NoError(t, err)
		require.Equal(t, want, done)
	}

	writer.err = errors.New("no servers")
	r.session = protocol.NewSessionID()
	r.model.replies = talkative(4)
	_, err = r.run(t.Context(), t, "go")
	require.NoError(t, err)
	_, err = runner.Compact(t.Context(), r.session, "")
	require.EqualError(t, err, "summary of the conversation: no servers")

	r.session, r.fleet.err = protocol.NewSessionID(), errors.New("no servers")
	_, err = r.run(t.Context(), t, "go")
	require.Error(t, err)
	_, err = runner.Compact(t.Context(), r.session, "")
	require.ErrorContains(t, err, "turn of the session is open")
}

// A summary that is empty or was cut off is none. A writer that cannot read all gets shorter parts.
func TestCompact_NeedsAWholeSummary(t *testing.T) {
	t.Parallel()
	for want, replies := range map[string][]loop.Reply{
		"the model's reply is empty, or was cut off": {{Text: " \n"}, {Text: "half", Cut: true}}, "": {{Text: "The gist."}},
	} {
		for _, reply := range replies {
			r := newRig(talkative(4)...)
			r.model.replies[0].Text = strings.Repeat("x", 5000)
			_, err := r.run(t.Context(), t, "go")
			require.NoError(t, err)
			var sizes []int
			writer := modelFunc(func(_ context.Context, req loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
				if sizes = append(sizes, len(req.Messages[1].Text)); len(sizes) == 1 {
					return loop.Reply{}, loop.ErrTooLong
				}
				return reply, nil
			})
			r.opts.Compaction = &loop.Compaction{Model: writer}
			runner, err := loop.New(r.model, r.fleet, r.journal, table(t), &r.opts)
			require.NoError(t, err)
			done, err := runner.Compact(t.Context(), r.session, "")
			require.Equal(t, want == "", done)
			if want != "" {
				require.ErrorContains(t, err, want)
			}
			require.Len(t, sizes, 2)
			require.Greater(t, sizes[0], sizes[1]+3000)
		}
	}
}
