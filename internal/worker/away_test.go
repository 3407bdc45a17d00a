package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// cabled runs a worker with a cable to the server.
func (r *rig) cabled(o worker.Options) (cable *natsiotest.Cable, stop func()) {
	r.t.Helper()
	address, err := url.Parse(r.Server.URL())
	require.NoError(r.t, err)
	cable = natsiotest.NewCable(r.t, address.Host)
	nc, err := natsio.Connect(r.t.Context(), "nats://"+cable.Address(), natsio.ConnectOptions{Name: r.t.Name(), Creds: r.Server.CredentialFile(), Logger: r.Logger})
	require.NoError(r.t, err)
	r.t.Cleanup(nc.Close)
	w, err := worker.New(r.t.Context(), nc, o)
	require.NoError(r.t, err)
	return cable, r.run(w)
}

// doCut makes a call of a worker that loses its connection before it says the first thing about
// a part of a body, and has it again then.
func (r *rig) doCut(cable *natsiotest.Cable, session protocol.SessionID, payload protocol.Payload) *protocol.Result {
	r.t.Helper()
	severed := make(chan struct{})
	cable.Before(func(said []byte) bool { return bytes.Contains(said, []byte("$O."+wire.BodiesBucket(r.Name)+".C.")) }, func() {
		cable.Sever()
		close(severed)
	})
	call := newCall(session, payload)
	done := make(chan *protocol.Result, 1)
	go func() { done <- r.all([]protocol.Call{call})[call.ID] }()
	select {
	case <-severed:
		cable.Mend()
	case <-time.After(patience):
		require.Fail(r.t, "no body is stored, or fetched")
	}
	return <-done
}

// A commit and a restore wait for a fleet that is away meanwhile.
func TestCheckpoint_WaitsForTheFleet(t *testing.T) {
	t.Parallel()
	r := rigOf(t, natsiotest.Listening(t, natsio.Topology{}))
	cable, stop := r.cabled(r.options())
	requireOK(t, r.doCut(cable, "s-1", bash(`head -c 1000000 /dev/urandom > large; sha256sum large > sum`)))
	stop()
	cable, _ = r.cabled(r.options())
	requireOK(t, r.doCut(cable, "s-1", bash(`sha256sum -c sum`)))
}

// What there is no room for is taken back, and there may be room for the next call.
func TestCheckpoint_WithoutRoomForBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	requireOK(t, r.do("s-1", bash(`echo before > f`)))
	bound := func(bytes int64) {
		stream, err := r.JS.Stream(t.Context(), natsio.ObjectStream(wire.BodiesBucket(r.Name)))
		require.NoError(t, err)
		config := stream.CachedInfo().Config
		config.MaxBytes = bytes
		_, err = r.JS.UpdateStream(t.Context(), config)
		require.NoError(t, err)
	}
	bound(100 << 10)
	grow := bash(`head -c 1000000 /dev/urandom > large; echo after >> f`)
	result := r.do("s-1", grow)
	requireFault(t, result, protocol.StatusFailed, protocol.CodeWorkspaceUnavailable)
	require.Contains(t, result.Error.Message, "no room")
	r.requireContent("s-1", "f", "before\n")
	requireFault(t, r.do("s-1", protocol.FilesRead{Path: "large"}), protocol.StatusFailed, protocol.CodeNotFound)
	bound(-1)
	requireOK(t, r.do("s-1", grow))
	r.requireContent("s-1", "f", "before\nafter\n")
}

