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
	"github.com/toolfleet/toolfleet/pkg/tools"
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
		all[i].Usage = protocol.Usage{InputTokens: int64(100*(i+1)) - 1, OutputTokens: 1}
	}
	return all
}

func TestCompaction_SummaryStandsForOlderReplies(t *testing.T) {
	t.Parallel()
	writer := &summarizer{}
	r := newRig(talkative(8)...)
	r.opts.Compaction = &loop.Compaction{Model: writer, ModelName: "small", At: 600, Price: &loop.Price{Input: 100_000}}
	r.opts.Price = &loop.Price{}
	result := r.mustRun(t.Context(), t, "port it to Go")
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
	r.mustRun(t.Context(), t, "and then")
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
	want := clean.mustRun(t.Context(), t, "go")
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
				if e.Type == loop.EventCompacted && e.Turn == 1 {
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
	r.mustRun(t.Context(), t, "first words")
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
		runner := mustNew(t, model, r.fleet, r.journal, table(t, wordy()), &r.opts)
		result := mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
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
	runner := mustNew(t, r.model, r.fleet, r.journal, table(t), &r.opts)
	done, err := runner.Compact(t.Context(), r.session, "")
	require.NoError(t, err)
	require.False(t, done, "there is nothing yet")
	r.mustRun(t.Context(), t, "go")
	for range 2 { // the id is answered once
		done, err = runner.Compact(t.Context(), r.session, "id-1")
		require.NoError(t, err)
		require.True(t, done)
	}
	require.Len(t, writer.asked, 1)
	r.mustRun(t.Context(), t, "more")
	require.Contains(t, texts(r.model.lastSeen())[2], "The gist.")

	r.session = protocol.NewSessionID()
	r.model.replies = talkative(4)
	r.mustRun(t.Context(), t, "go")
	for _, want := range []bool{true, false} { // an empty id names no earlier one
		done, err = runner.Compact(t.Context(), r.session, "")
		require.NoError(t, err)
		require.Equal(t, want, done)
	}

	writer.err = errors.New("no servers")
	r.session = protocol.NewSessionID()
	r.model.replies = talkative(4)
	r.mustRun(t.Context(), t, "go")
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
			r.mustRun(t.Context(), t, "go")
			var sizes []int
			writer := modelFunc(func(_ context.Context, req loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
				if sizes = append(sizes, len(req.Messages[1].Text)); len(sizes) == 1 {
					return loop.Reply{}, loop.ErrTooLong
				}
				return reply, nil
			})
			r.opts.Compaction = &loop.Compaction{Model: writer}
			runner := mustNew(t, r.model, r.fleet, r.journal, table(t), &r.opts)
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

// counting is a model of a server that counts tokens itself, and refuses what is over its window.
type counting struct {
	*script

	window, refused int
}

func (c *counting) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	tokens := req.Tokens()
	if c.window > 0 && tokens > int64(c.window) {
		c.refused++
		return loop.Reply{}, fmt.Errorf("%d tokens: %w", tokens, loop.ErrTooLong)
	}
	reply, err := c.script.Reply(ctx, req, delta)
	reply.Usage = protocol.Usage{InputTokens: tokens, OutputTokens: 10}
	return reply, err
}

// run64 runs a turn of 64 replies with a tool call each, of 400 bytes.
func run64(t *testing.T, prompt string, window int, compaction *loop.Compaction) (*rig, *counting) {
	t.Helper()
	var replies []loop.Reply
	for i := range 63 {
		replies = append(replies, loop.Reply{Text: strings.Repeat("x", 400), ToolCalls: []loop.ToolCall{{ID: fmt.Sprint("c", i), Name: "inline", Arguments: `{"n":1}`}}})
	}
	r := newRig(append(replies, says("done"))...)
	r.opts.System, r.opts.Compaction = "x", compaction
	model := &counting{script: r.model, window: window}
	runner := mustNew(t, model, r.fleet, r.journal, table(t), &r.opts)
	result := mustRun(t.Context(), t, runner, r.session, loop.Input{Text: prompt})
	require.Equal(t, loop.OutcomeAnswered, result.Outcome, result.Error)
	require.Equal(t, 64, result.Steps)
	return r, model
}

// A prompt that alone comes to the bound cannot shrink. The replies are compacted all the same, a
// few at a time, and a summary is not paid at every step; also when the server refuses the
// conversation again and again.
func TestCompaction_OfALongPrompt(t *testing.T) {
	t.Parallel()
	prompt := strings.Repeat("word ", 4400) // 5,500 tokens
	for name, test := range map[string]struct {
		at     int64
		window int
	}{"over the bound from the first reply on": {5000, 0}, "close to the bound": {6000, 0}, "close to the server's": {0, 6500}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writer := &summarizer{}
			r, model := run64(t, prompt, test.window, &loop.Compaction{Model: writer, At: test.at})
			require.GreaterOrEqual(t, len(writer.asked), 3)
			require.LessOrEqual(t, len(writer.asked), 12)
			last := r.model.seen[len(r.model.seen)-1]
			require.Less(t, last.Tokens(), int64(7500), "64 replies have 7,000 tokens more")
			require.LessOrEqual(t, model.refused, 12)
		})
	}
}

