package loop_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// cut is a reply that ended at a limit of output tokens.
func cut(r loop.Reply) loop.Reply {
	r.Cut = true
	return r
}

func TestRun_ReplyThatWasCutGoesOnOnce(t *testing.T) {
	t.Parallel()
	r := newRig(cut(says("The answer is ")), says("42."))
	result, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, "The answer is 42.", result.Text, "an answer in two parts is one")
	last := r.model.lastSeen()
	require.Equal(t, loop.RoleUser, last[len(last)-1].Role)
	require.Contains(t, last[len(last)-1].Text, "cut off at the limit of output tokens")
	require.Equal(t, "length", r.watch.of(loop.EventModelReply)[0].Finish)
}

func TestRun_ReplyThatIsCutTwiceReachesALimit(t *testing.T) {
	t.Parallel()
	tests := map[string][]loop.Reply{
		"text":           {cut(says("a")), cut(says("b")), says("not asked")},
		"before a word":  {cut(loop.Reply{}), cut(loop.Reply{}), says("not asked")},
		"text, then one": {cut(says("a")), cut(asks("b", "work")), says("not asked")},
	}
	for name, replies := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(replies...)
			result, err := r.run(t.Context(), t, "go")
			require.NoError(t, err)
			require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
			require.Equal(t, protocol.CodeLimitReached, result.Error.Code)
			require.ErrorContains(t, result.Error, "max_output")
			require.Equal(t, 2, result.Steps)
			require.Len(t, r.model.seen, 2)
		})
	}
}

func TestRun_CutToolCallsHaveResultsAndAWord(t *testing.T) {
	t.Parallel()
	half := cut(asks("a", "work", "work"))
	half.ToolCalls[1].Arguments = `{"n":`
	r := newRig(half, says("done"))
	result, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, "done", result.Text)
	require.Len(t, r.fleet.ran(), 1, "the whole call runs, the half one does not")
	last := r.model.lastSeen()
	requireProtocol(t, last)
	require.Contains(t, last[len(last)-1].Text, "its last tool call may be incomplete")
}

// A turn that was resumed behind a cut reply is told the same, and a later turn is not.
func TestRun_WordBehindACutReplyIsOfTheJournal(t *testing.T) {
	t.Parallel()
	r := newRig(cut(says("a")), cut(says("b")), says("of the next turn"))
	ctx, stop := context.WithCancelCause(t.Context())
	r.model.before = func(context.Context) {
		if len(r.model.seen) == 2 {
			stop(loop.ErrDetached)
		}
	}
	_, err := r.run(ctx, t, "go")
	require.ErrorIs(t, err, loop.ErrDetached)
	r.model.before = nil
	result, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
	before := r.model.lastSeen()
	require.Contains(t, before[len(before)-1].Text, "cut off")
	_, err = r.run(t.Context(), t, "next")
	require.NoError(t, err)
	after := r.model.lastSeen()
	require.Equal(t, "next", after[len(after)-1].Text)
	require.Equal(t, loop.RoleAssistant, after[len(after)-2].Role, "nobody goes on with what ended the turn")
}

// empties is a model whose first replies are empty.
type empties struct {
	*script

	left  int
	empty loop.Reply
	words []string // the last message of each request
}

func (e *empties) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	e.words = append(e.words, req.Messages[len(req.Messages)-1].Text)
	if e.left > 0 {
		e.left--
		return e.empty, nil
	}
	return e.script.Reply(ctx, req, delta)
}

func TestRun_EmptyReplyIsAskedForOnceMore(t *testing.T) {
	t.Parallel()
	r := newRig(says("done"))
	model := &empties{script: r.model, left: 1, empty: loop.Reply{
		Text: " \n", Usage: protocol.Usage{InputTokens: 5, OutputTokens: 3}, Reasoning: &loop.Reasoning{Text: "hm"},
	}}
	runner, err := loop.New(model, r.fleet, r.journal, table(t), &r.opts)
	require.NoError(t, err)
	result, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
	require.NoError(t, err)
	require.Equal(t, loop.TurnResult{
		Turn: 1, Outcome: loop.OutcomeAnswered, Text: "done", Steps: 1, Usage: protocol.Usage{InputTokens: 15, OutputTokens: 4},
	}, result, "what the empty one took counts")
	require.Equal(t, "go", model.words[0])
	require.Contains(t, model.words[1], "Your last reply was empty")
}

