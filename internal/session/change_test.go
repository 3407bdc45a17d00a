package session

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// forked makes a session with files and a turn, and a fork that has changed them and answered.
func forked(t *testing.T, r *rig, files Files) (into, fork protocol.SessionID) {
	t.Helper()
	into, fork = protocol.NewSessionID(), protocol.NewSessionID()
	require.Nil(t, r.call(t.Context(), t, into, protocol.CommandRun{Command: "seq 9 > both"}).Error)
	mustAppend(t, r.Journal, into, 0, conversation()[:7]...)
	_, err := files.Fork(t.Context(), r.Journal, into, At{}, fork)
	require.NoError(t, err)
	require.Nil(t, r.call(t.Context(), t, fork, protocol.CommandRun{Command: "sed -i s/1/one/ both; echo new > new"}).Error)
	history := mustLoad(t, r.Journal, fork)
	mustAppend(t, r.Journal, fork, history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 2},
		loop.Event{Type: loop.EventTurnEnded, Turn: 2, Text: "I am done.", Status: "answered"})
	return into, fork
}

// A merge that is interrupted at any of its writes, and done again, leaves one message, which names
// what was merged.
func TestMerge_ThatIsInterruptedIsCompleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	files := mustOpenFiles(t, r, "")
	for left := 1; left <= 2; left++ { // its beginning, its end
		for _, stores := range []bool{false, true} {
			into, fork := forked(t, r, files)
			_, err := merge(t.Context(), r.Fleet, &brittle{Journal: r.Journal, left: left, stores: stores}, fork, into, "")
			require.ErrorIs(t, err, errCrash)
			merged, err := Merge(t.Context(), r.Fleet, fork, into, "")
			require.NoError(t, err)
			require.Equal(t, left == 2 && stores, merged.Written == nil, "it was complete")
			history := mustLoad(t, r.Journal, into)
			said := slices.DeleteFunc(history.Events, func(e loop.Event) bool { return e.Type != loop.EventSessionMerged })
			require.Len(t, said, 1)
			require.Contains(t, said[0].Text, "Its answer:\nI am done.")
			require.Contains(t, said[0].Text, "changed: both, new")
			both, err := files.Read(t.Context(), into, "both", "")
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(string(both), "one\n2\n"), string(both))
		}
	}
}

// listens is a model that notes what it was asked.
type listens struct{ messages []loop.Message }

func (m *listens) Reply(_ context.Context, req loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	m.messages = req.Messages
	return loop.Reply{Text: "I see."}, nil
}

// The next turn completes a merge that was interrupted, before it begins: its model reads the
// message, and what it does then is not merged over.
func TestMerge_ThatIsInterruptedBeforeATurn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	files := mustOpenFiles(t, r, "")
	for left := 1; left <= 2; left++ {
		into, fork := forked(t, r, files)
		_, err := merge(t.Context(), r.Fleet, &brittle{Journal: r.Journal, left: left, stores: left == 1}, fork, into, "")
		require.ErrorIs(t, err, errCrash)
		table, err := tools.NewTable()
		require.NoError(t, err)
		model := &listens{}
		runner, err := loop.New(model, r.Dispatcher, r.Journal, table, &loop.Options{ModelName: "m"})
		require.NoError(t, err)
		_, err = runner.Run(t.Context(), into, loop.Input{Text: "what is new?"})
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(model.messages, func(m loop.Message) bool {
			return strings.Contains(m.Text, "I am done.") && strings.Contains(m.Text, "changed: both, new")
		}), model.messages)
		require.Nil(t, r.call(t.Context(), t, into, protocol.CommandRun{Command: "rm new; sed -i s/one/ONE/ both"}).Error)
		merged, err := Merge(t.Context(), r.Fleet, fork, into, "")
		require.NoError(t, err)
		require.Empty(t, merged.Written)
		_, err = files.Read(t.Context(), into, "new", "")
		require.ErrorIs(t, err, ErrNoFile, "it was removed after the merge")
		both, err := files.Read(t.Context(), into, "both", "")
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(both), "ONE\n2\n"), string(both))
	}
}