// reads is a tool by the name of the one that reads what references name.
func reads() tools.Tool {
	return tools.New("read", "Reads.", func(context.Context, struct {
		Path string `json:"path,omitempty"`
	},
	) (string, error) {
		return "", nil
	})
}

// A text that is attached is replaced by its beginning and a reference that the model can read,
// when the conversation comes to its bound or the server refuses it; without a store it stays.
func TestCompaction_RefersToAttachments(t *testing.T) {
	t.Parallel()
	data := []byte("The log begins.\n" + strings.Repeat("a line of the log\n", 10_000))
	for name, test := range map[string]struct {
		at     int64
		window int
		stores bool
	}{"at the bound": {6000, 0, true}, "of the server": {0, 6000, true}, "without a store": {6000, 0, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(asks("a", "inline"), says("done"), says("next"))
			r.opts.System, r.opts.Compaction = "x", &loop.Compaction{Model: &summarizer{}, At: test.at}
			keeper := &fullTexts{fleet: r.fleet, kept: map[protocol.CallID]string{}}
			var dispatcher loop.Dispatcher = bare{r.fleet}
			if test.stores {
				dispatcher = keeper
			}
			runner := mustNew(t, &counting{script: r.model, window: test.window}, dispatcher, r.journal, table(t, reads()), &r.opts)
			input := loop.Input{Text: "What is wrong?", Attachments: []loop.Attachment{{Name: "build.log", Image: loop.Image{Data: data}}}}
			for _, in := range []loop.Input{input, {Text: "And now?"}} {
				result := mustRun(t.Context(), t, runner, r.session, in)
				require.Equal(t, loop.OutcomeAnswered, result.Outcome, result.Error)
			}
			said := r.model.lastSeen()[1].Text
			if !test.stores {
				require.Contains(t, said, string(data[:100_000]))
				return
			}
			require.Less(t, len(said), 2000)
			require.Contains(t, said, "The log begins.")
			require.Len(t, keeper.kept, 1)
			for id, text := range keeper.kept {
				require.Equal(t, string(data), text)
				require.Contains(t, said, fmt.Sprintf(`All %d bytes of build.log: read with path="result:%s"]`, len(data), id))
			}
			require.Len(t, r.watch.of(loop.EventPartLeftOut), 1)

			// A fork has no copy of what is stored: it begins with the whole text.
			fork := append(r.events(t), loop.Event{Type: loop.EventSessionForked})
			for i := range fork {
				fork[i].SessionID, fork[i].Seed = "fork", ""
			}
			_, err := r.journal.Append(t.Context(), "fork", 0, fork...)
			require.NoError(t, err)
			r.opts.Compaction, r.model.replies = nil, append(r.model.replies, says("forked"))
			runner = mustNew(t, r.model, keeper, r.journal, table(t, reads()), &r.opts)
			mustRun(t.Context(), t, runner, "fork", loop.Input{Text: "go on"})
			require.Contains(t, r.model.lastSeen()[1].Text, string(data[:100_000]))
		})
	}
}

// Images and documents are replaced by references once the model has seen them, or when the server
// refuses the conversation.
func TestCompaction_RefersToImages(t *testing.T) {
	t.Parallel()
	files := []loop.Attachment{attach(t, "a.png", png), attach(t, "b.pdf", pdf)}
	for name, test := range map[string]struct{ at, window int }{"at the bound": {1, 0}, "of the server": {0, 1000}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(asks("a", "inline"), says("done"))
			r.opts.System, r.opts.Compaction = "x", &loop.Compaction{Model: &summarizer{}, At: int64(test.at)}
			keeper := &fullTexts{fleet: r.fleet, kept: map[protocol.CallID]string{}}
			runner := mustNew(t, &counting{script: r.model, window: test.window}, keeper, r.journal, table(t, reads()), &r.opts)
			result := mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "Look.", Attachments: files})
			require.Equal(t, loop.OutcomeAnswered, result.Outcome, result.Error)
			seen := 0
			if test.window == 0 {
				seen = 2
			}
			require.Len(t, r.model.seen[0].Messages[1].Attachments, seen, "the first request")
			said := r.model.lastSeen()[1]
			require.Empty(t, said.Attachments)
			require.Len(t, r.watch.of(loop.EventPartLeftOut), 2)
			for id, data := range keeper.kept {
				name := "a.png (image/png)"
				if data != png {
					require.Equal(t, pdf, data)
					name = "b.pdf (application/pdf)"
				}
				require.Contains(t, said.Text,
					fmt.Sprintf(`[The attached file %s is left out because the conversation is long. To see it again: read with path="result:%s"]`, name, id))
			}
			require.Len(t, keeper.kept, 2)
		})
	}
}
