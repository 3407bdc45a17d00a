package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// cut is a reply that ended at a limit of output tokens.
func cut(r loop.Reply) loop.Reply {
	r.Cut = true
	return r
}

func TestRun_ReplyThatWasCutGoesOnOnce(t *testing.T) {
	t.Parallel()
	r := newRig(cut(says("The answer is ")), says("42."))
	result := r.mustRun(t.Context(), t, "go")
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
			result := r.mustRun(t.Context(), t, "go")
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
	result := r.mustRun(t.Context(), t, "go")
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
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
	before := r.model.lastSeen()
	require.Contains(t, before[len(before)-1].Text, "cut off")
	r.mustRun(t.Context(), t, "next")
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
	runner := mustNew(t, model, r.fleet, r.journal, table(t), &r.opts)
	result := mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
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
	runner := mustNew(t, model, r.fleet, r.journal, table(t), &r.opts)
	result := mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
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
	r.mustRun(t.Context(), t, "go")

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

	r.mustRun(t.Context(), t, "next")
	for _, m := range r.model.lastSeen() {
		require.Nil(t, m.Reasoning, "of an earlier turn")
	}
}

func TestRun_SettingsReachTheModel(t *testing.T) {
	t.Parallel()
	cold := 0.0
	r := newRig(says("done"))
	r.opts.Settings = loop.Settings{Temperature: &cold, Effort: "low", MaxOutput: 100}
	r.mustRun(t.Context(), t, "go")
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

// fullTexts is a fleet that keeps texts, unless err is set.
type fullTexts struct {
	*fleet

	err error

	mu   sync.Mutex
	kept map[protocol.CallID]string
}

func (k *fullTexts) StoreText(_ context.Context, _ protocol.SessionID, call protocol.CallID, text string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.kept[call] = text
	}
	return k.err
}

func (k *fullTexts) StoreMedia(ctx context.Context, session protocol.SessionID, call protocol.CallID, data []byte) error {
	return k.StoreText(ctx, session, call+"#media", string(data))
}

var _ ports.Fleet = (*fullTexts)(nil)

func long(t *testing.T) *tools.Table {
	t.Helper()
	return table(t, tools.New("long", "Returns a long text.", func(context.Context, struct {
		N int `json:"n,omitempty"`
	},
	) (string, error) {
		return strings.Repeat("é", 60_000), nil
	}))
}

// A long error of an inline tool is kept as well.
func TestRun_WhatIsCutOfAnErrorIsKept(t *testing.T) {
	t.Parallel()
	message := strings.Repeat("é", 60_000)
	wrong := table(t, tools.New("wrong", "Fails at length.", func(context.Context, struct {
		N int `json:"n,omitempty"`
	},
	) (string, error) {
		return "", errors.New(message)
	}))
	r := newRig(asks("a", "wrong"), says("done"))
	keeper := &fullTexts{fleet: r.fleet, kept: map[protocol.CallID]string{}}
	runner := mustNew(t, r.model, keeper, r.journal, wrong, &loop.Options{Observe: r.watch.observe})
	mustRun(t.Context(), t, runner, "s1", loop.Input{Text: "go"})
	event := r.watch.of(loop.EventToolResult)[0]
	require.Contains(t, keeper.kept[event.CallID], message)
	require.Contains(t, event.Content, `path="result:`+string(event.CallID)+`"`)
}

// TestRun_WhatIsCutOfAnInlineToolIsKept: and what is not kept is not promised.
func TestRun_WhatIsCutOfAnInlineToolIsKept(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"kept": nil, "cannot be kept": errors.New("full")} {
		r := newRig(asks("a", "long", "inline"), says("done"))
		keeper := &fullTexts{fleet: r.fleet, err: err, kept: map[protocol.CallID]string{}}
		runner, fault := loop.New(r.model, keeper, r.journal, long(t), &loop.Options{Observe: r.watch.observe})
		require.NoError(t, fault)
		_, fault = runner.Run(t.Context(), "s1", loop.Input{Text: "go"})
		require.NoError(t, fault)
		for _, event := range r.watch.of(loop.EventToolResult) {
			if event.Name != "long" {
				continue
			}
			require.Contains(t, event.Content, "characters left out")
			require.Equal(t, err == nil, strings.HasSuffix(event.Content, `all of it: read with path="result:`+string(event.CallID)+`"]`), name)
			if err == nil {
				require.Equal(t, map[protocol.CallID]string{event.CallID: strings.Repeat("é", 60_000)}, maps.Clone(keeper.kept), "and nothing else")
			}
		}
	}
}

func TestPlanSingle_WhatIsCutOfAnInlineToolIsKept(t *testing.T) {
	t.Parallel()
	keeper := &fullTexts{kept: map[protocol.CallID]string{}}
	single := loop.PlanSingle(t.Context(), long(t), "s1", "long", "{}", &loop.SingleOptions{Dispatcher: keeper})
	require.Len(t, keeper.kept, 1)
	for call := range keeper.kept {
		require.Contains(t, single.Text, `all of it: read with path="result:`+string(call)+`"]`)
	}
	single = loop.PlanSingle(t.Context(), long(t), "s1", "long", "{}", nil)
	require.NotContains(t, single.Text, "result:")
}

