package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Fork forks the conversation of a session alone. turns is 0 when the point is none of it.
func Fork(ctx context.Context, journal loop.Journal, from protocol.SessionID, at At, to protocol.SessionID) (turns int, err error) {
	c, err := forkOf(ctx, journal, from, at, to)
	if err == nil {
		err = c.run(ctx, nil)
	}
	if err != nil {
		return 0, fmt.Errorf("fork session %s: %w", from, err)
	}
	return c.turns, nil
}

// conversation is one of two turns; the first has two steps, of which the first has two calls, and
// a job that never ends.
func conversation() []loop.Event {
	return []loop.Event{
		{Type: loop.EventSessionStarted, StartFields: loop.StartFields{Model: "m"}},
		{Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{Input: "first", Seed: "of the origin"}},
		{Type: loop.EventModelReply, Turn: 1, Step: 1, ReplyFields: loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: "a", Name: "x"}, {ID: "b", Name: "y"}}}},
		{
			Type: loop.EventToolResult, Turn: 1, Step: 1, CallFields: loop.CallFields{Index: 1, ToolCallID: "b", CallID: "call-b"},
			HandleFields: loop.HandleFields{Job: "job-1"}, Status: "ok", ResultFields: loop.ResultFields{Content: "begun"},
		},
		{
			Type: loop.EventToolResult, Turn: 1, Step: 1,
			CallFields: loop.CallFields{Index: 0, ToolCallID: "a", CallID: "call-a"}, Status: "ok",
			ResultFields: loop.ResultFields{Content: "done"},
		},
		{Type: loop.EventModelReply, Turn: 1, Step: 2, Text: "that is it"},
		{Type: loop.EventTurnEnded, Turn: 1, Status: "answered"},
		{Type: loop.EventTurnStarted, Turn: 2, StartFields: loop.StartFields{Input: "second"}},
		{Type: loop.EventModelReply, Turn: 2, Step: 1, ReplyFields: loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: "c", Name: "x"}, {ID: "d", Name: "x"}}}},
		{
			Type: loop.EventToolResult, Turn: 2, Step: 1,
			CallFields: loop.CallFields{Index: 0, ToolCallID: "c", CallID: "call-c"}, Status: "ok",
			ResultFields: loop.ResultFields{Content: "done"},
		},
	}
}

// A session goes on wherever it was cut off.
func TestFork_GoesOnWhereverItWasCut(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	j, err := journal.Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	mustAppend(t, j, "from", 0, conversation()...)
	ended := conversation()[:7]
	mustAppend(t, j, "ended", 0, ended...)
	for i, test := range []struct {
		from  protocol.SessionID
		at    At
		turns int
	}{{"from", At{Call: "call-a"}, 1}, {"from", At{Call: "call-c"}, 2}, {"from", At{}, 2}, {"ended", At{}, 1}, {"ended", At{Call: "call-a"}, 1}, {"from", At{Turn: 1}, 1}} {
		to := protocol.SessionID(fmt.Sprint("to-", i))
		turns, err := Fork(t.Context(), j, test.from, test.at, to)
		require.NoError(t, err)
		require.Equal(t, test.turns, turns, test.at)
		table, err := tools.NewTable()
		require.NoError(t, err)
		runner, err := loop.New(answers{}, nobody{}, j, table, &loop.Options{ModelName: "m"})
		require.NoError(t, err)
		result, err := runner.Run(t.Context(), to, loop.Input{Text: "go on"})
		require.NoError(t, err, test)
		require.Equal(t, turns+1, result.Turn)
		require.Equal(t, "answer", result.Text)
		history := mustLoad(t, j, to)
		last := slices.IndexFunc(history.Events, func(e loop.Event) bool { return e.Type == loop.EventTurnStarted && e.Turn == turns+1 })
		require.NotEmpty(t, history.Events[last].Seed)
		for _, e := range history.Events {
			require.Equal(t, to, e.SessionID)
			require.NotEqual(t, "of the origin", e.Seed)
		}
	}
	turns, err := Fork(t.Context(), j, "from", At{Call: "other"}, "none")
	require.NoError(t, err)
	require.Zero(t, turns)
	history := mustLoad(t, j, "none")
	require.Empty(t, history.Events, "nothing was written")
	_, err = Fork(t.Context(), j, "from", At{}, "to-1")
	require.ErrorIs(t, err, codes.ErrExists)
	calls, ok, err := Behind(t.Context(), j, "from", At{Turn: 2})
	require.NoError(t, err)
	require.False(t, ok, "turn 2 has not ended")
	require.Empty(t, calls)
}

