package session

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// forked makes a session with files and a turn, and a fork that has changed them and answered.
func forked(t *testing.T, r *rig, files Files) (into, fork protocol.SessionID) {
	t.Helper()
	into, fork = protocol.NewSessionID(), protocol.NewSessionID()
	require.Nil(t, r.call(t.Context(), t, into, protocol.CommandRun{Command: "seq 9 > both"}).Error)
	_, err := r.Journal.Append(t.Context(), into, 0, conversation()[:7]...)
	require.NoError(t, err)
	_, err = files.Fork(t.Context(), r.Journal, into, At{}, fork)
	require.NoError(t, err)
	require.Nil(t, r.call(t.Context(), t, fork, protocol.CommandRun{Command: "sed -i s/1/one/ both; echo new > new"}).Error)
	history, err := r.Journal.Load(t.Context(), fork)
	require.NoError(t, err)
	_, err = r.Journal.Append(t.Context(), fork, history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 2}, loop.Event{Type: loop.EventTurnEnded, Turn: 2, Text: "I am done.", Status: "answered"})
	require.NoError(t, err)
	return into, fork
}

// A merge that is interrupted at any of its writes, and done again, leaves one message, which names
// what was merged.
func TestMerge_ThatIsInterruptedIsCompleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	files, err := OpenFiles(t.Context(), r.Fleet, "")
	require.NoError(t, err)
	for left := 1; left <= 2; left++ { // its beginning, its end
		for _, stores := range []bool{false, true} {
			into, fork := forked(t, r, files)
			_, err = merge(t.Context(), r.Fleet, &brittle{Journal: r.Journal, left: left, stores: stores}, fork, into, "")
			require.ErrorIs(t, err, errCrash)
			merged, err := Merge(t.Context(), r.Fleet, fork, into, "")
			require.NoError(t, err)
			require.Equal(t, left == 2 && stores, merged.Written == nil, "it was complete")
			history, err := r.Journal.Load(t.Context(), into)
			require.NoError(t, err)
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
	files, err := OpenFiles(t.Context(), r.Fleet, "")
	require.NoError(t, err)
	for left := 1; left <= 2; left++ {
		into, fork := forked(t, r, files)
		_, err = merge(t.Context(), r.Fleet, &brittle{Journal: r.Journal, left: left, stores: left == 1}, fork, into, "")
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
	files, err := OpenFiles(t.Context(), r.Fleet, "")
	require.NoError(t, err)
	into, fork := protocol.NewSessionID(), protocol.NewSessionID()
	_, err = r.Journal.Append(t.Context(), into, 0, conversation()[:7]...)
	require.NoError(t, err)
	_, err = Merge(t.Context(), r.Fleet, fork, into, "")
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
	files, err := OpenFiles(t.Context(), r.Fleet, "")
	require.NoError(t, err)
	into, first, second := protocol.NewSessionID(), protocol.NewSessionID(), protocol.NewSessionID()
	change := func(id protocol.SessionID, command string) {
		t.Helper()
		require.Nil(t, r.call(t.Context(), t, id, protocol.CommandRun{Command: command}).Error)
	}
	change(into, "echo old > old")
	said := conversation()[:7]
	said[6].Text = "answer of the origin"
	_, err = r.Journal.Append(t.Context(), into, 0, said...)
	require.NoError(t, err)
	for _, fork := range []protocol.SessionID{first, second} {
		_, err = files.Fork(t.Context(), r.Journal, into, At{}, fork)
		require.NoError(t, err)
	}
	messages := 0
	merge := func(fork protocol.SessionID, answer string, written ...string) {
		t.Helper()
		merged, err := Merge(t.Context(), r.Fleet, fork, into, "")
		require.NoError(t, err)
		require.Equal(t, written, merged.Written)
		require.Empty(t, merged.Conflicts)
		require.Equal(t, answer, merged.Answer, "none of the origin's")
		history, err := r.Journal.Load(t.Context(), into)
		require.NoError(t, err)
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
	history, err := r.Journal.Load(t.Context(), first)
	require.NoError(t, err)
	_, err = r.Journal.Append(t.Context(), first, history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 2}, loop.Event{Type: loop.EventTurnEnded, Turn: 2, Text: "Done.", Status: "answered"})
	require.NoError(t, err)
	merge(first, "Done.")
}

// Two forks of one session can be merged into each other. A session that was removed, or never was,
// gets nothing, and neither does one from itself.
func TestMerge_OfSiblingsAndIntoWhatIsThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	files, err := OpenFiles(t.Context(), r.Fleet, "")
	require.NoError(t, err)
	origin, stranger := protocol.NewSessionID(), protocol.NewSessionID()
	for _, id := range []protocol.SessionID{origin, stranger} {
		require.Nil(t, r.call(t.Context(), t, id, protocol.CommandRun{Command: "seq 9 > both"}).Error)
		_, err = r.Journal.Append(t.Context(), id, 0, conversation()[:7]...)
		require.NoError(t, err)
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
		_, err = Merge(t.Context(), r.Fleet, from, into, "")
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
	_, err = Remove(t.Context(), r.Fleet, origin, Options{})
	require.NoError(t, err)
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
	files, err := OpenFiles(t.Context(), r.Fleet, "")
	require.NoError(t, err)
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
	_, err = files.Read(t.Context(), into, "new", "")
	require.ErrorIs(t, err, ErrNoFile, "it was removed after it was merged")

	_, err = Restore(t.Context(), r.Fleet, into, "", begin)
	require.NoError(t, err)
	written("new", "newer")

	_, err = Remove(t.Context(), r.Fleet, fork, Options{Used: true})
	require.NoError(t, err)
	require.NoError(t, files.fork(t.Context(), r.Journal, into, At{}, sandboxLane(fork)))
	change(fork, "echo last > new")
	written("new")
}