// A merge that failed is done again: the result of the first one does not stay.
func TestMerge_ThatFailedIsDoneAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	files := mustOpenFiles(t, r, "")
	into, fork := protocol.NewSessionID(), protocol.NewSessionID()
	mustAppend(t, r.Journal, into, 0, conversation()[:7]...)
	_, err := Merge(t.Context(), r.Fleet, fork, into, "")
	require.Equal(t, protocol.CodeNotFound, codeOf(err), "it has no workspace yet")
	require.Nil(t, r.call(t.Context(), t, into, protocol.CommandRun{Command: "echo old > old"}).Error)
	require.NoError(t, files.fork(t.Context(), r.Journal, into, At{}, sandboxLane(fork)))
	require.Nil(t, r.call(t.Context(), t, fork, protocol.CommandRun{Command: "echo new > new"}).Error)
	merged, err := Merge(t.Context(), r.Fleet, fork, into, "")
	require.NoError(t, err)
	require.Equal(t, []string{"new"}, merged.Written)
}

// Each fork is merged from where it was merged last, and each new state or answer is one message.
func TestMerge_OfSeveralForksAndAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	files := mustOpenFiles(t, r, "")
	into, first, second := protocol.NewSessionID(), protocol.NewSessionID(), protocol.NewSessionID()
	change := func(id protocol.SessionID, command string) {
		t.Helper()
		require.Nil(t, r.call(t.Context(), t, id, protocol.CommandRun{Command: command}).Error)
	}
	change(into, "echo old > old")
	said := conversation()[:7]
	said[6].Text = "answer of the origin"
	mustAppend(t, r.Journal, into, 0, said...)
	for _, fork := range []protocol.SessionID{first, second} {
		_, err := files.Fork(t.Context(), r.Journal, into, At{}, fork)
		require.NoError(t, err)
	}
	messages := 0
	merge := func(fork protocol.SessionID, answer string, written ...string) {
		t.Helper()
		planned, err := files.Conflicts(t.Context(), fork, into, MergedUpTo(mustLoad(t, r.Journal, into).Events, fork))
		require.NoError(t, err)
		require.Equal(t, written, planned.Written, "what is said before is what is done")
		merged, err := Merge(t.Context(), r.Fleet, fork, into, "")
		require.NoError(t, err)
		require.Equal(t, written, merged.Written)
		require.Empty(t, merged.Conflicts)
		require.Equal(t, answer, merged.Answer, "none of the origin's")
		history := mustLoad(t, r.Journal, into)
		messages++
		require.Len(t, slices.DeleteFunc(history.Events, func(e loop.Event) bool { return e.Type != loop.EventSessionMerged }), messages)
	}
	change(first, "echo a > a")
	change(second, "echo b > b")
	merge(first, "", "a")
	merge(second, "", "b")
	change(into, "echo mine > a")
	change(first, "echo c > c")
	merge(first, "", "c")
	history := mustLoad(t, r.Journal, first)
	mustAppend(t, r.Journal, first, history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 2},
		loop.Event{Type: loop.EventTurnEnded, Turn: 2, Text: "Done.", Status: "answered"})
	merge(first, "Done.")
}