// What a model's server refused of a call stays left out in a fork at that call.
func TestFork_KeepsWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	left := func(id string) loop.Event {
		return loop.Event{Type: loop.EventPartLeftOut, Turn: 1, Step: 2, CallFields: loop.CallFields{ToolCallID: id}, Part: loop.PartImage, Text: "refused"}
	}
	events := slices.Insert(conversation(), 5, left("a"))
	events = append(events, left("c"))
	for at, want := range map[protocol.CallID][]string{"call-a": {"a"}, "call-c": {"a", "c"}, "": {"a", "c"}} {
		var got []string
		for _, e := range eventsUntil(slices.Clone(events), At{Call: at}) {
			if e.Type == loop.EventPartLeftOut {
				got = append(got, e.ToolCallID)
			}
		}
		require.Equal(t, want, got, at)
	}
}

// So does an attachment of an input before the point, and none of a later one.
func TestFork_KeepsAttachmentsThatAreLeftOut(t *testing.T) {
	t.Parallel()
	left := func(id string) loop.Event {
		return loop.Event{Type: loop.EventPartLeftOut, CallFields: loop.CallFields{ToolCallID: id}, Part: loop.PartAttachment}
	}
	started := func(id string) []loop.Event {
		return []loop.Event{{Type: loop.EventTurnStarted, StartFields: loop.StartFields{Attachments: []loop.Attachment{{ID: id}}}}}
	}
	require.Equal(t, []loop.Event{left("a")}, leftOutOf(started("a"), []loop.Event{left("a"), left("b")}))
}

// answers is a model that has one answer.
type answers struct{}

func (answers) Reply(context.Context, loop.Request, func(loop.Delta)) (loop.Reply, error) {
	return loop.Reply{Text: "answer"}, nil
}

// nobody dispatches nothing.
type nobody struct{ loop.Dispatcher }

func TestFork_IsForkedUntilItHasATurnOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mustAppend(t, r.Journal, "from", 0, conversation()...)
	_, err := Fork(t.Context(), r.Journal, "from", At{Call: "call-a"}, "to")
	require.NoError(t, err)
	info, err := r.reader(t).Show(t.Context(), "to")
	require.NoError(t, err)
	require.Equal(t, report.StateForked, info.State)
	history := mustLoad(t, r.Journal, "to")
	mustAppend(t, r.Journal, "to", history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 2, StartFields: loop.StartFields{Input: "on"}})
	info, err = r.reader(t).Show(t.Context(), "to")
	require.NoError(t, err)
	require.Equal(t, report.StateOpen, info.State)
	ids, err := r.reader(t).IDs(t.Context())
	require.NoError(t, err)
	require.Equal(t, []protocol.SessionID{"to", "from"}, ids)
}

// Also a session that has changed no file can be forked.
func TestFork_OfASessionWithoutFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mustAppend(t, r.Journal, "from", 0, conversation()...)
	files := mustOpenFiles(t, r, protocol.DefaultPool)
	turns, err := files.Fork(t.Context(), r.Journal, "from", At{}, "to")
	require.NoError(t, err)
	require.Equal(t, 2, turns)
	info, err := r.reader(t).Show(t.Context(), "to")
	require.NoError(t, err)
	require.Equal(t, protocol.SessionID("from"), info.Parent)
	_, err = files.Fork(t.Context(), r.Journal, "nobody", At{}, "other")
	require.ErrorIs(t, err, ErrNone)
}

// A job has its result when it ends. One that ended before the point does not end again, and one
// that did not has no handle in the fork.
func TestFork_EndsJobs(t *testing.T) {
	t.Parallel()
	events := conversation()[:7]
	events[3].Handle = "p-1"
	require.Negative(t, At{Call: "call-b"}.in(events))
	ended := loop.Event{Type: loop.EventJobEnded, Turn: 1, CallFields: loop.CallFields{CallID: "call-b"}, Status: "ok"}
	for _, before := range [][]loop.Event{events, slices.Insert(slices.Clone(events), 6, ended)} {
		var ends []loop.Event
		for _, e := range eventsUntil(before, At{}) {
			if e.Type == loop.EventJobEnded {
				ends = append(ends, e)
			}
		}
		require.Len(t, ends, 1)
		require.Empty(t, ends[0].Handle)
	}
	require.Equal(t, 6, At{Call: "call-b"}.in(slices.Insert(slices.Clone(events), 6, ended)))
}