func TestRun_ReplyThatIsEmptyTwiceFails(t *testing.T) {
	t.Parallel()
	r := newRig(says("not asked"))
	model := &empties{script: r.model, left: 2}
	runner, err := loop.New(model, r.fleet, r.journal, table(t), &r.opts)
	require.NoError(t, err)
	result, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	require.Equal(t, protocol.CodeModelFailed, result.Error.Code)
	require.ErrorContains(t, result.Error, "empty, twice")
	require.Empty(t, r.watch.of(loop.EventModelReply))
}

func TestRun_ReasoningIsKeptAndShownToTheModelInItsTurn(t *testing.T) {
	t.Parallel()
	thought := asks("a", "work")
	thought.Reasoning = &loop.Reasoning{Text: "I look first\xff", Opaque: json.RawMessage(`{"field":"reasoning"}`)}
	r := newRig(thought, says("done"), says("again"))
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)

	kept := &loop.Reasoning{Text: "I look first\uFFFD", Opaque: json.RawMessage(`{"field":"reasoning"}`)}
	require.Equal(t, kept, r.watch.of(loop.EventModelReply)[0].Reasoning)
	live := r.watch.of(loop.EventReasoningDelta)
	require.Len(t, live, 1)
	require.Equal(t, "I look first\xff", live[0].Text)
	for _, e := range r.events(t) {
		require.NotEqual(t, loop.EventReasoningDelta, e.Type, "live only")
	}
	var reply loop.Message
	for _, m := range r.model.lastSeen() {
		if len(m.ToolCalls) > 0 {
			reply = m
		}
	}
	require.Equal(t, kept, reply.Reasoning)

	_, err = r.run(t.Context(), t, "next")
	require.NoError(t, err)
	for _, m := range r.model.lastSeen() {
		require.Nil(t, m.Reasoning, "of an earlier turn")
	}
}

func TestRun_SettingsReachTheModel(t *testing.T) {
	t.Parallel()
	cold := 0.0
	r := newRig(says("done"))
	r.opts.Settings = loop.Settings{Temperature: &cold, Effort: "low", MaxOutput: 100}
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Equal(t, r.opts.Settings, r.model.seen[0].Settings)
}

func TestSettings_Validate(t *testing.T) {
	t.Parallel()
	hot, cold := 2.1, -0.1
	require.NoError(t, loop.Settings{}.Validate())
	for want, s := range map[string]loop.Settings{
		"temperature 2.1: must be 0 to 2":       {Temperature: &hot},
		"temperature -0.1":                      {Temperature: &cold},
		`reasoning "hard": must be none, minim`: {Effort: "hard"},
		"max output -1: must not be negative":   {MaxOutput: -1},
	} {
		require.ErrorContains(t, s.Validate(), want)
		r := newRig()
		_, err := loop.New(r.model, r.fleet, r.journal, table(t), &loop.Options{Settings: s})
		require.ErrorContains(t, err, strings.SplitN(want, ":", 2)[0])
	}
}

func TestSettings_Or(t *testing.T) {
	t.Parallel()
	one, two := 1.0, 2.0
	all := loop.Settings{Temperature: &one, Effort: "low", MaxOutput: 10}
	require.Equal(t, all, loop.Settings{}.Or(all))
	require.Equal(t, all, all.Or(loop.Settings{Temperature: &two, Effort: "high", MaxOutput: 20}))
	require.Equal(t, int64(10), loop.Settings{MaxOutput: 20}.Or(all).MaxOutput, "the lesser bound holds")
}