// Two forks of one session can be merged into each other. A session that was removed, or never was,
// gets nothing, and neither does one from itself.
func TestMerge_OfSiblingsAndIntoWhatIsThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	files := mustOpenFiles(t, r, "")
	origin, stranger := protocol.NewSessionID(), protocol.NewSessionID()
	for _, id := range []protocol.SessionID{origin, stranger} {
		require.Nil(t, r.call(t.Context(), t, id, protocol.CommandRun{Command: "seq 9 > both"}).Error)
		mustAppend(t, r.Journal, id, 0, conversation()[:7]...)
	}
	fork := func(from protocol.SessionID, command string) protocol.SessionID {
		id := protocol.NewSessionID()
		_, err := files.Fork(t.Context(), r.Journal, from, At{}, id)
		require.NoError(t, err)
		require.Nil(t, r.call(t.Context(), t, id, protocol.CommandRun{Command: command}).Error)
		return id
	}
	left, right := fork(origin, "sed -i s/1/one/ both"), fork(origin, "sed -i s/9/nine/ both")
	deeper := fork(right, "echo new > new")
	for _, from := range []protocol.SessionID{left, deeper} {
		into := right
		if from == deeper {
			into = left
		}
		_, err := Merge(t.Context(), r.Fleet, from, into, "")
		require.NoError(t, err)
	}
	both, err := files.Read(t.Context(), right, "both", "")
	require.NoError(t, err)
	require.Equal(t, "one\n2\n3\n4\n5\n6\n7\n8\nnine\n", string(both))
	_, err = files.Read(t.Context(), left, "new", "")
	require.NoError(t, err)

	_, err = Merge(t.Context(), r.Fleet, left, stranger, "")
	require.ErrorContains(t, err, "is no fork of this one, and both are no forks of the same one")
	_, err = Merge(t.Context(), r.Fleet, left, left, "")
	require.ErrorIs(t, err, codes.ErrInvalid)
	require.ErrorContains(t, err, "a session cannot be merged into itself")
	r.mustRemove(t, origin, Options{})
	_, err = Merge(t.Context(), r.Fleet, left, origin, "")
	require.ErrorIs(t, err, ErrNone)
	there, err := HasWorkspace(t.Context(), r.Fleet, origin)
	require.NoError(t, err)
	require.False(t, there, "the merge makes none")
	_, err = Merge(t.Context(), r.Fleet, fork(left, "true"), right, "")
	require.NoError(t, err, "a removed origin is still the common one")
}

// A session of single calls has no conversation that says what was merged: its workspace does, as
// it was at each of its checkpoints.
func TestMerge_IntoASessionWithoutAConversation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	files := mustOpenFiles(t, r, "")
	into, fork := protocol.NewSessionID(), protocol.NewSessionID()
	change := func(id protocol.SessionID, command string) protocol.CallID {
		t.Helper()
		result := r.call(t.Context(), t, id, protocol.CommandRun{Command: command})
		require.Nil(t, result.Error)
		return result.CallID
	}
	begin := change(into, "echo old > old")
	require.NoError(t, files.fork(t.Context(), r.Journal, into, At{}, sandboxLane(fork)))
	change(fork, "echo new > new; echo newer > newer")
	written := func(want ...string) {
		t.Helper()
		merged, err := Merge(t.Context(), r.Fleet, fork, into, "")
		require.NoError(t, err)
		require.Equal(t, want, merged.Written)
	}
	written("new", "newer")
	change(into, "rm new")
	written()
	change(fork, "echo newest > newer")
	written("newer")
	_, err := files.Read(t.Context(), into, "new", "")
	require.ErrorIs(t, err, ErrNoFile, "it was removed after it was merged")

	_, err = Restore(t.Context(), r.Fleet, into, "", begin)
	require.NoError(t, err)
	written("new", "newer")

	r.mustRemove(t, fork, Options{Used: true})
	require.NoError(t, files.fork(t.Context(), r.Journal, into, At{}, sandboxLane(fork)))
	change(fork, "echo last > new")
	written("new")
}

// undoing are the events of a call whose revert appends a word to a file.
func undoing(t *testing.T, log, id, word, command string) []loop.Event {
	t.Helper()
	call := protocol.Call{
		ID: protocol.CallID(id), SessionID: "s", Tool: "undo", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: "undo/all", Access: protocol.Exclusive}}, Delivery: protocol.AtMostOnce,
		Payload: protocol.ToolRun{Argv: []string{"sh", "-c", command + "echo " + word + " >> '" + log + "'"}, Arguments: json.RawMessage(`{}`), Text: true},
	}
	body, err := wire.EncodeCall(&call)
	require.NoError(t, err)
	at := loop.CallFields{CallID: protocol.CallID(id), ToolCallID: id, Name: "order"}
	return []loop.Event{
		{Type: loop.EventToolCall, Turn: 1, Step: 1, CallFields: at},
		{Type: loop.EventToolResult, Turn: 1, Step: 1, CallFields: at, Status: "ok", ResultFields: loop.ResultFields{Effect: &loop.Effect{
			Reaches: []string{"tool"}, Revert: &loop.RevertCall{Tool: "undo", Arguments: `{"id":1}`, Call: body},
		}}},
	}
}