// Calls that began before their reply is complete stay with the origin.
func TestFork_LeavesStreamedCallsOut(t *testing.T) {
	t.Parallel()
	call := func(turn, step int) loop.Event { return loop.Event{Type: loop.EventToolCall, Turn: turn, Step: step} }
	replied := append(conversation(), call(1, 1), call(2, 1))
	require.Equal(t, replied, withoutStreamed(append(slices.Clone(replied), call(2, 2))))
	require.Equal(t, replied, withoutStreamed(append(slices.Clone(replied), call(3, 1))))
}

// Calls of sub-agents are behind a point with the call that began them, once.
func TestBehind_OfSubAgents(t *testing.T) {
	t.Parallel()
	journal := &looptest.Journal{}
	call := func(id protocol.CallID, name string) loop.Event {
		return loop.Event{Type: loop.EventToolCall, Turn: 1, CallFields: loop.CallFields{CallID: id, Name: name}}
	}
	begin(t, journal, "s", "", call("a", wire.AgentTool))
	begin(t, journal, "a", "s", loop.Event{Type: loop.EventSessionStarted}, call("b", "x"), call("a", wire.AgentTool))
	behindOf := func(events ...loop.Event) map[protocol.CallID]bool {
		calls := map[protocol.CallID]bool{}
		require.NoError(t, behind(t.Context(), journal, events, calls))
		return calls
	}
	by := func(id protocol.SessionID) loop.Event {
		e := call("a", wire.AgentTool)
		e.SessionID = id
		return e
	}
	require.Equal(t, map[protocol.CallID]bool{"a": true, "b": true}, behindOf(by("s")))
	forked := loop.Event{Type: loop.EventSessionForked, SessionID: "fork", NoteFields: loop.NoteFields{From: "s"}}
	require.Equal(t, map[protocol.CallID]bool{"a": true, "b": true}, behindOf(by("fork"), forked))
	require.Equal(t, map[protocol.CallID]bool{"a": true}, behindOf(by("other")), "another session's sub-agent")
}

