package lane_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// flaky is an executor whose calls of tool "flaky" fail a number of times.
type flaky struct {
	testHost

	mu       sync.Mutex
	failures int
	fault    protocol.Error
	begun    []string // tool and attempt of each start
}

func newFlaky(failures int, fault protocol.Error) *flaky {
	f := &flaky{failures: failures, fault: fault}
	f.execute = func(_ context.Context, run *lane.Run) protocol.Result {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.begun = append(f.begun, run.Call.Tool+string(rune('0'+run.Attempt)))
		if run.Call.Tool == "flaky" && run.Attempt <= f.failures {
			fault := f.fault
			return wire.NewResult(run.Call, protocol.StatusFailed, &fault)
		}
		return succeed(run)
	}
	return f
}

func (f *flaky) starts() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.begun...)
}

func retried(attempts int, wait time.Duration) *protocol.Call {
	c := newCall("s", exclusive("account/a/x"))
	c.Tool, c.Retry = "flaky", &protocol.Retry{Attempts: attempts, Wait: protocol.MillisOf(wait)}
	return c
}

var toolFailed = protocol.Error{Code: protocol.CodeToolFailed, Message: "not now"}

// Law: a call that failed is started again at its position: calls behind it that conflict with it
// wait, and others do not, also with one slot. Its result has the attempts that failed.
func TestRetry_KeepsItsPosition(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	host := newFlaky(2, toolFailed)
	f.hold(host, lane.Options{Slots: 1})
	p := f.publisher()
	call, behind := retried(3, 2*time.Second), newCall("s", exclusive("account/a/x"))
	behind.Tool = "behind"
	put(t, p, call, behind)
	require.Eventually(t, func() bool { return len(host.starts()) == 1 }, patience, time.Millisecond)
	beside, elsewhere := newCall("s", exclusive("account/a/y")), newCall("s", exclusive("other/a"))
	beside.Tool, elsewhere.Tool = "beside", "elsewhere"
	require.Equal(t, protocol.StatusOK, f.result(p, elsewhere).Status)
	require.Equal(t, []string{"flaky1", "elsewhere1"}, host.starts())
	require.Equal(t, protocol.StatusOK, f.result(p, beside).Status)

	r := f.await(p, call)
	require.Equal(t, protocol.StatusOK, r.Status)
	require.Equal(t, 3, r.Attempt)
	require.Len(t, r.Tries, 2)
	for i, try := range r.Tries {
		require.Equal(t, i+1, try.Attempt)
		require.Equal(t, &toolFailed, try.Error)
	}
	require.InDelta(t, 2000, r.Tries[0].WaitMS, 401)
	require.InDelta(t, 4000, r.Tries[1].WaitMS, 801)
	require.Equal(t, protocol.StatusOK, f.await(p, behind).Status)
	require.Equal(t, []string{"flaky1", "elsewhere1", "beside1", "flaky2", "flaky3", "behind1"}, host.starts())
	f.requireQuiet()
}

// The last failure is the result when the attempts are used up, when the error is none to try
// again, and when the deadline comes first.
func TestRetry_EndsWithTheLastFailure(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	other := protocol.Error{Code: protocol.CodeNotFound, Message: "no such thing"}
	for name, c := range map[string]struct {
		fault  protocol.Error
		change func(*protocol.Call)
		starts int
	}{
		"used up":       {toolFailed, func(*protocol.Call) {}, 2},
		"another error": {other, func(*protocol.Call) {}, 1},
		"named error":   {other, func(c *protocol.Call) { c.Retry.Codes = []protocol.Code{protocol.CodeNotFound} }, 2},
		"deadline": {toolFailed, func(c *protocol.Call) {
			c.Deadline = c.IssuedAt.Add(2 * time.Minute)
			c.Retry.Wait, c.Retry.MaxWait = protocol.MillisOf(10*time.Minute), protocol.MillisOf(10*time.Minute)
		}, 1},
	} {
		host := newFlaky(99, c.fault)
		h := f.hold(host, lane.Options{})
		call := retried(2, 10*time.Millisecond)
		c.change(call)
		r := f.result(f.publisher(), call)
		require.Equal(t, protocol.StatusFailed, r.Status, name)
		require.Equal(t, c.fault.Code, r.Error.Code, name)
		require.Equal(t, c.starts, r.Attempt, name)
		require.Len(t, r.Tries, c.starts-1, name)
		require.Len(t, host.starts(), c.starts, name)
		f.requireQuiet()
		h.stop()
	}
}

