package worker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// one of the workers of a test, with one slot.
type one struct {
	*worker.Worker

	data string
	stop func()
}

// fleetOf runs workers that share no disk and let go of lanes at once.
func (r *rig) fleetOf(ids ...protocol.WorkerID) map[protocol.WorkerID]one {
	r.t.Helper()
	workers := map[protocol.WorkerID]one{}
	for _, id := range ids {
		o, _ := r.fleeting()
		o.Worker, o.Slots = id, 1
		w, stop := r.work(o)
		workers[id] = one{w, o.Data, stop}
	}
	return workers
}

// step makes a call, waits until nothing is held any more, and returns who ran it.
func (r *rig) step(workers map[protocol.WorkerID]one, session protocol.SessionID) protocol.WorkerID {
	r.t.Helper()
	got := r.do(session, protocol.CommandRun{Command: "echo step >> steps"})
	requireOK(r.t, got)
	for _, w := range workers {
		require.Eventually(r.t, func() bool { return w.Info().HeldLanes == 0 }, patience, time.Millisecond)
	}
	return got.WorkerID
}

// home makes calls of sessions until all went to where they had been before, and returns where that
// is: each worker hears of the others in a moment.
func (r *rig) home(workers map[protocol.WorkerID]one, sessions ...protocol.SessionID) map[protocol.SessionID]protocol.WorkerID {
	r.t.Helper()
	at := map[protocol.SessionID]protocol.WorkerID{}
	for limit := time.Now().Add(patience); ; {
		same := true
		for _, session := range sessions {
			ran := r.step(workers, session)
			same = same && at[session] == ran
			at[session] = ran
		}
		if same {
			return at
		}
		require.True(r.t, time.Now().Before(limit), "sessions go from worker to worker: %v", at)
	}
}

// Calls of a session go back to the worker that has its workspace.
func TestPrefer_TheWorkerThatHasTheWorkspace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	workers := r.fleetOf("first", "second")
	r.home(workers, "s-1", "s-2", "s-3") // odd: the consumer gives to the two workers in turn
}

// So they do when that was stopped and started again, with another name.
func TestPrefer_TheDiskThatHasTheWorkspace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.fleetOf("before")
	const sessions = 12
	for n := range sessions {
		r.step(before, protocol.SessionID(fmt.Sprint("s-", n)))
	}
	before["before"].stop()
	workers := r.fleetOf("other")
	o, _ := r.fleeting()
	o.Worker, o.Slots, o.Data = "again", 1, before["before"].data
	w, stop := r.work(o)
	workers["again"] = one{w, o.Data, stop}
	r.home(workers, "t-1", "t-2", "t-3") // they know each other
	back := 0
	for n := range sessions {
		if r.step(workers, protocol.SessionID(fmt.Sprint("s-", n))) == "again" {
			back++
		}
	}
	require.GreaterOrEqual(t, back, sessions*3/4, "a busy machine may miss some, and half come by chance")
}

// Nobody waits for it while it is busy, or when it is gone.
func TestPrefer_NotWhileItIsBusyOrGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	workers := r.fleetOf("first", "second")
	r.home(workers, "s-1", "s-2")
	done := make(chan map[protocol.CallID]*protocol.Result, 1)
	go func() {
		done <- r.all([]protocol.Call{newCall("s-1", protocol.CommandRun{Command: "echo x > began; until [ -e go ]; do sleep 0.01; done"})})
	}()
	busy := protocol.WorkerID("")
	require.Eventually(t, func() bool {
		for id, w := range workers {
			if _, err := os.Stat(filepath.Join(workspaceOf(w.data, "s-1"), "began")); err == nil {
				busy = id
			}
		}
		return busy != ""
	}, patience, time.Millisecond)
	for _, session := range []protocol.SessionID{"s-2", "s-3"} {
		got := r.do(session, protocol.CommandRun{Command: "echo step >> steps"})
		requireOK(t, got)
		require.NotEqual(t, busy, got.WorkerID)
	}
	require.NoError(t, os.WriteFile(filepath.Join(workspaceOf(workers[busy].data, "s-1"), "go"), nil, 0o600))
	<-done
	workers[busy].stop()
	got := r.do("s-1", protocol.CommandRun{Command: "cat began"})
	requireOK(t, got)
	require.NotEqual(t, busy, got.WorkerID)
	require.Equal(t, "x\n", string(value[protocol.CommandRunResult](t, got).Stdout))
}