// turnOf is a turn with the events of calls.
func turnOf(calls ...[]loop.Event) []loop.Event {
	reply := loop.Event{Type: loop.EventModelReply, Turn: 1, Step: 1}
	var events []loop.Event
	for i, call := range calls {
		for j := range call {
			call[j].Index = i
		}
		reply.ToolCalls = append(reply.ToolCalls, loop.ToolCall{ID: call[0].ToolCallID, Name: call[0].Name, Arguments: "{}"})
		events = append(events, call...)
	}
	begin := []loop.Event{{Type: loop.EventSessionStarted}, {Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{Input: "go"}}, reply}
	return append(append(begin, events...),
		loop.Event{Type: loop.EventModelReply, Turn: 1, Step: 2, Text: "done"},
		loop.Event{Type: loop.EventTurnEnded, Turn: 1, Status: "answered"})
}

// begin stores events as those of a session, which parent started by the call of that id; "" is a
// session of its own.
func begin(t *testing.T, journal loop.Journal, id, parent protocol.SessionID, events ...loop.Event) {
	t.Helper()
	for i := range events {
		e := &events[i]
		e.SessionID = id
		if e.Type == loop.EventSessionStarted && parent != "" {
			e.Parent = &loop.Parent{SessionID: parent, CallID: protocol.CallID(id)}
		}
		if e.Effect != nil && e.Effect.Revert != nil {
			call, err := wire.DecodeCall(e.Effect.Revert.Call)
			require.NoError(t, err)
			call.SessionID = id
			e.Effect.Revert.Call, err = wire.EncodeCall(call)
			require.NoError(t, err)
		}
	}
	mustAppend(t, journal, id, 0, events...)
}

func mustEffects(t *testing.T, journal loop.Journal, id protocol.SessionID, at At) []Effect {
	t.Helper()
	effects, err := Effects(t.Context(), journal, id, at)
	require.NoError(t, err)
	return effects
}

// brittle is a journal that fails at an append, before it is stored or after.
type brittle struct {
	loop.Journal

	left   int
	stores bool
}

var errCrash = errors.New("crash")

func (b *brittle) Append(ctx context.Context, id protocol.SessionID, last uint64, events ...loop.Event) (uint64, error) {
	if b.left--; b.left == 0 {
		if b.stores {
			_, _ = b.Journal.Append(ctx, id, last, events...)
		}
		return 0, errCrash
	}
	return b.Journal.Append(ctx, id, last, events...)
}

// Whatever is journaled before a crash, each revert runs once, the last call first.
func TestRevert_CrashAtAnyAppendRunsEachOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for n := 1; ; n++ {
		crashed := false
		for _, stores := range []bool{false, true} {
			log, id := filepath.Join(t.TempDir(), "log"), protocol.NewSessionID()
			prefix := string(protocol.NewSessionID())
			begin(t, r.Journal, id, "", turnOf(undoing(t, log, prefix+"-a", "one", ""), undoing(t, log, prefix+"-b", "two", ""), undoing(t, log, prefix+"-c", "three", ""))...)
			at := At{Call: protocol.CallID(prefix + "-a")}
			journal := &brittle{Journal: r.Journal, left: n, stores: stores}
			effects := mustEffects(t, journal, id, at)
			require.Len(t, effects, 2)
			if err := revert(t.Context(), r.Fleet, journal, id, "", effects); err != nil {
				require.ErrorIs(t, err, errCrash)
				crashed = true
				effects = mustEffects(t, r.Journal, id, at)
				require.NoError(t, Revert(t.Context(), r.Fleet, id, "", effects))
			}
			content, err := os.ReadFile(log)
			require.NoError(t, err)
			require.Equal(t, "three\ntwo\n", string(content), "%d %t", n, stores)
			effects = mustEffects(t, r.Journal, id, at)
			for _, e := range effects {
				require.True(t, e.Reverted)
			}
			require.NoError(t, Revert(t.Context(), r.Fleet, id, "", effects), "once more")
		}
		if !crashed {
			require.Greater(t, n, 4)
			return
		}
	}
}