// An export is written by anybody. What it says about other sessions gives no right to anything of
// them, and amounts that reduce what was used are refused.
func TestImport_ClaimsNothingOfOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	j, log := r.Journal, filepath.Join(t.TempDir(), "log")
	secret := &loop.Image{MediaType: "image/png", Data: make([]byte, r.NC.MaxPayload())} // no room in a message
	victim := turnOf([]loop.Event{
		{Type: loop.EventToolCall, Turn: 1, Step: 1, CallFields: loop.CallFields{CallID: "v-1", ToolCallID: "v-1", Name: "read"}},
		{
			Type: loop.EventToolResult, Turn: 1, Step: 1,
			CallFields: loop.CallFields{CallID: "v-1", ToolCallID: "v-1", Name: "read"}, Status: "ok",
			ResultFields: loop.ResultFields{Image: secret},
		},
	})
	begin(t, j, "victim", "", victim...)
	stored := mustLoad(t, j, "victim")
	image := stored.Events[4].Image // of its tool_result
	require.NotEmpty(t, image.Blob)
	require.Equal(t, secret.Data, image.Data, "its own session reads it")

	agent := loop.CallFields{CallID: "victim", ToolCallID: "i-2", Name: wire.AgentTool}
	export := func() []loop.Event {
		events := turnOf(
			undoing(t, log, "i-0", "first", ""), undoing(t, log, "i-1", "other", ""),
			[]loop.Event{{Type: loop.EventToolCall, Turn: 1, Step: 1, CallFields: agent}, {
				Type: loop.EventToolResult, Turn: 1, Step: 1, CallFields: agent, Status: "ok",
				ResultFields: loop.ResultFields{Image: &loop.Image{MediaType: "image/png", Blob: image.Blob}},
			}},
		)
		events[0].Parent = &loop.Parent{SessionID: "victim", CallID: "v-1"}
		events[3].Bound = &loop.Binding{Tenant: "victim"}
		events[1].Attachments = []loop.Attachment{{Name: "a.png", Image: loop.Image{MediaType: "image/png", Blob: image.Blob}}}
		return append(events, loop.Event{Type: loop.EventSessionForked, NoteFields: loop.NoteFields{From: "victim"}})
	}
	turns, err := Import(t.Context(), j, export(), "imported")
	require.NoError(t, err)
	require.Equal(t, 1, turns)
	imported := mustLoad(t, j, "imported")
	require.Nil(t, imported.Events[0].Parent)
	require.Nil(t, imported.Events[3].Bound)
	// The same in a journal that was written otherwise.
	mustAppend(t, j, "written", 0, export()[1:]...)
	for _, id := range []protocol.SessionID{"imported", "written"} {
		history := mustLoad(t, j, id)
		for _, e := range history.Events {
			require.True(t, e.Image == nil || len(e.Image.Data) == 0, "%s has the image of another session", id)
			for _, a := range e.Attachments {
				require.Empty(t, a.Data)
			}
		}
		child, err := loop.LoadAgent(t.Context(), j, history.Events, "victim")
		require.NoError(t, err)
		require.Empty(t, child.Events)
		effects := mustEffects(t, j, id, At{Call: "i-0"})
		err = Revert(t.Context(), r.Fleet, id, "", effects)
		require.Equal(t, id == "written", err != nil)
		require.NoFileExists(t, log, "a call of another session was sent")
	}
	for field, spoil := range map[string]func(e *loop.Event){
		"cost_usd -1": func(e *loop.Event) { e.CostUSD = new(-1.0) }, "usage.input_tokens -2": func(e *loop.Event) { e.Usage = &protocol.Usage{InputTokens: -2} },
		"spent.usd NaN": func(e *loop.Event) { e.Spent = &protocol.Spending{USD: math.NaN()} }, "elapsed_ms -1": func(e *loop.Event) { e.ElapsedMS = -1 },
		"usage.output_tokens 9.223372036854776e+18": func(e *loop.Event) { e.Usage = &protocol.Usage{InputTokens: 1, OutputTokens: math.MaxInt64} },
		"usage.cache_write_tokens -3":               func(e *loop.Event) { e.Usage = &protocol.Usage{CacheWriteTokens: -3} },
	} {
		events := export()
		spoil(&events[2])
		_, err := Import(t.Context(), j, events, "spoiled")
		require.ErrorIs(t, err, codes.ErrInvalid)
		require.ErrorContains(t, err, "event 3 of the export, model_reply: "+field+": must be from 0 to 1e+12")
	}
}

// What a session is said to have used is its own: summaries and failed replies count, what its
// origin used does not, and an unknown price makes the sum unknown.
func TestFold_WhatASessionUsedIsItsOwn(t *testing.T) {
	t.Parallel()
	spent := func(kind loop.EventType, cost *float64) loop.Event {
		return loop.Event{Type: kind, Turn: 1, Step: 1, ReplyFields: loop.ReplyFields{Usage: &protocol.Usage{InputTokens: 10, OutputTokens: 1}, CostUSD: cost}}
	}
	events := []loop.Event{
		{Type: loop.EventTurnStarted, Turn: 1}, spent(loop.EventReplyFailed, new(0.5)), spent(loop.EventModelReply, new(1.0)), spent(loop.EventCompacted, new(2.0)),
	}
	origin := describe(events)
	require.Equal(t, int64(33), origin.Usage.Total())
	require.InDelta(t, 3.5, *origin.CostUSD, 1e-9)
	unknown := describe(append(slices.Clone(events), spent(loop.EventModelReply, nil), spent(loop.EventModelReply, new(1.0))))
	require.Nil(t, unknown.CostUSD)
	fork := describe(append(events, loop.Event{Type: loop.EventSessionForked, NoteFields: loop.NoteFields{From: "from"}}, spent(loop.EventModelReply, new(1.0))))
	require.Equal(t, int64(11), fork.Usage.Total())
	require.InDelta(t, 1.0, *fork.CostUSD, 1e-9)
}