// An operator sees that a call waits for its retry.
func TestRetry_IsShownWhileItWaits(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hold(newFlaky(99, toolFailed), lane.Options{})
	call := retried(2, 10*time.Minute)
	put(t, f.publisher(), call)
	require.Eventually(t, func() bool {
		view, err := f.operator().Show(t.Context(), protocol.DefaultPool, call.Lane(), 0)
		return err == nil && view.WaitsFor == "its retry"
	}, patience, 10*time.Millisecond)
}

// A tool that says when it can be tried again is not tried before.
func TestRetry_WaitsAsLongAsTheToolSays(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	host := newFlaky(1, protocol.Error{Code: protocol.CodeToolFailed, Message: "busy", RetryAfter: 1500})
	f.hold(host, lane.Options{})
	r := f.result(f.publisher(), retried(2, time.Millisecond))
	require.Equal(t, protocol.StatusOK, r.Status)
	require.GreaterOrEqual(t, r.Tries[0].WaitMS, 1500.0)
	require.Greater(t, r.QueueMS, 1500.0)
}

// Law: a call that waits to be started again is cancelled like one that waits.
func TestRetry_IsCancelledMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	host := newFlaky(9, toolFailed)
	f.hold(host, lane.Options{})
	p := f.publisher()
	call := retried(9, 30*time.Minute)
	put(t, p, call)
	require.Eventually(t, func() bool { return len(host.starts()) == 1 }, patience, time.Millisecond)
	o, err := operator.New(t.Context(), f.nc, factFleet)
	require.NoError(t, err)
	require.NoError(t, o.Skip(t.Context(), protocol.DefaultPool, "account/a", call.ID))
	r := f.await(p, call)
	require.Equal(t, protocol.StatusCancelled, r.Status)
	require.Contains(t, r.Error.Message, "attempt 1 ended with tool_failed: not now")
	f.requireQuiet()
}

// Law: a worker that leaves, or is lost, between two attempts loses nothing: another one goes on.
func TestRetry_AnotherWorkerGoesOn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	first := newFlaky(9, toolFailed)
	h := f.hold(first, lane.Options{})
	p := f.publisher()
	call := retried(3, 30*time.Minute)
	put(t, p, call)
	require.Eventually(t, func() bool { return len(first.starts()) == 1 }, patience, time.Millisecond)
	h.stop()
	second := newFlaky(0, toolFailed)
	f.hold(second, lane.Options{})
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	require.Len(t, second.starts(), 1)
	f.requireQuiet()
}

// Law: a call that fails while its worker drains is started again by another one.
func TestRetry_AFailureDuringADrain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	begun, fail := make(chan struct{}), make(chan struct{})
	host := hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		if run.Call.Tool != "flaky" {
			return succeed(run)
		}
		close(begun)
		<-fail
		return wire.NewResult(run.Call, protocol.StatusFailed, &toolFailed)
	})
	h := f.hold(host, lane.Options{Slots: 4, Linger: time.Hour})
	p := f.publisher()
	call := retried(3, 10*time.Millisecond)
	put(t, p, call)
	<-begun
	require.Equal(t, protocol.StatusOK, f.result(p, newCall("s", exclusive("lingers/a"))).Status)
	stopped := make(chan struct{})
	go func() { defer close(stopped); h.stop() }()
	require.Eventually(t, func() bool { return h.Held() == 1 }, patience, time.Millisecond, "the idle lane is released when the drain begins")
	close(fail)
	<-stopped
	f.hold(newFlaky(0, toolFailed), lane.Options{})
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	f.requireQuiet()
}