func TestRevert_StopsAtTheFirstThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := filepath.Join(t.TempDir(), "log")
	flag := filepath.Join(t.TempDir(), "flag")
	begin(t, r.Journal, "s", "",
		turnOf(undoing(t, log, "x-1", "one", ""), undoing(t, log, "x-2", "two", "test -e '"+flag+"' || exit 1; "), undoing(t, log, "x-3", "three", ""))...)
	behind := At{Call: "x-1"}
	effects := mustEffects(t, r.Journal, "s", behind)
	err := Revert(t.Context(), r.Fleet, "s", "", effects)
	require.ErrorContains(t, err, "revert call x-2 of order by undo")
	require.NoError(t, os.WriteFile(flag, nil, 0o600))
	effects = mustEffects(t, r.Journal, "s", behind)
	require.True(t, effects[0].Reverted)
	require.False(t, effects[1].Reverted)
	require.NoError(t, Revert(t.Context(), r.Fleet, "s", "", effects), "one that failed is tried again")
	content, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "three\ntwo\n", string(content))
}

// A revert that was killed may have undone the effect: it is not sent again under another id before
// a person has found out.
func TestRevert_OneThatWasKilledIsNotSentAgain(t *testing.T) {
	t.Parallel()
	for delivery, again := range map[protocol.Delivery]bool{protocol.AtMostOnce: false, protocol.Rollback: false, protocol.Idempotent: true} {
		t.Run(string(delivery), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			log, id := filepath.Join(t.TempDir(), "log"), protocol.NewSessionID()
			events := undoing(t, log, string(id)+"-a", "undone", "echo begun >> '"+log+"'; test -e '"+log+".go' || sleep 60; ")
			call, err := wire.DecodeCall(events[1].Effect.Revert.Call)
			require.NoError(t, err)
			call.Delivery, call.RunTimeout = delivery, protocol.MillisOf(time.Second)
			events[1].Effect.Revert.Call, err = wire.EncodeCall(call)
			require.NoError(t, err)
			begin(t, r.Journal, id, "", turnOf(undoing(t, log, string(id)+"-0", "never", ""), events)...)
			revert := func() error {
				effects := mustEffects(t, r.Journal, id, At{Call: protocol.CallID(id + "-0")})
				require.Len(t, effects, 1)
				return Revert(t.Context(), r.Fleet, id, "", effects)
			}
			require.ErrorContains(t, revert(), string(protocol.CodeRunTimeout))
			require.NoError(t, os.WriteFile(log+".go", nil, 0o600))
			if !again {
				require.ErrorContains(t, revert(), "is unknown: run session resolve for it first")
				content, err := os.ReadFile(log)
				require.NoError(t, err)
				require.Equal(t, "begun\n", string(content))
				info, err := r.reader(t).Show(t.Context(), id)
				require.NoError(t, err)
				require.Len(t, info.Unknown, 1)
				require.NoError(t, Resolve(t.Context(), r.Fleet, id, "", info.Unknown[0].CallID, false, "ada"))
			}
			require.NoError(t, revert())
			content, err := os.ReadFile(log)
			require.NoError(t, err)
			require.Equal(t, "begun\nbegun\nundone\n", string(content))
		})
	}
}

// The effects of a sub-agent that has not ended are effects of the session, too.
func TestEffects_OfASubAgentThatHasNotEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := filepath.Join(t.TempDir(), "log")
	inner := turnOf(undoing(t, log, "z-1", "inner", ""))
	begin(t, r.Journal, "child-z", "z", inner[:len(inner)-2]...)
	agent := loop.CallFields{CallID: "child-z", ToolCallID: "z-0", Name: wire.AgentTool}
	handle := loop.Event{Type: loop.EventToolResult, Turn: 1, Step: 1, CallFields: agent, Status: "ok", HandleFields: loop.HandleFields{Job: "job_1_1_0"}}
	events := turnOf([]loop.Event{{Type: loop.EventToolCall, Turn: 1, Step: 1, CallFields: agent}, handle}, undoing(t, log, "z-2", "outer", ""))
	begin(t, r.Journal, "z", "", append(events, loop.Event{Type: loop.EventTurnStarted, Turn: 2}, loop.Event{Type: loop.EventTurnEnded, Turn: 2, Status: "answered"})...)
	for at, want := range map[At][]protocol.CallID{{Turn: 1}: {"z-1"}, {Call: "z-2"}: {"z-1"}} {
		effects := mustEffects(t, r.Journal, "z", at)
		var ids []protocol.CallID
		for _, e := range effects {
			ids = append(ids, e.CallID)
		}
		require.Equal(t, want, ids)
		require.NoError(t, Revert(t.Context(), r.Fleet, "z", "", effects))
	}
	content, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "inner\n", string(content))
}

