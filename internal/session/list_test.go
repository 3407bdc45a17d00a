package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// journaled appends a session's life: turns that ended so, and one that is open for "".
func journaled(t *testing.T, f *fleet.Fleet, id protocol.SessionID, at time.Time, outcomes ...loop.Outcome) {
	t.Helper()
	events := []loop.Event{{Type: loop.EventSessionStarted, Time: at, StartFields: loop.StartFields{Model: "script", Workspace: "/home/ada/x"}}}
	for i, outcome := range outcomes {
		turn := i + 1
		events = append(events, loop.Event{Type: loop.EventTurnStarted, Time: at, Turn: turn, StartFields: loop.StartFields{Input: fmt.Sprintf("do %d", turn)}})
		for step := range turn {
			events = append(events, loop.Event{
				Type: loop.EventModelReply, Time: at, Turn: turn, Step: step + 1,
				ReplyFields: loop.ReplyFields{
					Usage:     &protocol.Usage{InputTokens: 10, OutputTokens: 1},
					ToolCalls: []loop.ToolCall{{ID: fmt.Sprint(turn, step), Name: "noop"}, {ID: fmt.Sprint(turn, step, "b"), Name: "noop"}},
				},
			})
		}
		if outcome != "" {
			events = append(events, loop.Event{Type: loop.EventTurnEnded, Time: at, Turn: turn, Status: string(outcome)})
		}
	}
	mustAppend(t, f.Journal, id, 0, events...)
}

func (r *rig) reader(t *testing.T) *Reader {
	t.Helper()
	reader, err := NewReader(t.Context(), r.Fleet)
	require.NoError(t, err)
	return reader
}

func TestReader_ShowsWhatThereIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.lived(t, "lived")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	journaled(t, r.Fleet, "s", at, loop.OutcomeAnswered, loop.OutcomeFailed, "")
	reader := r.reader(t)
	info, err := reader.Show(t.Context(), "s")
	require.NoError(t, err)
	require.Positive(t, info.JournalBytes)
	info.JournalBytes = 0
	require.Equal(t, &report.Session{
		SessionID: "s", State: report.StateOpen, Prompt: "do 1", Model: "script", Workspace: "/home/ada/x",
		CreatedAt: &at, UpdatedAt: at, Turns: 3, Steps: 6, ToolCalls: 12, Usage: protocol.Usage{InputTokens: 60, OutputTokens: 6}, Messages: 1,
		History: []report.Turn{
			{Turn: 1, State: "answered", StartedAt: at, Steps: 1, ToolCalls: 2, Input: "do 1"},
			{Turn: 2, State: "failed", StartedAt: at, Steps: 2, ToolCalls: 4, Input: "do 2"},
			{Turn: 3, State: report.StateOpen, StartedAt: at, Steps: 3, ToolCalls: 6, Input: "do 3"},
		},
	}, info)
	info, err = reader.Show(t.Context(), "lived")
	require.NoError(t, err)
	require.EqualValues(t, 4, info.Results)
	require.Equal(t, 5, info.Bodies, "an output with its two streams, a file, and the result that is a link to it")
	require.GreaterOrEqual(t, info.BodyBytes, uint64(600_000))
	_, err = reader.Show(t.Context(), "nobody")
	require.ErrorIs(t, err, ErrNone)
	_, err = NewReader(t.Context(), &fleet.Fleet{Name: "other", JS: r.JS})
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
}

// impatient is a stream for one who has time for some readings only.
type impatient struct {
	jetstream.Stream

	left atomic.Int64
}

func (i *impatient) GetMsg(ctx context.Context, sequence uint64, options ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	if i.left.Add(-1) < 0 {
		return nil, context.DeadlineExceeded
	}
	return i.Stream.GetMsg(ctx, sequence, options...)
}

