package worker_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// startServer starts a background process and waits until it has written its process id and is
// ready.
func (r *rig) startServer(t *testing.T, session protocol.SessionID) (handle string) {
	t.Helper()
	got := r.do(session, protocol.CommandRun{Command: `printf %s $$ >pid; echo ready; while [ ! -e stop ]; do sleep 0.01; done; echo bye; exit 5`, Background: true})
	requireOK(t, got)
	v := value[protocol.CommandRunResult](t, got)
	require.Equal(t, "running", v.Reason)
	require.NotEmpty(t, v.Process)
	read := value[wire.ProcessReadResult](t, r.do(session, wire.ProcessRead{Process: v.Process, Wait: 60_000}))
	require.Equal(t, "ready\n", string(read.Content))
	return v.Process
}

func TestBackground_ProcessesKeepTheirSandboxAndAreReadAndKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Linger = -1 // nothing else keeps a sandbox open
	r.work(o)
	session := protocol.NewSessionID()
	first, second := r.startServer(t, session), r.startServer(t, session)
	require.NotEqual(t, first, second)
	pid := awaitFile(t, filepath.Join(workspaceOf(o.Data, session), "pid"))
	requireOK(t, r.do(session, protocol.CommandRun{Command: "true"}))

	list := value[wire.ProcessListResult](t, r.do(session, wire.ProcessList{})).Processes
	require.Len(t, list, 2)
	require.Equal(t, []string{first, "running"}, []string{list[0].Process, list[0].Reason})
	read := value[wire.ProcessReadResult](t, r.do(session, wire.ProcessRead{Process: first, Wait: 10_000}))
	require.Equal(t, "ready\n", string(read.Content))

	killed := value[wire.ProcessKillResult](t, r.do(session, wire.ProcessKill{Process: second}))
	require.Equal(t, "cancelled", killed.Reason)
	requireGone(t, pid)
	requireOK(t, r.do(session, protocol.FilesWrite{Path: "stop"}))
	read = value[wire.ProcessReadResult](t, r.do(session, wire.ProcessRead{Process: first, Offset: read.NextOffset, Wait: 60_000}))
	require.Equal(t, "bye\n", string(read.Content))

	// When nothing lives any more the lane is let go, and the ends are remembered.
	require.Eventually(t, func() bool {
		got := value[wire.ProcessReadResult](t, r.do(session, wire.ProcessRead{Process: first}))
		return got.Reason == "exited" && got.ExitCode == 5
	}, patience, time.Millisecond)
	requireFault(t, r.do(session, wire.ProcessRead{Process: "p-none"}), protocol.StatusFailed, protocol.CodeNotFound)
	requireFault(t, r.do(protocol.NewSessionID(), wire.ProcessKill{Process: first}), protocol.StatusFailed, protocol.CodeNotFound)
}

