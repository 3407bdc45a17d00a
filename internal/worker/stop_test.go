package worker_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// slow says something, tells its process id, and would go on for long.
const slow = `printf partial; printf %s $$ >pid; sleep 300; echo never`

// requireGone waits until a process is no more.
func requireGone(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return gone(n) }, patience, time.Millisecond, "process %d", n)
}

// gone reports whether a process has ended; what nobody has waited for yet has ended too.
func gone(pid int) bool {
	process, err := os.FindProcess(pid)
	if err != nil {
		return true
	}
	defer func() { _ = process.Release() }() // nobody waits for it here
	if process.Signal(syscall.Signal(0)) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func requirePartial(t *testing.T, r *protocol.Result, reason string) {
	t.Helper()
	v := value[protocol.CommandRunResult](t, r)
	require.Equal(t, "partial", string(v.Stdout))
	require.Equal(t, reason, v.Reason)
}

func TestCommand_TimeoutsKeepPartialOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	for name, test := range map[string]struct {
		limit func(*protocol.Call, time.Duration)
		code  protocol.Code
	}{
		"run timeout": {func(c *protocol.Call, d time.Duration) { c.RunTimeout = protocol.MillisOf(d) }, protocol.CodeRunTimeout},
		"deadline":    {func(c *protocol.Call, d time.Duration) { c.Deadline = c.IssuedAt.Add(d) }, protocol.CodeDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rigOf(t, r.Fleet)
			var call protocol.Call
			var got *protocol.Result
			for d := 3 * time.Second; d < patience; d *= 4 { // on a busy machine it may be out of time before it says anything
				call = newCall(protocol.NewSessionID(), protocol.CommandRun{Command: slow})
				test.limit(&call, d)
				got = r.dispatch(t.Context(), call)
				if _, err := os.Stat(filepath.Join(workspaceOf(o.Data, call.SessionID), "pid")); err == nil {
					break
				}
			}
			requireFault(t, got, protocol.StatusTimeout, test.code)
			requirePartial(t, got, "timeout")
			requireGone(t, awaitFile(t, filepath.Join(workspaceOf(o.Data, call.SessionID), "pid")))
			requireOK(t, r.do(call.SessionID, protocol.CommandRun{Command: "true"}))
		})
	}
}

func TestCommand_CancelKeepsPartialOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	session := protocol.NewSessionID()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pid := filepath.Join(workspaceOf(o.Data, session), "pid")
	go func() {
		defer cancel()
		for {
			if content, err := os.ReadFile(pid); err == nil && len(content) > 0 || !pause.For(ctx, time.Millisecond) {
				return
			}
		}
	}()
	got := r.dispatch(ctx, newCall(session, protocol.CommandRun{Command: slow}))
	requireFault(t, got, protocol.StatusCancelled, protocol.CodeCancelled)
	requirePartial(t, got, "cancelled")
	requireGone(t, awaitFile(t, pid))
}

func TestDrain_HandsWaitingCallsToAnotherWorkerAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Slots, o.AckWait = 1, 2*patience
	first, stop := r.work(o)
	session := protocol.NewSessionID()
	calls := []protocol.Call{
		newCall(session, protocol.CommandRun{Command: "printf x >started; until [ -e go ]; do sleep 0.01; done; cat go"}),
		newCall(session, protocol.CommandRun{Command: "printf second"}),
	}
	results := make(chan map[protocol.CallID]*protocol.Result, 1)
	go func() { results <- r.all(calls) }()
	workspace := workspaceOf(o.Data, session)
	awaitFile(t, filepath.Join(workspace, "started"))
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	second, _ := r.work(o)
	require.NoError(t, os.WriteFile(filepath.Join(workspace, "go"), []byte("first"), 0o600))
	begin := time.Now()
	got := <-results
	require.Less(t, time.Since(begin), first.Lease()/2, "nobody waits for a lease to end")
	<-stopped
	requireOK(t, got[calls[0].ID])
	require.Equal(t, first.ID(), got[calls[0].ID].WorkerID)
	requireOK(t, got[calls[1].ID])
	require.Equal(t, second.ID(), got[calls[1].ID].WorkerID)
	require.Equal(t, 1, got[calls[1].ID].Attempt)
}