// The calls of sub-agents count. What the model reads of reverts and of resolved calls is a part of
// the conversation.
func TestEffects_OfSubAgentsAndOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := filepath.Join(t.TempDir(), "log")
	begin(t, r.Journal, "child-1", "s", turnOf(undoing(t, log, "y-1", "inner", ""))...)
	unknown := loop.CallFields{CallID: "y-3", ToolCallID: "y-3", Name: "pay"}
	agent := loop.CallFields{CallID: "child-1", ToolCallID: "y-2", Name: wire.AgentTool}
	begin(t, r.Journal, "s", "", turnOf(
		undoing(t, log, "y-0", "first", ""),
		[]loop.Event{{Type: loop.EventToolCall, Turn: 1, Step: 1, CallFields: agent}, {Type: loop.EventToolResult, Turn: 1, Step: 1, CallFields: agent, Status: "ok"}},
		[]loop.Event{
			{Type: loop.EventToolCall, Turn: 1, Step: 1, CallFields: unknown},
			{Type: loop.EventToolResult, Turn: 1, Step: 1, CallFields: unknown, Status: "outcome_unknown"},
		},
	)...)
	ids := func() (ids []protocol.CallID) {
		effects := mustEffects(t, r.Journal, "s", At{Call: "y-0"})
		for _, e := range effects {
			ids = append(ids, e.CallID)
		}
		return ids
	}
	require.Equal(t, []protocol.CallID{"y-3", "y-1"}, ids())
	info, err := r.reader(t).Show(t.Context(), "s")
	require.NoError(t, err)
	require.Equal(t, []report.Unknown{{CallID: "y-3", Tool: "pay"}}, info.Unknown)

	require.ErrorIs(t, Resolve(t.Context(), r.Fleet, "s", "", "y-0", true, "ada"), codes.ErrNotFound)
	require.NoError(t, Resolve(t.Context(), r.Fleet, "s", "", "y-3", false, "ada"))
	require.ErrorIs(t, Resolve(t.Context(), r.Fleet, "s", "", "y-3", true, "ada"), codes.ErrNotFound, "it is resolved")
	require.Equal(t, []protocol.CallID{"y-1"}, ids(), "what did not happen is no effect")
	info, err = r.reader(t).Show(t.Context(), "s")
	require.NoError(t, err)
	require.Empty(t, info.Unknown)
	effects := mustEffects(t, r.Journal, "s", At{Call: "y-0"})
	require.NoError(t, Revert(t.Context(), r.Fleet, "s", "", effects))

	history := mustLoad(t, r.Journal, "s")
	var said []string
	for _, e := range history.Events[len(history.Events)-3:] {
		said = append(said, e.Text)
	}
	require.Contains(t, strings.Join(said, "\n"), "it did not happen")
	require.Contains(t, strings.Join(said, "\n"), "was to undo a call of order, and ended as ok")
	none := mustEffects(t, r.Journal, "s", At{})
	require.Empty(t, none)
}

// Two persons revert, or resolve, what both have read before: it is done once, and the journal says
// that once.
func TestRevert_OfEffectsReadBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := filepath.Join(t.TempDir(), "log")
	begin(t, r.Journal, "s", "", turnOf(undoing(t, log, "z-1", "one", ""), undoing(t, log, "z-2", "two", ""), undoing(t, log, "z-3", "three", ""))...)
	var both [2][]Effect
	for i := range both {
		both[i] = mustEffects(t, r.Journal, "s", At{Call: "z-1"})
	}
	for _, effects := range both {
		require.NoError(t, Revert(t.Context(), r.Fleet, "s", "", effects))
	}
	content, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "three\ntwo\n", string(content))
	history := mustLoad(t, r.Journal, "s")
	counts := map[loop.EventType]int{}
	for _, e := range history.Events {
		counts[e.Type]++
	}
	require.Equal(t, []int{2, 2}, []int{counts[loop.EventRevertStarted], counts[loop.EventRevertEnded]})
}