// Law: a call that fails after it was asked to end is cancelled at once, not after a pause.
func TestRetry_FailsAfterItsCancel(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	begun := make(chan struct{})
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		close(begun)
		<-ctx.Done() // a tool that says in its own words that it was cancelled
		return wire.NewResult(run.Call, protocol.StatusFailed, &toolFailed)
	}), lane.Options{})
	p := f.publisher()
	call := retried(9, 30*time.Minute)
	put(t, p, call)
	<-begun
	require.NoError(t, p.Cancel(t.Context(), call))
	require.Equal(t, protocol.StatusCancelled, f.await(p, call).Status)
	f.requireQuiet()
}

// Law: the deadline of a call is answered also while the rate of its lane delays its next attempt.
func TestRetry_DeadlineBehindALimit(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Lane: "account/*", Rate: "1/h"})
	fail := make(chan protocol.CallID)
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		select {
		case fail <- run.Call.ID:
			return wire.NewResult(run.Call, protocol.StatusFailed, &toolFailed)
		case <-ctx.Done():
			return interrupted(ctx, run)
		}
	}), lane.Options{})
	p := f.publisher()
	for life := 3 * time.Second; ; life *= 4 { // a busy machine may not start a call before its deadline
		call := retried(9, 10*time.Millisecond)
		key := "account/" + life.String()
		call.Resources = []protocol.Use{exclusive(key)}
		call.Deadline = call.IssuedAt.Add(life)
		put(t, p, call)
		require.Equal(t, protocol.StatusRejected, f.result(p, waiting(key, queueTimeout)).Status)
		select {
		case id := <-fail:
			require.Equal(t, call.ID, id)
		case <-time.After(time.Until(call.Deadline)):
		}
		r := f.await(p, call)
		if r.Error.Code == protocol.CodeDeadline && life < patience {
			continue
		}
		require.Equal(t, protocol.StatusFailed, r.Status)
		require.Equal(t, protocol.CodeToolFailed, r.Error.Code)
		f.requireQuiet()
		return
	}
}

// A call that is due to be started again in a paused lane costs the server no requests.
func TestRetry_DueInAPausedLane(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	host := newFlaky(1, toolFailed)
	f.hold(host, lane.Options{})
	p, o := f.publisher(), f.operator()
	call := retried(2, 300*time.Millisecond)
	call.Retry.MaxWait = call.Retry.Wait
	put(t, p, call)
	require.Eventually(t, func() bool { return len(host.starts()) == 1 }, patience, time.Millisecond)
	pause(t, o, "account/a")
	questions := f.overhear("$JS.API.>")
	require.Equal(t, protocol.StatusOK, f.result(p, later("other/a", 2*time.Second)).Status)
	about := slices.DeleteFunc(questions.all(), func(m *nats.Msg) bool {
		return !strings.Contains(m.Subject+string(m.Data), string(wire.HashLane("account/a")))
	})
	require.Less(t, len(about), 200)
	require.Len(t, host.starts(), 1+1, "other/a")
	resume(t, o, "account/a")
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
}

func TestRetry_BadOnesAreNamed(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*protocol.Call){
		`delivery is "at_most_once", must be "idempotent"`:              func(c *protocol.Call) { c.Delivery = protocol.AtMostOnce },
		`delivery is "rollback", must be "idempotent"`:                  func(c *protocol.Call) { c.Delivery = protocol.Rollback },
		"retry.attempts 1: must be 2 to 100":                            func(c *protocol.Call) { c.Retry.Attempts = 1 },
		"retry.wait_ms -1, retry.max_wait_ms 0: must be 0 to 3600000":   func(c *protocol.Call) { c.Retry.Wait = -1 },
		"retry.max_wait_ms 5: must be at least retry.wait_ms 10":        func(c *protocol.Call) { c.Retry.MaxWait = 5 },
		`retry.codes: "nonsense": must be one of ["tool_failed" "run_t`: func(c *protocol.Call) { c.Retry.Codes = []protocol.Code{"nonsense"} },
	} {
		call := retried(2, 10*time.Millisecond)
		require.NoError(t, call.Validate())
		change(call)
		require.ErrorContains(t, call.Validate(), want)
	}
}