// A worker without sandboxes takes the calls of its handlers and leaves commands to others; one
// without the handler leaves its calls; and one that has not proven the level leaves those that
// need it. Whoever waits is told who lacks what.
func TestTakes_WhatItCanRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	paid := worker.Options{
		Options: lane.Options{Fleet: r.Name, Worker: "paying", AckWait: patience, Logger: r.Logger}, Data: t.TempDir(),
		Capabilities: kinds.Capabilities{Handlers: kinds.Handlers{Calls: map[protocol.Kind]kinds.Handler{
			"refund": func(ctx context.Context, h *kinds.Attempt, _ json.RawMessage) (json.RawMessage, error) {
				_, err := h.Sandbox(ctx)
				return nil, err
			},
		}}},
	}
	var err error
	paid.Driver, paid.Caps, err = worker.OpenDriver(t.Context(), worker.NoSandboxes, nil, paid.Handlers)
	require.NoError(t, err)
	r.work(paid)
	session := protocol.NewSessionID()
	command := newCall(session, protocol.CommandRun{Command: "true"})
	command.MinLevel = isolation.LevelPaths.String()

	waits := make(chan string, 9)
	ran := make(chan *protocol.Result, 1)
	go func() {
		result, err := r.dispatcher.CallWith(t.Context(), &command, calls.CallOptions{Observe: calls.OnWaits(func(why string) { waits <- why })})
		if err != nil {
			t.Errorf("dispatch: %v", err)
		}
		ran <- result
	}()
	require.Equal(t, "1 worker of pool default, none offers a sandbox and level paths", <-waits)
	refund := newCall(session, protocol.UnknownPayload{Name: "refund", Raw: json.RawMessage(`{"type":"refund"}`)})
	refund.Resources = []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}}
	got := r.dispatch(t.Context(), refund)
	require.Equal(t, protocol.WorkerID("paying"), got.WorkerID)

	weak := r.options()
	weak.Worker = "weak"
	r.work(weak)
	require.Equal(t, "2 workers of pool default, none offers level paths; a sandbox is offered by weak", <-waits)

	strong := r.options()
	strong.Worker, strong.Caps.Level = "strong", isolation.LevelPaths
	r.work(strong)
	got = <-ran
	requireOK(t, got)
	require.Equal(t, protocol.WorkerID("strong"), got.WorkerID)
	require.Equal(t, 1, got.Attempt)
	for range 3 { // whoever is given them first
		refund.ID, refund.IssuedAt = wire.RandomCallID(), command.IssuedAt
		require.Equal(t, protocol.WorkerID("paying"), r.dispatch(t.Context(), refund).WorkerID)
	}
}

func TestOpenDriver_NoneNeedsHandlers(t *testing.T) {
	t.Parallel()
	_, _, err := worker.OpenDriver(t.Context(), worker.NoSandboxes, nil, kinds.Handlers{})
	require.ErrorIs(t, err, worker.ErrNothingToRun)
}

// A workspace that no worker writes is a fault of the call, and nothing outside of it is touched.
func TestCheckpoint_ThatNoWorkerWrites(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	store, err := workspace.Open(t.Context(), r.NC, r.Name, "")
	require.NoError(t, err)
	o := r.options()
	r.work(o)
	for session, tree := range map[protocol.SessionID]snapshot.Tree{
		"above":    {"../../escaped": {Type: protocol.TypeDir}},
		"absolute": {filepath.ToSlash(filepath.Join(o.Data, "escaped")): {Type: protocol.TypeDir}},
		"device":   {"workspace": {Type: protocol.TypeDir}, "workspace/null": {Type: protocol.TypeOther}},
		"link": {
			"workspace": {Type: protocol.TypeDir}, "workspace/l": {Type: protocol.TypeSymlink, Target: o.Data},
			"workspace/l/escaped": {Type: protocol.TypeDir},
		},
	} {
		require.NoError(t, store.Begin(t.Context(), protocol.SandboxKey(string(session)).Lane(), tree, "c"))
		for range 2 {
			requireFault(t, r.do(session, bash("ls")), protocol.StatusFailed, protocol.CodeWorkspaceUnavailable)
		}
	}
	left, err := filepath.Glob(filepath.Join(o.Data, "*escaped*"))
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = os.Stat(filepath.Join(o.Data, "sandboxes", "escaped"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

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
	began := time.Now()
	for _, session := range []protocol.SessionID{"s-2", "s-3"} {
		got := r.do(session, protocol.CommandRun{Command: "echo step >> steps"})
		requireOK(t, got)
		require.NotEqual(t, busy, got.WorkerID)
	}
	require.Less(t, time.Since(began), patience/3, "a busy worker keeps a lane for a third of a lease where tenants wait")
	require.NoError(t, os.WriteFile(filepath.Join(workspaceOf(workers[busy].data, "s-1"), "go"), nil, 0o600))
	<-done
	workers[busy].stop()
	got := r.do("s-1", protocol.CommandRun{Command: "cat began"})
	requireOK(t, got)
	require.NotEqual(t, busy, got.WorkerID)
	require.Equal(t, "x\n", string(value[protocol.CommandRunResult](t, got).Stdout))
}