// Other calls may still ask when one is approved.
func TestDescribe_AQuestionBehindAnApproval(t *testing.T) {
	t.Parallel()
	of := func(kind loop.EventType, id protocol.CallID) loop.Event {
		return loop.Event{Type: kind, Turn: 1, Step: 1, CallFields: loop.CallFields{CallID: id}, HandleFields: loop.HandleFields{Question: &protocol.Question{ID: "q"}}}
	}
	events := []loop.Event{{Type: loop.EventTurnStarted, Turn: 1}, of(loop.EventQuestionAsked, "a"), of(loop.EventApprovalAsked, "b")}
	info := describe(events)
	require.Equal(t, report.StateWaitsForApproval, info.State)
	require.Equal(t, protocol.CallID("b"), info.Approval.CallID)
	info = describe(append(events, of(loop.EventPolicyDecision, "b")))
	require.Equal(t, report.StateWaitsForAnswer, info.State)
	require.Nil(t, info.Approval)
	require.Len(t, info.Questions, 1)
	require.Equal(t, report.StateOpen, describe(append(events, of(loop.EventAnswered, "a"))).State)
}

// long is a conversation that no single message of a journal holds, with a call that may start
// once.
func long(f *nats.Conn) []loop.Event {
	events := []loop.Event{
		{Type: loop.EventSessionStarted, StartFields: loop.StartFields{Model: "m"}},
		{Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{Input: "deploy everything", Seed: "origin"}},
	}
	steps := int(f.MaxPayload()) * 13 / 10 / (24 << 10)
	for s := 1; s <= steps; s++ {
		id := fmt.Sprint("c", s)
		fields := loop.CallFields{ToolCallID: id, Name: "deploy", CallID: wire.NewCallID("from", "origin", 1, s, 0)}
		events = append(events,
			loop.Event{Type: loop.EventModelReply, Turn: 1, Step: s, ReplyFields: loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: id, Name: "deploy", Arguments: "{}"}}}},
			loop.Event{Type: loop.EventToolCall, Turn: 1, Step: s, CallFields: fields},
			loop.Event{Type: loop.EventToolResult, Turn: 1, Step: s, CallFields: fields, Status: "ok", ResultFields: loop.ResultFields{Content: strings.Repeat("x", 24<<10)}})
	}
	return append(events, loop.Event{Type: loop.EventModelReply, Turn: 1, Step: steps + 1, Text: "deployed"},
		loop.Event{Type: loop.EventTurnEnded, Turn: 1, Step: steps + 1, Status: "answered", Text: "deployed"})
}

// cutOff stores a number of messages, and the first part of the next append.
type cutOff struct {
	loop.Journal

	left int
	part int // of the events
}

func (c *cutOff) Append(ctx context.Context, id protocol.SessionID, last uint64, events ...loop.Event) (uint64, error) {
	if c.left--; c.left < 0 {
		return 0, errCrash
	}
	if c.left == 0 {
		_, err := c.Journal.Append(ctx, id, last, events[:len(events)*c.part/2]...)
		return 0, errors.Join(errCrash, err)
	}
	return c.Journal.Append(ctx, id, last, events...)
}

// A fork, or an import, that is interrupted anywhere is no session, but for one that was stored
// whole. The same command makes it, with the files that its origin has then, and once.
func TestFork_CutOffAnywhereIsCompleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mustAppend(t, r.Journal, "from", 0, conversation()[:7]...)
	files := mustOpenFiles(t, r, protocol.DefaultPool)
	forks := func(journal loop.Journal, to protocol.SessionID) (int, error) {
		return files.Fork(t.Context(), journal, "from", At{}, to)
	}
	imports := func(journal loop.Journal, to protocol.SessionID) (int, error) {
		return Import(t.Context(), journal, conversation()[:7], to)
	}
	for name, do := range map[string]func(loop.Journal, protocol.SessionID) (int, error){"fork": forks, "import": imports} {
		for writes := 1; writes <= 2; writes++ {
			for part := range 3 { // nothing, a half, all without an answer
				to := protocol.SessionID(fmt.Sprintf("%s-%d-%d", name, writes, part))
				require.Nil(t, r.call(t.Context(), t, "from", protocol.FilesWrite{Path: "important", Content: []byte("old")}).Error)
				_, err := do(&cutOff{r.Journal, writes, part}, to)
				require.ErrorIs(t, err, errCrash)
				require.ErrorContains(t, err, "the same command again completes it")
				if half := writes == 1 && part == 2 || writes == 2 && part < 2; half {
					requireNoSession(t, r, to, report.StateUncompleted, loop.ErrUncompleted)
					_, err = Fork(t.Context(), r.Journal, "from", At{Turn: 1}, to)
					require.ErrorIs(t, err, codes.ErrExists)
					require.ErrorContains(t, err, "session rm "+string(to))
				}
				if writes == 1 {
					require.Nil(t, r.call(t.Context(), t, "from", protocol.FilesWrite{Path: "important", Content: []byte("new")}).Error)
				}
				for range 2 {
					turns, err := do(r.Journal, to)
					require.NoError(t, err)
					require.Equal(t, 1, turns)
				}
				history := mustLoad(t, r.Journal, to)
				require.Len(t, history.Events, len(conversation()[:7])+2, "and the end of its job")
				require.Equal(t, to, history.Events[0].SessionID)
				if name == "fork" {
					content, err := files.Read(t.Context(), to, "important", "")
					require.NoError(t, err)
					require.Equal(t, map[bool]string{true: "new", false: "old"}[writes == 1], string(content))
				}
				info, err := r.reader(t).Show(t.Context(), to)
				require.NoError(t, err)
				require.NotEqual(t, report.StateUncompleted, info.State)
				mustAppend(t, r.Journal, to, history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 2}, loop.Event{Type: loop.EventTurnEnded, Turn: 2})
				_, err = do(r.Journal, to)
				require.ErrorIs(t, err, codes.ErrExists, "it is a session, which has continued")
			}
		}
	}
}