func TestResolve_TwoAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	unknown := loop.CallFields{CallID: "u-1", ToolCallID: "u-1", Name: "pay"}
	begin(t, r.Journal, "s", "", turnOf(
		[]loop.Event{{Type: loop.EventToolCall, Turn: 1, Step: 1, CallFields: unknown}, {Type: loop.EventToolResult, Turn: 1, Step: 1, CallFields: unknown, Status: "outcome_unknown"}},
	)...)
	first := func() { require.NoError(t, resolve(t.Context(), r.Journal, "s", "u-1", true, "ada")) }
	require.ErrorIs(t, resolve(t.Context(), &meeting{Journal: r.Journal, then: first}, "s", "u-1", false, "bob"), loop.ErrJournalConflict)
	require.ErrorIs(t, resolve(t.Context(), r.Journal, "s", "u-1", false, "bob"), codes.ErrNotFound)
}

// meeting is a journal that another process extends as soon as this one has read it.
type meeting struct {
	loop.Journal

	then func()
}

func (m *meeting) Load(ctx context.Context, id protocol.SessionID) (loop.History, error) {
	history, err := m.Journal.Load(ctx, id)
	if m.then != nil {
		m.then()
		m.then = nil
	}
	return history, err
}

// What became of the attempts to undo an effect is what the journal says, and a person.
func TestEffects_OfAttempts(t *testing.T) {
	t.Parallel()
	attempt := func(id, status string) []loop.Event {
		at, of := loop.CallFields{CallID: protocol.CallID(id), Name: "undo"}, loop.NoteFields{Reverts: "w-1"}
		events := []loop.Event{{Type: loop.EventRevertStarted, Turn: 1, CallFields: at, NoteFields: of}}
		if status != "" {
			events = append(events, loop.Event{Type: loop.EventRevertEnded, Turn: 1, CallFields: at, NoteFields: of, Status: status})
		}
		return events
	}
	resolved := func(id, status string) []loop.Event {
		return []loop.Event{{Type: loop.EventCallResolved, Turn: 1, CallFields: loop.CallFields{CallID: protocol.CallID(id)}, Status: status}}
	}
	for name, test := range map[string]struct {
		events []loop.Event
		want   Effect
	}{
		"none":                  {nil, Effect{}},
		"started":               {attempt("r-1", ""), Effect{}},
		"ok":                    {attempt("r-1", "ok"), Effect{Effect: report.Effect{Reverted: true}}},
		"failed":                {attempt("r-1", "failed"), Effect{attempts: 1}},
		"failed, then started":  {append(attempt("r-1", "failed"), attempt("r-2", "")...), Effect{attempts: 1}},
		"of unknown outcome":    {attempt("r-1", "outcome_unknown"), Effect{unknown: "r-1"}},
		"that did happen":       {append(attempt("r-1", "outcome_unknown"), resolved("r-1", resolvedHappened)...), Effect{Effect: report.Effect{Reverted: true}}},
		"that did not happen":   {append(attempt("r-1", "outcome_unknown"), resolved("r-1", resolvedDidNot)...), Effect{attempts: 1}},
		"unknown, then failed":  {append(attempt("r-1", "outcome_unknown"), attempt("r-2", "failed")...), Effect{attempts: 1}},
		"of another one's call": {[]loop.Event{{Type: loop.EventRevertEnded, Turn: 1, NoteFields: loop.NoteFields{Reverts: "other"}, Status: "ok"}}, Effect{}},
	} {
		journal := &looptest.Journal{}
		mustAppend(t, journal, "s", 0, append(turnOf(undoing(t, "log", "w-0", "", ""), undoing(t, "log", "w-1", "", "")), test.events...)...)
		effects := mustEffects(t, journal, "s", At{Call: "w-0"})
		require.Len(t, effects, 1, name)
		got := effects[0]
		require.Equal(t, test.want, Effect{Effect: report.Effect{Reverted: got.Reverted}, attempts: got.attempts, unknown: got.unknown}, name)
		if got.unknown != "" {
			err := (&remover{}).revert(t.Context(), &effects[0])
			require.ErrorContains(t, err, "the outcome of an earlier revert, call r-1, is unknown")
		}
	}
}

