package environment

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/natsio/shared"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/test/processtest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == Serve { // this binary is the server of its tests
		if err := shared.Serve(context.Background(), os.Args[2], time.Minute, slog.Default(), nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// state makes a state directory.
func state(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_STATE_HOME", dir)
	t.Cleanup(func() { processtest.EndServer(dir) })
}

// openLocal opens the sessions of the state directory, or those of --data.
func openLocal(t *testing.T, data string) *Local {
	t.Helper()
	l, err := OpenLocal(t.Context(), &Connection{}, data, false, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// turn adds a session of one turn.
func turn(t *testing.T, l *Local, id protocol.SessionID, second int64, outcome loop.Outcome, parent *loop.Parent, more ...loop.Event) {
	t.Helper()
	at := time.Unix(second, 0).UTC()
	events := []loop.Event{{Type: loop.EventSessionStarted, Time: at}, {Type: loop.EventTurnStarted, Time: at, Turn: 1}}
	events[0].Parent = parent
	events = append(events, more...)
	if outcome != "" {
		events = append(events, loop.Event{Type: loop.EventTurnEnded, Time: at, Turn: 1, Status: string(outcome)})
	}
	_, err := l.fleet.Journal.Append(t.Context(), id, 0, events...)
	require.NoError(t, err)
	if parent == nil {
		require.NoError(t, l.Make(id))
	}
}

func TestLocal_SessionsAreThoseOfOneFleet(t *testing.T) { //nolint:paralleltest // it sets the state directory
	state(t)
	l := openLocal(t, "")
	list, leftOut, err := l.List(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, list)
	require.Zero(t, leftOut)
	turn(t, l, "old", 1, loop.OutcomeAnswered, nil)
	turn(t, l, "open", 2, "", nil)
	turn(t, l, "agent", 3, loop.OutcomeAnswered, &loop.Parent{SessionID: "new"})
	turn(t, l, "new", 4, loop.OutcomeAnswered, nil, loop.Event{
		Type: loop.EventToolCall, Time: time.Unix(4, 0).UTC(), Turn: 1, Step: 1, CallFields: loop.CallFields{Name: wire.AgentTool, CallID: "agent"},
	})
	require.NoError(t, l.Make("calls"))
	other := openLocal(t, "")
	list, leftOut, err = other.List(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, leftOut)
	states := map[protocol.SessionID]string{}
	for _, info := range list {
		states[info.SessionID] = info.State
	}
	require.Equal(t, map[protocol.SessionID]string{"old": "answered", "open": report.StateLost, "agent": "answered", "new": "answered", "calls": ""}, states)
	_, leftOut, err = other.List(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, 4, leftOut)
	last, err := other.Last(t.Context())
	require.NoError(t, err)
	require.Equal(t, protocol.SessionID("new"), last)

	for _, id := range []protocol.SessionID{"open", "agent"} {
		release, err := l.Hold(t.Context(), id)
		require.NoError(t, err)
		held := map[protocol.SessionID]protocol.SessionID{"open": "open", "agent": "new"}[id]
		_, err = other.Hold(t.Context(), held)
		require.ErrorIs(t, err, public.ErrSessionBusy)
		require.ErrorContains(t, err, fmt.Sprintf("process %d of this machine", os.Getpid()))
		_, err = other.Remove(t.Context(), held, true)
		require.ErrorIs(t, err, public.ErrSessionBusy)
		last, err := other.Last(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[protocol.SessionID]protocol.SessionID{"open": "new", "agent": "open"}[id], last)
		info, err := other.Show(t.Context(), "open")
		require.NoError(t, err)
		require.Equal(t, map[protocol.SessionID]string{"open": report.StateInUse, "agent": report.StateLost}[id], info.State)
		release()
	}

	_, err = other.Remove(t.Context(), "open", false)
	require.ErrorIs(t, err, public.ErrSessionBusy)
	removed, err := openLocal(t, "").Remove(t.Context(), "open", true)
	require.NoError(t, err)
	require.Equal(t, uint64(1), removed.Events)
	_, err = openLocal(t, "").Remove(t.Context(), "new", false)
	require.NoError(t, err)
	for _, id := range []protocol.SessionID{"new", "agent"} {
		_, err = other.Show(t.Context(), id)
		require.ErrorIs(t, err, public.ErrNotFound)
	}
	require.NoDirExists(t, other.location.data("new"))
	_, err = other.Remove(t.Context(), "new", false)
	require.ErrorIs(t, err, public.ErrNotFound)
	require.NoDirExists(t, other.location.data("new"))
	_, err = openLocal(t, "").Remove(t.Context(), "calls", false)
	require.NoError(t, err)
	require.NoDirExists(t, other.location.data("calls"))
}

// A fork has the calls of its origin, and an import those that its author made up: their ids are
// of sessions that stay.
func TestLocal_RemovesOnlySubAgentsOfTheSession(t *testing.T) { //nolint:paralleltest // see above
	state(t)
	l := openLocal(t, "")
	calls := func(id protocol.CallID) loop.Event {
		return loop.Event{Type: loop.EventToolCall, Time: time.Unix(1, 0).UTC(), Turn: 1, Step: 1, CallFields: loop.CallFields{Name: wire.AgentTool, CallID: id}}
	}
	turn(t, l, "origin", 1, loop.OutcomeAnswered, nil, calls("agent"))
	turn(t, l, "agent", 1, loop.OutcomeAnswered, &loop.Parent{SessionID: "origin", CallID: "agent"}, calls("inner"))
	turn(t, l, "inner", 1, loop.OutcomeAnswered, &loop.Parent{SessionID: "agent", CallID: "inner"})
	turn(t, l, "fork", 1, loop.OutcomeAnswered, nil, calls("agent"))
	turn(t, l, "import", 1, loop.OutcomeAnswered, nil, calls("origin"), calls("import"))
	for _, id := range []protocol.SessionID{"fork", "import"} {
		_, err := openLocal(t, "").Remove(t.Context(), id, false)
		require.NoError(t, err)
	}
	for _, id := range []protocol.SessionID{"origin", "agent", "inner"} {
		_, err := l.Show(t.Context(), id)
		require.NoError(t, err)
	}
	_, err := openLocal(t, "").Remove(t.Context(), "origin", false)
	require.NoError(t, err)
	for _, id := range []protocol.SessionID{"origin", "agent", "inner"} {
		_, err := l.Show(t.Context(), id)
		require.ErrorIs(t, err, public.ErrNotFound)
	}
}

// An export that cannot be imported leaves no session.
func TestLocal_ImportsAllOrNothing(t *testing.T) { //nolint:paralleltest // see above
	state(t)
	l := openLocal(t, "")
	_, err := l.Import(t.Context(), nil, "new")
	require.ErrorContains(t, err, "the export has no turn")
	require.NoDirExists(t, l.location.data("new"))
	events := []loop.Event{{Type: loop.EventSessionStarted, Time: time.Unix(1, 0).UTC()}, {Type: loop.EventTurnStarted, Time: time.Unix(1, 0).UTC(), Turn: 1}}
	_, err = l.Import(t.Context(), events, "new")
	require.NoError(t, err)
	_, err = l.Import(t.Context(), append(events, events[1]), "new")
	require.ErrorIs(t, err, public.ErrExists)
	require.DirExists(t, l.location.data("new"))
}

// Many sessions are listed at once: 300 ms on a machine that does nothing else.
func TestLocal_ListsAThousandSessions(t *testing.T) { //nolint:paralleltest // see above
	state(t)
	l := openLocal(t, "")
	for i := range 1000 {
		turn(t, l, protocol.SessionID(fmt.Sprint("s-", i)), int64(i), loop.OutcomeAnswered, nil)
	}
	began := time.Now()
	other := openLocal(t, "")
	list, leftOut, err := other.List(t.Context(), 100)
	took := time.Since(began)
	require.NoError(t, err)
	require.Len(t, list, 100)
	require.Equal(t, 900, leftOut)
	require.Less(t, took, 6*time.Second)
	t.Log(took)
}

// The next turn of a fork does not work in the current directory.
func TestLocal_AForkHasAWorkspaceOfItsOwn(t *testing.T) { //nolint:paralleltest // see above
	for name, data := range map[string]string{"of the machine": "", "of --data": filepath.Join(t.TempDir(), "data")} { //nolint:paralleltest // see above
		t.Run(name, func(t *testing.T) {
			state(t)
			if data != "" {
				require.NoError(t, os.MkdirAll(filepath.Join(data, fleet.ServerDir), 0o700))
			}
			l := openLocal(t, data)
			turn(t, l, "origin", 1, loop.OutcomeAnswered, nil)
			dir := t.TempDir()
			require.NoError(t, rememberWorkspace(l.location.data("origin"), "origin", dir))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600))
			warned := ""
			_, err := l.Fork(t.Context(), "origin", public.At{Turn: 2}, "fork", func(m string) { warned = m })
			require.ErrorContains(t, err, "turn 2: not there, or it has not ended")
			require.Empty(t, warned, "what a fork that is not made would get")
			require.NoDirExists(t, filepath.Join(l.location.data("fork"), "sandboxes", "fork"))
			_, err = l.Fork(t.Context(), "origin", public.At{}, "fork", nil)
			require.NoError(t, err)
			content, err := l.Sessions("").ReadFile(t.Context(), "fork", "file", "")
			require.NoError(t, err)
			require.Equal(t, "x", string(content))
			f := &FleetFlags{Data: data}
			found, err := f.FindWorkspace("", "fork", func(string) {})
			require.NoError(t, err)
			require.Empty(t, found)
			_, err = f.FindWorkspace(dir, "fork", func(string) {})
			require.ErrorContains(t, err, "omit --workspace")
		})
	}
}

// What a killed process has left to run is not run by a worker that only changes files.
func TestLocal_WorkRunsNothingThatWaits(t *testing.T) { //nolint:paralleltest // see above
	state(t)
	l := openLocal(t, "")
	turn(t, l, "origin", 1, loop.OutcomeAnswered, nil)
	pool := l.Pool(t.Context(), "origin")
	_, err := l.Submit(t.Context(), public.Call{Session: "origin", Pool: pool, Payload: wire.WorkspaceRemove{}})
	require.NoError(t, err)
	require.NoError(t, session.Idle(t.Context(), l.fleet, pool), "it runs no program")
	_, err = l.Submit(t.Context(), public.Call{Session: "origin", ID: "c-1", Pool: pool, Payload: protocol.CommandRun{Command: "true"}})
	require.NoError(t, err)
	err = l.Work(t.Context(), "origin")
	require.ErrorIs(t, err, public.ErrSessionBusy)
	require.ErrorContains(t, err, "call c-1 of session origin has no result; continue that session")
	_, _, err = l.WorkAs(t.Context(), Options{ID: "origin"})
	require.ErrorIs(t, err, public.ErrSessionBusy)
}

// A session of an earlier version is named, with what can be done with it.
func TestLocal_OfAnEarlierVersion(t *testing.T) { //nolint:paralleltest // see above
	state(t)
	earlier := filepath.Join(os.Getenv("XDG_STATE_HOME"), "toolfleet", "sessions", "old")
	require.NoError(t, os.MkdirAll(filepath.Join(earlier, fleet.ServerDir), 0o700))
	require.Contains(t, EarlierSessions(), "1 data directories of an earlier version are in "+filepath.Dir(earlier))
	want := "session old is of an earlier version, and has a data directory of its own: use it there with --data " + earlier
	require.ErrorContains(t, Earlier("old"), want)
	require.NoError(t, Earlier("new"))
	_, err := (&FleetFlags{}).FindWorkspace("", "old", nil)
	require.ErrorContains(t, err, want)
	own := t.TempDir()
	file := workspaceFile(own, "zero")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.Symlink("/dev/zero", file)) // as a command without isolation can
	_, err = (&FleetFlags{Data: own}).FindWorkspace("", "zero", nil)
	require.ErrorIs(t, err, regular.ErrNot)
	fork := filepath.Join(filepath.Dir(earlier), "fork")
	require.NoError(t, os.MkdirAll(fork, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(fork, "origin"), []byte("old\n"), 0o600))
	require.ErrorContains(t, Earlier("fork"), "use it there with --data "+earlier+", or")
	l := openLocal(t, earlier)
	turn(t, l, "old", 1, loop.OutcomeAnswered, nil)
	info, err := l.Show(t.Context(), "old")
	require.NoError(t, err)
	require.Equal(t, 1, info.Turns)
}