func TestDrain_WhatIsKilledStartsElsewhereAtOnce(t *testing.T) {
	t.Parallel()
	r := rigOf(t, natsiotest.Listening(t, natsio.Topology{}))
	o, dir := r.inPlace()
	o.AckWait = 2 * patience
	nc := r.ConnectTCP()
	first, err := worker.New(t.Context(), nc, o)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() {
		err := first.Run(ctx, ctx) // no time to drain
		nc.Close()
		stopped <- err
	}()
	session := protocol.NewSessionID()
	call := newCall(session, protocol.CommandRun{Command: strings.ReplaceAll(takeOver, "trap '' TERM; ", "")})
	result := make(chan *protocol.Result, 1)
	go func() { result <- r.all([]protocol.Call{call})[call.ID] }()
	awaitFile(t, filepath.Join(dir, "pid"))
	stop()
	require.NoError(t, <-stopped)
	second, _ := r.work(o)
	begin := time.Now()
	got := <-result
	require.Less(t, time.Since(begin), first.Lease()/2, "nobody waits for a lease to end")
	requireOK(t, got)
	require.Equal(t, "alone", string(value[protocol.CommandRunResult](t, got).Stdout))
	require.Equal(t, second.ID(), got.WorkerID)
	require.Equal(t, 2, got.Attempt)
}

// TestDrain_WhatIsKilledInPlaceIsHalfDone: no worker can restore a directory that is used in place,
// so a call that changes it does not start again from its beginning, unless it may be repeated.
func TestDrain_WhatIsKilledInPlaceIsHalfDone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*protocol.Call)
		log    string
	}{
		"rollback":         {func(c *protocol.Call) { c.Delivery = protocol.Rollback }, "start\n"},
		"rollback, shared": {func(c *protocol.Call) { c.Delivery = protocol.Rollback; c.Resources[0].Access = protocol.Shared }, "start\nstart\nend\n"},
		"idempotent":       {func(*protocol.Call) {}, "start\nstart\nend\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			o, dir := r.inPlace()
			first, err := worker.New(t.Context(), r.Connect(), o)
			require.NoError(t, err)
			ctx, stop := context.WithCancel(context.Background())
			stopped := make(chan error, 1)
			go func() { stopped <- first.Run(ctx, ctx) }() // no time to drain
			call := newCall(protocol.NewSessionID(), protocol.CommandRun{Command: "echo start >>log; [ -e go ] || sleep 300; echo end >>log"})
			test.change(&call)
			result := make(chan *protocol.Result, 1)
			go func() { result <- r.all([]protocol.Call{call})[call.ID] }()
			awaitFile(t, filepath.Join(dir, "log"))
			stop()
			require.NoError(t, <-stopped)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
			r.work(o)
			got := <-result
			require.Equal(t, test.log, awaitFile(t, filepath.Join(dir, "log")))
			require.Equal(t, 2, got.Attempt)
			if test.log != "start\n" {
				requireOK(t, got)
				return
			}
			requireFault(t, got, protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
			require.Contains(t, got.Error.Message, "works in a directory in place")
		})
	}
}