// A job counts when it ended, sub-agents of sub-agents count, and a point that the conversation
// does not have has nothing behind it.
func TestEffects_OfJobsAndOfDeepSubAgents(t *testing.T) {
	t.Parallel()
	journal := &looptest.Journal{}
	agent := func(id string) []loop.Event {
		at := loop.CallFields{CallID: protocol.CallID(id), ToolCallID: id, Name: wire.AgentTool}
		return []loop.Event{{Type: loop.EventToolCall, Turn: 1, Step: 1, CallFields: at}, {Type: loop.EventToolResult, Turn: 1, Step: 1, CallFields: at, Status: "ok"}}
	}
	job := undoing(t, "log", "v-2", "", "")
	ended := job[1]
	ended.Type = loop.EventJobEnded
	job[1].Job = "job"
	for id, events := range map[protocol.SessionID][]loop.Event{
		"s": append(turnOf(undoing(t, "log", "v-1", "", ""), job, agent("v-3")), ended), "v-3": turnOf(agent("v-4")), "v-4": turnOf(undoing(t, "log", "v-5", "", "")),
	} {
		begin(t, journal, id, map[protocol.SessionID]protocol.SessionID{"v-3": "s", "v-4": "v-3"}[id], events...)
	}
	var ids []protocol.CallID
	effects := mustEffects(t, journal, "s", At{Call: "v-1"})
	for _, e := range effects {
		ids = append(ids, e.CallID)
	}
	require.Equal(t, []protocol.CallID{"v-2", "v-5"}, ids)
	for _, at := range []At{{Call: "other"}, {Turn: 2}} {
		effects = mustEffects(t, journal, "s", at)
		require.Empty(t, effects)
	}
	effects = mustEffects(t, journal, "s", At{Turn: 1})
	require.Len(t, effects, 1, "the end of a sub-agent's turn is not that of the session's")
}

// A turn that begins while an effect is being undone first completes that: its model reads what
// became of it, and what it does then is not undone.
func TestRevert_ThatIsInterruptedBeforeATurn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for left := 1; left <= 2; left++ { // its beginning, which is stored, and its end, which is not
		log, id := filepath.Join(t.TempDir(), "log"), protocol.NewSessionID()
		begin(t, r.Journal, id, "", turnOf(undoing(t, log, string(id)+"-a", "one", ""), undoing(t, log, string(id)+"-b", "two", ""))...)
		effects := mustEffects(t, r.Journal, id, At{Call: protocol.CallID(id) + "-a"})
		effects = append([]Effect{{}}, effects...) // which nothing undoes
		require.ErrorIs(t, revert(t.Context(), r.Fleet, &brittle{Journal: r.Journal, left: left, stores: left == 1}, id, "", effects), errCrash)
		table, err := tools.NewTable()
		require.NoError(t, err)
		model := &listens{}
		runner, err := loop.New(model, r.Dispatcher, r.Journal, table, &loop.Options{ModelName: "m"})
		require.NoError(t, err)
		_, err = runner.Run(t.Context(), id, loop.Input{Text: "what is new?"})
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(model.messages, func(m loop.Message) bool {
			return strings.Contains(m.Text, `[A person rewound the session: undo {"id":1} was to undo a call of order, and ended as ok.]`)
		}), model.messages)
		for range 2 {
			require.NoError(t, Revert(t.Context(), r.Fleet, id, "", effects), "it is undone")
			content, err := os.ReadFile(log)
			require.NoError(t, err)
			require.Equal(t, "two\n", string(content))
		}
	}
	require.ErrorIs(t, appendEvent(t.Context(), r.Journal, loop.History{}, "none", loop.Event{}), ErrNone)
}