// TestKnown_OfALongSession: a session that takes longer to read than a request has is described
// after some requests, each of which continues where the one before ended.
func TestKnown_OfALongSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	last := mustAppend(t, r.Journal, "long", 0, loop.Event{Type: loop.EventSessionStarted})
	const turns = 20
	for turn := range turns {
		last = mustAppend(t, r.Journal, "long", last, loop.Event{Type: loop.EventTurnStarted, Turn: turn + 1})
	}
	reader := r.reader(t)
	whole := reader.events
	for try := 0; ; try++ {
		require.Less(t, try, 10)
		bounded := &impatient{Stream: whole}
		bounded.left.Store(5)
		reader.events = bounded
		info, err := reader.Show(t.Context(), "long")
		if err == nil {
			require.Equal(t, turns, info.Turns)
			break
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
}

// TestKnown_IsSharedUntilThereIsMore: what is known of a session is not copied while its journal
// stays, and a caller that changes what it gets changes it for no other one.
func TestKnown_IsSharedUntilThereIsMore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	last := mustAppend(t, r.Journal, "s", 0, loop.Event{Type: loop.EventSessionStarted},
		loop.Event{Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{Input: "one"}})
	reader := r.reader(t)
	show := func() *report.Session {
		info, err := reader.Show(t.Context(), "s")
		require.NoError(t, err)
		return info
	}
	show().History[0].Input = "changed"
	first, is := reader.Known.Get("s")
	require.True(t, is)
	require.Equal(t, "one", show().History[0].Input)
	list, _, err := reader.List(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, 1, list[0].Turns)
	again, _ := reader.Known.Get("s")
	require.Same(t, first, again)

	mustAppend(t, r.Journal, "s", last, loop.Event{Type: loop.EventTurnEnded, Turn: 1}, loop.Event{Type: loop.EventTurnStarted, Turn: 2})
	require.Equal(t, 2, show().Turns)
	more, _ := reader.Known.Get("s")
	require.NotSame(t, first, more)
	require.Equal(t, 1, first.Turns, "others may read it still")
	r.mustRemove(t, "s", Options{Force: true})
	_, err = reader.Show(t.Context(), "s")
	require.ErrorIs(t, err, ErrNone)
	_, is = reader.Known.Get("s")
	require.False(t, is)
}

func TestReader_ListsTheLastChangedFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	reader := r.reader(t)
	list, leftOut, err := reader.List(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, list)
	require.Zero(t, leftOut)
	for i, id := range []protocol.SessionID{"c", "a", "b"} {
		journaled(t, r.Fleet, id, time.Unix(int64(i), 0).UTC(), loop.OutcomeAnswered)
	}
	list, leftOut, err = reader.List(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, 1, leftOut)
	require.Equal(t, []protocol.SessionID{"b", "a"}, []protocol.SessionID{list[0].SessionID, list[1].SessionID})
	require.Equal(t, "answered", list[0].State)
	require.Equal(t, 1, list[0].Steps)
	require.Empty(t, list[0].History)
}

// When sessions changed is asked for many of them at once.
func TestReader_ListsManySessions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	at := time.Unix(1, 0).UTC()
	for i := range 1500 {
		for _, event := range []loop.EventType{loop.EventSessionStarted, loop.EventTurnStarted} { // one of a single message is read
			body, err := json.Marshal([]loop.Event{{Type: event, Time: at}})
			require.NoError(t, err)
			_, err = r.JS.Publish(t.Context(), wire.EventSubject(r.Name, protocol.SessionID(fmt.Sprintf("s%d", 5000-i))), body)
			require.NoError(t, err)
		}
	}
	for i := range 3 {
		r.mustRemove(t, protocol.SessionID(fmt.Sprintf("removed-%d", i)), Options{})
	}
	reader := r.reader(t)
	messages := func() uint64 { s := r.NC.Stats(); return s.InMsgs + s.OutMsgs }
	before := messages()
	list, leftOut, err := reader.List(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, 1498, leftOut)
	require.Equal(t, []protocol.SessionID{"s3501", "s3502"}, []protocol.SessionID{list[0].SessionID, list[1].SessionID})
	require.Less(t, messages()-before, uint64(150), "not one for each session of the fleet")

	for i := range 60 {
		last := uint64(0)
		for n := range 4 {
			last = mustAppend(t, r.Journal, protocol.SessionID(fmt.Sprintf("t%d", i)), last, loop.Event{Type: loop.EventTurnStarted, Time: at, Turn: n + 1})
		}
	}
	before = messages()
	list, _, err = reader.List(t.Context(), 50)
	require.NoError(t, err)
	require.Len(t, list, 50)
	for i, info := range list {
		require.Equal(t, protocol.SessionID(fmt.Sprintf("t%d", 59-i)), info.SessionID)
		require.Equal(t, 4, info.Turns)
		require.EqualValues(t, 4, info.Messages)
	}
	require.Less(t, messages()-before, uint64(50*7+16*50+100), "its events and two more of each session, and the tail")
}