// Calls of a session reach only the worker of the process that holds it.
func TestLocation_EachSessionHasAPool(t *testing.T) {
	t.Parallel()
	p := location{dir: t.TempDir()}
	for _, id := range []protocol.SessionID{"a", "b", protocol.NewSessionID()} {
		_, err := protocol.ParsePool(string(p.pool(id)))
		require.NoError(t, err)
		require.Equal(t, p.pool(id), (&FleetFlags{}).pool(id))
		require.Equal(t, protocol.DefaultPool, (&FleetFlags{Data: "x"}).pool(id))
	}
	require.NotEqual(t, p.pool("a"), p.pool("b"))
}

// The pools of sessions whose processes were killed are removed, and no others.
func TestRemoveUnusedPools(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	p := location{dir: t.TempDir()}
	release, err := p.hold(t.Context(), "held")
	require.NoError(t, err)
	ended, err := p.hold(t.Context(), "killed")
	require.NoError(t, err)
	ended()
	want := []protocol.Pool{protocol.DefaultPool, p.pool("held")}
	for _, pool := range append([]protocol.Pool{p.pool("killed"), p.pool("removed")}, want...) {
		require.NoError(t, natsio.MakePool(t.Context(), f.JS, f.Name, pool))
	}
	require.NoError(t, RemoveUnusedPools(t.Context(), p.dir, f.NC))
	left, err := natsio.Pools(t.Context(), f.JS, f.Name)
	require.NoError(t, err)
	require.Equal(t, want, left)
	release()
	require.NoError(t, RemoveUnusedPools(t.Context(), p.dir, f.NC))
	left, err = natsio.Pools(t.Context(), f.JS, f.Name)
	require.NoError(t, err)
	require.Equal(t, want[:1], left)
	require.NoError(t, f.JS.DeleteStream(t.Context(), wire.CallsStream(f.Name)))
	require.NoError(t, RemoveUnusedPools(t.Context(), p.dir, f.NC), "a server without a fleet")
}