// The process of an interrupted fork, which was stopped, adds nothing to the one that was made
// instead.
func TestFork_MadeAgainWhileItsProcessWasStopped(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	j, err := journal.Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	mustAppend(t, j, "from", 0, long(f.NC)...)
	c, err := forkOf(t.Context(), j, "from", At{}, "to")
	require.NoError(t, err)
	err = c.run(t.Context(), func() error { // it is stopped between the mark and the conversation
		_, err := Fork(t.Context(), j, "from", At{}, "to")
		return err
	})
	require.ErrorIs(t, err, codes.ErrExists)
	history := mustLoad(t, j, "to")
	require.Len(t, history.Events, len(long(f.NC))+1)
}

// What was never completed is removed by its name, or when it is old.
func TestFork_NeverCompletedIsRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mustAppend(t, r.Journal, "from", 0, conversation()[:7]...)
	files := mustOpenFiles(t, r, protocol.DefaultPool)
	require.Nil(t, r.call(t.Context(), t, "from", protocol.FilesWrite{Path: "important", Content: []byte("old")}).Error)
	cut := func(to protocol.SessionID) {
		_, err := files.Fork(t.Context(), &cutOff{r.Journal, 2, 1}, "from", At{}, to)
		require.ErrorIs(t, err, errCrash)
		require.NotEmpty(t, r.left(t, to))
	}
	cut("removed")
	r.mustRemove(t, "removed", Options{})
	require.Empty(t, r.left(t, "removed"))

	cut("old")
	half := mustRemover(t, r, "interrupted", Options{Force: true})
	mustAppend(t, r.Journal, "interrupted", 0, conversation()...)
	require.NoError(t, half.mark(t.Context()))
	sweeper := Sweeper{Fleet: r.Fleet, Stores: map[*fleet.Fleet]*workspace.Store{r.Fleet: files.store}, Age: time.Hour}
	n, err := sweeper.Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, n, "nothing is old")
	sweeper.Age = 0
	require.Eventually(t, func() bool { // a worker holds a lane for a moment
		_, err := sweeper.Sweep(t.Context())
		list, _, listErr := r.reader(t).List(t.Context(), 10)
		return err == nil && listErr == nil && len(list) == 1
	}, time.Minute, 50*time.Millisecond)
	require.Empty(t, r.left(t, "old"))
}

// A path can be no heading of a difference, whatever its name is.
func TestDifference_HasOneHeadingForEachPath(t *testing.T) {
	t.Parallel()
	before, after := snapshot.Tree{}, snapshot.Tree{}
	paths := []string{"a", "b\nnew file c", "changed dir d", "e\r\nremoved file f"}
	for i, path := range paths {
		into := []snapshot.Tree{before, after}[i%2]
		into[underWorkspace+path] = snapshot.Node{Type: protocol.TypeDir}
	}
	text, err := Difference(t.Context(), nil, "s", before, after)
	require.NoError(t, err)
	require.Equal(t, "removed dir a\nnew dir \"b\\nnew file c\"\nremoved dir changed dir d\nnew dir \"e\\r\\nremoved file f\"\n", text)
	for line := range strings.Lines(text) {
		require.True(t, prose.IsDiffHead(line), line)
	}
}