// Calls that wait are found without a message for each session.
func TestReader_ApprovalsOfManySessions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 300 {
		asked := loop.Event{Type: loop.EventApprovalAsked, Time: time.Unix(int64(i), 0).UTC()}
		asked.CallID = protocol.CallID(fmt.Sprint("c", i))
		body, err := json.Marshal([]loop.Event{{Type: loop.EventTurnStarted, Turn: 1}, asked})
		require.NoError(t, err)
		_, err = r.JS.Publish(t.Context(), wire.EventSubject(r.Name, protocol.SessionID(fmt.Sprint("s", i))), body)
		require.NoError(t, err)
	}
	reader, before := r.reader(t), r.NC.Stats()
	all, err := reader.Approvals(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 300)
	require.Equal(t, protocol.CallID("c7"), all[7].CallID, "the oldest first")
	require.Less(t, r.NC.Stats().OutMsgs-before.OutMsgs, uint64(50))
}

// What a job asks is listed until it is answered or the turn ends, whatever else the turn does.
func TestReader_ApprovalsOfAJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	turn := loop.Event{Type: loop.EventTurnStarted, Turn: 1}
	asked := loop.Event{
		Type: loop.EventQuestionAsked, Turn: 1, CallFields: loop.CallFields{CallID: "job"},
		HandleFields: loop.HandleFields{Question: &protocol.Question{ID: "q", Message: "which?"}},
	}
	last := mustAppend(t, r.Journal, "s", 0, turn, asked)
	reader := r.reader(t)
	for _, kind := range []loop.EventType{loop.EventModelReply, loop.EventToolCall, loop.EventToolResult, loop.EventInputAdded, loop.EventCompacted} {
		last = mustAppend(t, r.Journal, "s", last, loop.Event{Type: kind, Turn: 1, CallFields: loop.CallFields{CallID: "other"}})
		all, err := reader.Approvals(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1, "behind %s", kind)
		require.Equal(t, protocol.CallID("job"), all[0].CallID)
	}
	mustAppend(t, r.Journal, "s", last, loop.Event{Type: loop.EventTurnEnded, Turn: 1, Status: "answered"})
	all, err := reader.Approvals(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
}

// A journal that cannot be read hides no other session, and can be removed.
func TestReader_AJournalThatCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	journaled(t, r.Fleet, "broken", time.Unix(1, 0).UTC(), loop.OutcomeAnswered)
	journaled(t, r.Fleet, "s", time.Unix(2, 0).UTC(), loop.OutcomeAnswered)
	_, err := r.JS.Publish(t.Context(), wire.EventSubject(r.Name, "broken"), []byte(`{"from":"tomorrow"}`))
	require.NoError(t, err)
	list, _, err := r.reader(t).List(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, report.StateInvalid, list[0].State)
	require.Equal(t, "answered", list[1].State)
	_, err = Remove(t.Context(), r.Fleet, "broken", Options{})
	require.ErrorIs(t, err, ErrBusy)
	r.mustRemove(t, "broken", Options{Force: true})
	require.Empty(t, r.left(t, "broken"))
}

