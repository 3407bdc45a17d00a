package worker_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

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