func TestBackground_OutputIsSeenLive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	live := r.listen(t, session)
	r.startServer(t, session)
	live.until(t, wire.FrameStdout, "ready\n") // long before its end
	requireOK(t, r.do(session, protocol.FilesWrite{Path: "stop"}))
	frames := live.until(t, wire.FrameStdout, "ready\nbye\n")
	require.Equal(t, frames[0].CallID, frames[len(frames)-1].CallID)

	// A flood is cut, and the gap shows.
	const flood = 8_000_000 // on a slow machine it takes seconds, and each passes some of it
	flooded := protocol.NewSessionID()
	live = r.listen(t, flooded)
	got := r.do(flooded, protocol.CommandRun{
		Command: fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x; while [ ! -e stop ]; do sleep 0.01; done; echo end`, flood), Background: true,
	})
	requireOK(t, got)
	require.Eventually(t, func() bool { // the last of it is read, so that the end is written by itself
		read := r.do(flooded, wire.ProcessRead{Process: value[protocol.CommandRunResult](t, got).Process, Offset: -1})
		return value[wire.ProcessReadResult](t, read).NextOffset == flood
	}, patience, time.Millisecond)
	requireOK(t, r.do(flooded, protocol.FilesWrite{Path: "stop"}))
	frames = live.until(t, wire.FrameStdout, "end\n")
	require.Less(t, len(together(frames, wire.FrameStdout)), flood)
	require.Greater(t, frames[len(frames)-1].Seq, uint64(len(frames)))
}

func TestBackground_ProcessesEndWithTheirWorkerAndAreToldOfByTheNext(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, dir := r.inPlace()
	_, stop := r.work(o)
	session := protocol.NewSessionID()
	handle := r.startServer(t, session)
	pid := awaitFile(t, filepath.Join(dir, "pid"))
	stop()
	n, err := strconv.Atoi(pid)
	require.NoError(t, err)
	require.True(t, gone(n), "when the worker has stopped")
	r.work(o)
	got := value[wire.ProcessReadResult](t, r.do(session, wire.ProcessRead{Process: handle}))
	require.Equal(t, []string{"cancelled", "ready\n"}, []string{got.Reason, string(got.Content)})
}

// All that a process wrote is kept with the result of the call that started it, as a command's is.
func TestBackground_AllOfTheOutputIsKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	call := newCall(session, protocol.CommandRun{Command: "seq 1 100000; echo end >&2", Background: true})
	started := r.dispatch(t.Context(), call)
	requireOK(t, started)
	ended := value[wire.ProcessReadResult](t, r.do(session, wire.ProcessRead{
		Process: value[protocol.CommandRunResult](t, started).Process, Offset: 588_899, Wait: 60_000,
	}))
	require.Equal(t, []any{"exited", call.ID}, []any{ended.Reason, ended.Kept})
	all := value[wire.ResultReadResult](t, r.kept(session, wire.ResultRead{CallID: call.ID, Limit: 2}))
	require.Equal(t, []any{"1\n2\n", 100_001}, []any{string(all.Content), all.TotalLines})
	stderr := value[wire.ResultReadResult](t, r.kept(session, wire.ResultRead{CallID: call.ID, Part: wire.PartStderr}))
	require.Equal(t, "end\n", string(stderr.Content))
}

func TestBackground_WhatCannotBeStartedIsAFault(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	got := r.do(session, protocol.CommandRun{Command: "no-such-program", Background: true})
	requireOK(t, got)
	var ended wire.ProcessReadResult // a busy machine may take longer than a start is waited for
	require.Eventually(t, func() bool {
		read := r.do(session, wire.ProcessRead{Process: value[protocol.CommandRunResult](t, got).Process})
		ended = value[wire.ProcessReadResult](t, read)
		return ended.Reason != "running"
	}, patience, 10*time.Millisecond)
	require.Equal(t, []any{"exited", 127}, []any{ended.Reason, ended.ExitCode})
	require.Contains(t, string(ended.Content), "no-such-program")
	requireFault(t, r.do(session, protocol.CommandRun{Argv: []string{"no-such-program"}, Background: true}),
		protocol.StatusFailed, protocol.CodeCommandNotFound)
	requireFault(t, r.do(session, protocol.CommandRun{Command: "true", Cwd: "none", Background: true}), protocol.StatusFailed, protocol.CodeNotFound)
	require.Len(t, value[wire.ProcessListResult](t, r.do(session, wire.ProcessList{})).Processes, 1)
}

func TestBackground_LivesNoLongerThanTheWorkerAllows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Background = 5 * time.Second // it has to be seen running
	r.work(o)
	session := protocol.NewSessionID()
	handle := r.startServer(t, session)
	got := value[wire.ProcessReadResult](t, r.do(session, wire.ProcessRead{Process: handle, Offset: 1000, Wait: 60_000}))
	require.Equal(t, "timeout", got.Reason)
}

// TestBackground_ALostLaneKillsWhatLivesThere: a worker that is cut off may not be the only one
// with the workspace any more.
func TestBackground_ALostLaneKillsWhatLivesThere(t *testing.T) {
	t.Parallel()
	r := rigOf(t, natsiotest.New(t, natsio.Topology{}))
	o := r.options()
	o.AckWait = shortLease
	nc := r.Connect()
	w, err := worker.New(t.Context(), nc, o)
	require.NoError(t, err)
	r.run(w)
	session := protocol.NewSessionID()
	r.startServer(t, session)
	pid := awaitFile(t, filepath.Join(workspaceOf(o.Data, session), "pid"))
	nc.Close()
	requireGone(t, pid)
}

// watchedDriver counts the sandboxes that it opens and that are closed, and may lose a command.
type watchedDriver struct {
	isolation.Driver

	opened, closed atomic.Int64
	loses          atomic.Bool // the next command ends, and nobody hears of it
	full           atomic.Bool // nothing can be opened before something was closed
}

func (d *watchedDriver) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	if d.full.Load() {
		return nil, fmt.Errorf("no room")
	}
	opened, err := d.Driver.Open(ctx, spec)
	if err != nil {
		return nil, err
	}
	d.opened.Add(1)
	return &watchedSandbox{Sandbox: opened, driver: d}, nil
}

type watchedSandbox struct {
	sandbox.Sandbox

	driver *watchedDriver
	closed atomic.Bool
}

func (s *watchedSandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	r, err := s.Sandbox.Exec(ctx, cmd)
	if s.driver.loses.CompareAndSwap(true, false) {
		return sandbox.Result{}, sandbox.ErrClosed
	}
	return r, err
}

func (s *watchedSandbox) Close() error {
	if s.closed.CompareAndSwap(false, true) {
		s.driver.closed.Add(1)
		s.driver.full.Store(false)
	}
	return s.Sandbox.Close()
}

// fleeting are options of a worker that lets go of each lane at once, and of the driver of it.
func (r *rig) fleeting() (worker.Options, *watchedDriver) {
	o := r.options()
	watched := &watchedDriver{Driver: o.Driver}
	o.Driver, o.Linger = watched, time.Nanosecond
	return o, watched
}

// alone makes a call, and waits until its lane is not held any more.
func (r *rig) alone(w *worker.Worker, session protocol.SessionID, command string) string {
	r.t.Helper()
	got := r.do(session, protocol.CommandRun{Command: command})
	requireOK(r.t, got)
	require.Eventually(r.t, func() bool { return w.Info().HeldLanes == 0 }, patience, time.Millisecond)
	return string(value[protocol.CommandRunResult](r.t, got).Stdout)
}

// A sandbox stays open when its lane is let go, and closes with its worker.
func TestWarm_SandboxOutlivesItsLane(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, watched := r.fleeting()
	w, stop := r.work(o)
	before := watched.opened.Load() // to look for languages
	for range 3 {
		r.alone(w, "s-1", "echo one >> f")
		r.alone(w, "s-2", "echo two >> f")
	}
	require.Equal(t, "one\none\none\n", r.alone(w, "s-1", "cat f"))
	require.Equal(t, before+2, watched.opened.Load())
	stop()
	require.Equal(t, watched.opened.Load(), watched.closed.Load())
}

// Those that were not used for the longest time are closed first when there are too many.
func TestWarm_BudgetIsKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, watched := r.fleeting()
	o.Slots, o.WarmBytes = 1, 2*sandboxes.WarmSandbox
	w, _ := r.work(o)
	before := watched.opened.Load()
	for _, session := range []protocol.SessionID{"s-1", "s-2", "s-3", "s-1", "s-4", "s-5"} {
		r.alone(w, session, "true")
	}
	require.Equal(t, before+5, watched.opened.Load())
	require.EqualValues(t, 3, watched.opened.Load()-watched.closed.Load())
	for _, session := range []protocol.SessionID{"s-1", "s-4", "s-5"} {
		r.alone(w, session, "true")
	}
	require.Equal(t, before+5, watched.opened.Load(), "one that was used lately was closed")
	r.alone(w, "s-2", "true")
	require.Equal(t, before+6, watched.opened.Load())
}

// Idle sandboxes make room for one that cannot be opened beside them.
func TestWarm_MakesRoomWhenNothingElseCanBeOpened(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, watched := r.fleeting()
	w, _ := r.work(o)
	r.alone(w, "s-1", "echo one > f")
	watched.full.Store(true)
	r.alone(w, "s-2", "true")
	require.Equal(t, "one\n", r.alone(w, "s-1", "cat f"))
}

// occupy has the only slot of a worker in use until free is called.
func (r *rig) occupy(data string) (free func()) {
	r.t.Helper()
	session := protocol.NewSessionID()
	done := make(chan map[protocol.CallID]*protocol.Result, 1)
	go func() {
		done <- r.all([]protocol.Call{newCall(session, protocol.CommandRun{Command: "echo x > began; until [ -e go ]; do sleep 0.01; done"})})
	}()
	dir := workspaceOf(data, session)
	awaitFile(r.t, filepath.Join(dir, "began"))
	return func() {
		require.NoError(r.t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
		<-done
	}
}

// An open sandbox whose workspace another worker has had meanwhile is not used as it is.
func TestWarm_NotWithWhatAnotherWorkerHasChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, watched := r.fleeting()
	o.Slots, o.Worker = 1, "first"
	first, _ := r.work(o)
	r.alone(first, "s-1", "echo first > f")
	free := r.occupy(o.Data)
	other, _ := r.fleeting()
	other.Slots, other.Worker = 1, "second"
	second, stop := r.work(other)
	require.Equal(t, "first\n", r.alone(second, "s-1", "cat f; echo second >> f; rm -f g; mkdir g"))
	stop()
	free()
	before := watched.opened.Load()
	require.Equal(t, "first\nsecond\ng\n", r.alone(first, "s-1", "cat f; ls -d g"))
	require.Equal(t, before+1, watched.opened.Load())
}

// What a command has changed whose end nobody heard of is taken back before it runs again.
func TestWarm_NotWithWhatIsNotKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, watched := r.fleeting()
	w, _ := r.work(o)
	r.alone(w, "s-1", "echo kept > f")
	watched.loses.Store(true)
	require.Equal(t, "kept\nonce\n", r.alone(w, "s-1", "echo once >> f; cat f"))
}