// A workspace that only calls without a model used is listed with its name, its owner and its age,
// and removed as a session is.
func TestReader_ListsWorkspacesWithoutAJournal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	reader := r.reader(t)
	reader.Workspaces = true
	for _, id := range []protocol.SessionID{"older", "newer"} {
		require.Nil(t, r.call(t.Context(), t, id, protocol.CommandRun{Command: "echo x >f"}).Error)
	}
	r.lived(t, "journaled")
	list, leftOut, err := reader.List(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, leftOut)
	require.Len(t, list, 3)
	require.Equal(t, protocol.SessionID("journaled"), list[0].SessionID)
	for i, id := range []protocol.SessionID{"newer", "older"} {
		got := list[i+1]
		require.WithinDuration(t, time.Now(), got.UpdatedAt, time.Hour)
		got.UpdatedAt = time.Time{}
		require.Equal(t, report.Session{SessionID: id, State: report.StateWorkspaceOnly, Tenant: wire.DefaultTenant, Results: 1}, got)
	}
	list, leftOut, err = reader.List(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, 1, leftOut)
	require.Equal(t, protocol.SessionID("newer"), list[1].SessionID)
	info, err := reader.Show(t.Context(), "older")
	require.NoError(t, err)
	require.Equal(t, report.StateWorkspaceOnly, info.State)

	r.mustRemove(t, "older", Options{})
	require.Empty(t, r.left(t, "older"))
	_, err = reader.Show(t.Context(), "older")
	require.ErrorIs(t, err, ErrNone)
}

// A sandbox that only clients used is removed once it is old, without a worker. What a model or a
// person worked in, and what is in use, stays.
func TestSweeper_RemovesWhatOnlyClientsUsed(t *testing.T) {
	t.Parallel()
	r := rigOf(t, worker.Options{Options: lane.Options{Linger: -1}})
	r.lived(t, "worked")
	before := r.left(t, "worked")
	made := func(id protocol.SessionID, command protocol.CommandRun) {
		require.Nil(t, r.call(t.Context(), t, id, command).Error)
	}
	made("client", protocol.CommandRun{Command: "head -c 300000 /dev/zero | tr '\\0' x | tee long"})
	require.NotNil(t, r.call(t.Context(), t, "client", protocol.FilesRead{Path: "long"}).Kept)
	made("held", protocol.CommandRun{Command: "sleep 1000", Background: true})
	made("agent", protocol.CommandRun{Command: "echo x >f"})
	made("monthly", protocol.CommandRun{Command: "echo x >f"})
	made("model", protocol.CommandRun{Command: "echo x >f"})
	journaled(t, r.Fleet, "model", time.Now(), loop.OutcomeAnswered)
	schedules, err := schedule.Open(t.Context(), r.JS, r.Name)
	require.NoError(t, err)
	_, err = schedules.Add(t.Context(), schedule.Schedule{Name: "monthly", Cron: "@monthly", KeepSession: true, Call: protocol.Call{
		ID: wire.RandomCallID(), IssuedAt: time.Now(), SessionID: "monthly", Pool: protocol.DefaultPool, Tool: "test", Payload: protocol.CommandRun{Command: "cat f"},
		Resources: []protocol.Use{{Key: protocol.SandboxKey("monthly"), Access: protocol.Exclusive}}, Delivery: protocol.Idempotent,
	}})
	require.NoError(t, err)
	mustAppend(t, r.Journal, "agent", 0,
		loop.Event{Type: loop.EventTurnStarted, Turn: 1, NoteFields: loop.NoteFields{Interface: "mcp"}},
		loop.Event{Type: loop.EventTurnEnded, Turn: 1})
	store, err := workspace.Open(t.Context(), r.NC, r.Name, "")
	require.NoError(t, err)
	sweeper := Sweeper{Fleet: r.Fleet, Stores: map[*fleet.Fleet]*workspace.Store{r.Fleet: store}, Age: time.Hour}
	n, err := sweeper.Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, n, "nothing is old")

	sweeper.Age = 0
	removed := 0
	require.Eventually(t, func() bool { // a worker holds a lane for a moment
		n, err := sweeper.Sweep(t.Context())
		removed += n
		return err == nil && removed == 2
	}, time.Minute, 50*time.Millisecond)
	reader := r.reader(t)
	reader.Workspaces = true
	list, _, err := reader.List(t.Context(), 10)
	require.NoError(t, err)
	var left []protocol.SessionID
	for _, s := range list {
		left = append(left, s.SessionID)
	}
	require.ElementsMatch(t, []protocol.SessionID{"worked", "held", "monthly", "model"}, left)
	require.ElementsMatch(t, before, r.left(t, "worked"))
	for _, left := range r.left(t, "client") {
		require.Regexp(t, `^tf\.result\.|^result/|/sandboxes/client$`, left, "results have an age of their own, and so have copies on a worker's disk")
	}

	require.NoError(t, r.Journal.CheckCall(t.Context(), "agent"), "a call may use the name again")
	made("client", protocol.CommandRun{Command: "test -z \"$(ls -A)\""}) // what uses it next begins with nothing
}