// A process that sends a call again, because an earlier one was lost, learns that it runs.
func TestDispatch_WhatRunsAlreadyIsReportedAsRunning(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, dir := r.inPlace()
	w, _ := r.work(o)
	call := newCall(protocol.NewSessionID(), protocol.CommandRun{Command: "echo >started; while ! [ -e go ]; do sleep .05; done"})
	ctx, leave := context.WithCancelCause(t.Context())
	left := make(chan error, 1)
	go func() { left <- r.dispatcher.Dispatch(ctx, []protocol.Call{call}, func(loop.Update) {}) }()
	awaitFile(t, filepath.Join(dir, "started"))
	leave(loop.ErrDetached)
	require.ErrorIs(t, <-left, loop.ErrDetached)
	call.Again = true
	var running loop.Update
	require.NoError(t, r.dispatcher.Dispatch(t.Context(), []protocol.Call{call}, func(u loop.Update) {
		if u.State == loop.StateRunning {
			running = u
			require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
		}
	}))
	require.Equal(t, loop.Update{CallID: call.ID, State: loop.StateRunning, WorkerID: w.ID(), Attempt: 1}, running)
}

// The call tells at its second start whether what the first one began still runs.
const takeOver = `if [ -e pid ]; then
	if kill -0 "$(cat pid)" 2>/dev/null; then printf overlap; else printf alone; fi
else
	trap '' TERM; printf %s $$ >pid; sleep 300; echo late >>effects
fi`

func TestLostLease_KillsAtOnceAndCommitsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, dir := r.inPlace()
	o.AckWait = shortLease
	nc, link := r.ConnectVia()
	cut, err := worker.New(t.Context(), nc, o)
	require.NoError(t, err)
	r.run(cut)
	session := protocol.NewSessionID()
	call := newCall(session, protocol.CommandRun{Command: takeOver})
	result := make(chan *protocol.Result, 1)
	go func() { result <- r.all([]protocol.Call{call})[call.ID] }()
	pid := awaitFile(t, filepath.Join(dir, "pid"))

	link.Cut()
	requireGone(t, pid)
	stored, err := r.storedResult(t, call)
	require.NoError(t, err)
	require.Nil(t, stored, "whoever lost the lane says nothing")

	other, _ := r.work(o)
	got := <-result
	requireOK(t, got)
	require.Equal(t, "alone", string(value[protocol.CommandRunResult](t, got).Stdout))
	require.Equal(t, other.ID(), got.WorkerID)
	require.GreaterOrEqual(t, got.Attempt, 2) // a busy machine may end the lease of the other one, too
	link.Mend()
	require.Eventually(t, nc.IsConnected, patience, time.Millisecond)
	require.NoFileExists(t, filepath.Join(dir, "effects"))
	stored, err = r.storedResult(t, call)
	require.NoError(t, err)
	require.Equal(t, other.ID(), stored.WorkerID)
	requireOK(t, r.do(protocol.NewSessionID(), protocol.CommandRun{Command: "true"}))
}

// A handler that does not end keeps its slot, and nothing else of the lane that it has lost.
func TestLostLease_KillsBesideAHandlerThatGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, dir := r.inPlace()
	o.AckWait = shortLease
	began, end := make(chan struct{}), make(chan struct{})
	o.Handlers.Calls = map[protocol.Kind]kinds.Handler{
		"stubborn": func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) {
			close(began)
			<-end
			return nil, nil
		},
	}
	nc, link := r.ConnectVia()
	cut, err := worker.New(t.Context(), nc, o)
	require.NoError(t, err)
	r.run(cut)
	defer close(end)
	session := protocol.NewSessionID()
	handle := r.startServer(t, session)
	pid := awaitFile(t, filepath.Join(dir, "pid"))
	payload, err := wire.NewUserPayload("stubborn", nil)
	require.NoError(t, err)
	call := newCall(session, payload)
	call.Delivery = protocol.AtMostOnce
	result := make(chan *protocol.Result, 1)
	go func() { result <- r.all([]protocol.Call{call})[call.ID] }()
	<-began

	link.Cut()
	requireGone(t, pid)
	o.Handlers.Calls = nil
	r.work(o)
	requireFault(t, <-result, protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
	got := value[wire.ProcessReadResult](t, r.do(session, wire.ProcessRead{Process: handle}))
	require.Equal(t, "cancelled", got.Reason)
}