// An event that no journal takes would leave its turn open for ever.
func TestRun_EventsHaveNoMoreOfAnErrorThanAModelIsShown(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("x", 10<<20) + "\xff"
	wrong := tools.New("wrong", "Fails at length.", func(context.Context, struct {
		N int `json:"n,omitempty"`
	},
	) (string, error) {
		return "", protocol.Errorf(protocol.CodeNotFound, "%s", huge)
	})
	r := newRig(asks("a", "wrong", "work"))
	r.tools, r.model.err = []tools.Tool{wrong}, errors.New(huge)
	r.fleet.answer = func(*protocol.Call) (protocol.Value, *protocol.Error) {
		return nil, protocol.Errorf(protocol.CodeToolFailed, "%s", huge)
	}
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	told := 0
	for _, event := range r.events(t) {
		if event.Error != nil {
			told++
			require.Less(t, len(event.Error.Message), 100_000, event.Type)
			require.True(t, utf8.ValidString(event.Error.Message))
		}
	}
	require.Equal(t, 3, told)
}

// whole is a session that has a turn behind it, and in its second one does what a session can: it
// works with sub-agents on forks, messages, triggers and a scratchpad, and is compacted.
func whole(t *testing.T) *family {
	t.Helper()
	f := forking(t)
	both := f.models["go"].replies[0]
	f.models["go"].replies = append([]loop.Reply{asks("a", "work", "greedy"), asks("b", "work"), says("the first turn")},
		both,
		calls("c", "send_message", `{"channel":"work","text":"one"}`, "add_timer", `{"at":"2026-03-01T09:00:00Z","prompt":"wake up"}`,
			"watch_channel", `{"channel":"work"}`, "scratchpad", `{"action":"set","key":"plan","value":"first"}`),
		calls("d", "scratchpad", `{"action":"get","key":"plan"}`, "list_triggers", `{}`),
		asks("e", "work", "inline"), says("the second turn"))
	for i := range f.models["go"].replies {
		f.models["go"].replies[i].Usage = protocol.Usage{InputTokens: int64(100 * (i + 1))}
	}
	f.opts.Compaction = &loop.Compaction{Model: &summarizer{}, At: 600}
	f, _ = f.withTriggers(t)
	return f.withSets(t, "triggers", "channels", "scratchpad")
}

// lived are the events of the first turn of such a session as its fork has them, which was merged
// into, and of which a person reverted one call and resolved another.
func lived(t *testing.T) []loop.Event {
	t.Helper()
	f := whole(t)
	f.mustRun(t.Context(), t)
	events := f.events(t)
	for i := range events { // as package session makes a fork
		events[i].SessionID, events[i].Seed = "fork", ""
	}
	of := loop.NoteFields{Reverts: events[3].CallID}
	revert := loop.CallFields{CallID: "revert-1", Name: "undo"}
	return append(events,
		loop.Event{Type: loop.EventSessionForked, NoteFields: loop.NoteFields{From: f.session}},
		loop.Event{Type: loop.EventRevertStarted, Turn: 1, NoteFields: of, CallFields: revert},
		loop.Event{Type: loop.EventRevertEnded, Turn: 1, NoteFields: of, CallFields: revert, Status: "ok", Text: "[it was undone]"},
		loop.Event{Type: loop.EventCallResolved, Turn: 1, CallFields: loop.CallFields{CallID: "unknown-1"}, Status: "did_not", Text: "[it did not happen]"},
		loop.Event{Type: loop.EventSessionMerged, Turn: 1, Text: "[a fork was merged]", NoteFields: loop.NoteFields{From: "other", Checkpoint: 3}})
}

// Wherever the second turn of a session is interrupted that is a fork, was merged into, and has
// reverted calls, it ends as one that is not: each call, fork, merge, message and trigger is there
// once, and no summary more.
func TestRun_CrashAtAnyAppendOfAWholeLife(t *testing.T) {
	t.Parallel()
	before := lived(t)
	requireCrashesChangeNothing(t, 30, func() *family {
		f := whole(t)
		f.before = before
		return f
	}, func(clean, f *family, name string) {
		require.Equal(t, slices.Sorted(slices.Values(clean.kinds())), slices.Sorted(slices.Values(f.kinds())), name)
		require.Len(t, f.fleet.posts["default.work"], 1, name)
		require.Len(t, f.set.ever, 2, name)
		counts := map[loop.EventType]int{}
		for _, e := range f.events(t) {
			counts[e.Type]++
		}
		require.Equal(t, []int{2, 2, 1, 1}, []int{
			counts[loop.EventTurnStarted], counts[loop.EventTurnEnded], counts[loop.EventCompacted], counts[loop.EventSessionMerged],
		}, name)
		requireOneResultEach(t, f.events(t)[len(before):])
		require.Contains(t, texts(f.models["go"].lastSeen()), "tool: first", name)
		writer, is := f.opts.Compaction.Model.(*summarizer)
		require.True(t, is)
		for _, text := range []string{"[it was undone]", "[it did not happen]", "[a fork was merged]"} {
			require.Contains(t, writer.asked[0], text, name)
		}
	})
}