// A session does not go back while it works, and says so.
func TestRestore_IsRefusedWhileATurnIsOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := rigOf(t, worker.Options{Settings: sandboxes.Settings{Workspace: func(string) (string, bool) { return dir, true }}})
	journaled(t, r.Fleet, "open", time.Now(), loop.OutcomeAnswered, "")
	_, err := Restore(t.Context(), r.Fleet, "open", "", "c-1")
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, "turn 2 is open")
	require.ErrorContains(t, err, "session cancel")
	require.ErrorIs(t, Revert(t.Context(), r.Fleet, "open", "", nil), ErrBusy)
	require.ErrorIs(t, Resolve(t.Context(), r.Fleet, "open", "", "c-1", true, "ada"), ErrBusy)

	journaled(t, r.Fleet, "ended", time.Now(), loop.OutcomeAnswered)
	for _, both := range [][2]protocol.SessionID{{"open", "ended"}, {"ended", "open"}} {
		_, err = Merge(t.Context(), r.Fleet, both[0], both[1], "")
		require.ErrorIs(t, err, ErrBusy)
	}
	_, err = Restore(t.Context(), r.Fleet, "ended", "", "c-1")
	require.ErrorContains(t, err, "is used in place: it has no checkpoints to go back to")
	require.Equal(t, protocol.CodeWorkspaceUnavailable, codeOf(err))
}

// A turn that begins between the look at a session and what a person does to it refuses that: no
// call was sent, and no event is in its way. What was begun before is completed before the turn
// begins.
func TestRestore_AndATurnAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.Nil(t, r.call(t.Context(), t, "s", protocol.FilesWrite{Path: "a", Content: []byte("old")}).Error)
	begin := r.call(t.Context(), t, "s", protocol.FilesWrite{Path: "b", Content: []byte("old")})
	require.Nil(t, r.call(t.Context(), t, "s", protocol.FilesWrite{Path: "a", Content: []byte("new")}).Error)
	mustAppend(t, r.Journal, "s", 0, conversation()[:7]...)
	look, err := idle(t.Context(), r.Fleet, r.Journal, "s", "", judge.Change)
	require.NoError(t, err)
	last := mustAppend(t, r.Journal, "s", look.history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 2})
	_, err = look.change(t.Context(), wire.RandomCallID(), loop.Event{}, wire.WorkspaceRestore{At: begin.CallID})
	require.ErrorIs(t, err, ErrBusy)
	effect := Effect{Effect: report.Effect{CallID: "c", Tool: "x", Revert: "y"}, session: "s"}
	effect.call = undoing(t, "log", "c", "one", "")[1].Effect.Revert
	require.ErrorIs(t, look.revert(t.Context(), &effect), ErrBusy)
	_, err = r.Journal.Append(t.Context(), "s", last, loop.Event{Type: loop.EventTurnEnded, Turn: 2, Status: "answered"})
	require.NoError(t, err, "nothing was added")

	files := mustOpenFiles(t, r, "")
	content := func() string {
		content, err := files.Read(t.Context(), "s", "a", "")
		require.NoError(t, err)
		return string(content)
	}
	require.Equal(t, "new", content())
	look, err = idle(t.Context(), r.Fleet, &brittle{Journal: r.Journal, left: 2}, "s", "", judge.Change)
	require.NoError(t, err)
	_, err = look.change(t.Context(), wire.RandomCallID(), loop.Event{}, wire.WorkspaceRestore{At: begin.CallID})
	require.ErrorIs(t, err, errCrash)
	table, err := tools.NewTable()
	require.NoError(t, err)
	runner, err := loop.New(answers{}, r.Dispatcher, r.Journal, table, &loop.Options{ModelName: "m"})
	require.NoError(t, err)
	_, err = runner.Run(t.Context(), "s", loop.Input{Text: "go on"})
	require.NoError(t, err)
	require.Equal(t, "old", content())
	history := mustLoad(t, r.Journal, "s")
	at := func(kind loop.EventType, turn int) int {
		return slices.IndexFunc(history.Events, func(e loop.Event) bool { return e.Type == kind && e.Turn == turn })
	}
	require.Greater(t, at(loop.EventTurnStarted, 3), at(loop.EventChangeEnded, 2))
	require.Greater(t, at(loop.EventChangeEnded, 2), at(loop.EventChangeStarted, 2))
}

// TestRestore_ATurnThatIsStoppedEndsNoChange of a person, for which it waits.
func TestRestore_ATurnThatIsStoppedEndsNoChange(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := rigOf(t, worker.Options{})
	begin := r.call(t.Context(), t, "s", protocol.FilesWrite{Path: "a", Content: []byte("old")})
	require.Nil(t, begin.Error)
	last := mustAppend(t, r.Journal, "s", 0, conversation()[:7]...)
	look, err := idle(t.Context(), r.Fleet, r.Journal, "s", "", judge.Change)
	require.NoError(t, err)
	call := look.callOf(wire.RandomCallID(), wire.WorkspaceRestore{At: begin.CallID})
	body, err := wire.EncodeCall(&call)
	require.NoError(t, err)
	_, err = r.Journal.Append(t.Context(), "s", last, loop.Event{
		Type: loop.EventChangeStarted, Turn: 1, CallFields: loop.CallFields{CallID: call.ID, Name: call.Tool}, NoteFields: loop.NoteFields{Call: body},
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := r.dispatch(t.Context(), "s", protocol.CommandRun{Command: "cd " + dir + "; touch runs; until [ -e ends ]; do sleep 0.05; done"})
		ended <- err
	}()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "runs")); return err == nil }, time.Minute, time.Millisecond)
	table, err := tools.NewTable()
	require.NoError(t, err)
	runner, err := loop.New(answers{}, r.Dispatcher, r.Journal, table, &loop.Options{ModelName: "m"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer stop()
		for ctx.Err() == nil {
			if found, _, err := r.Dispatcher.Find(ctx, "", protocol.CallRef{SessionID: "s", ID: call.ID}); found != nil || err != nil {
				return // it waits in the lane
			}
		}
	}()
	_, err = runner.Run(ctx, "s", loop.Input{Text: "go on"})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ends"), nil, 0o600))
	require.NoError(t, <-ended)
	results, err := loop.CompleteChanges(t.Context(), r.Journal, r.Dispatcher, "s")
	require.NoError(t, err)
	require.Len(t, results, 1)
	require.Equal(t, protocol.StatusOK, results[0].Status, "%v", results[0].Error)
}

func codeOf(err error) protocol.Code {
	fault, _ := errors.AsType[*protocol.Error](err)
	return fault.Code
}
