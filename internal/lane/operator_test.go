package lane_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const pool = protocol.DefaultPool

func (f *fleet) operator() *operator.Operator {
	f.t.Helper()
	o, err := operator.New(f.t.Context(), f.nc, protocol.DefaultFleet)
	require.NoError(f.t, err)
	return o
}

// gate executes calls that end when they are let go or killed.
type gate struct {
	lane.DefaultHost

	started chan *lane.Run
	letGo   chan struct{} // one a call
}

func newGate() *gate {
	return &gate{started: make(chan *lane.Run, 4096), letGo: make(chan struct{}, 4096)}
}

func (g *gate) Execute(ctx context.Context, run *lane.Run) protocol.Result {
	g.started <- run
	select {
	case <-g.letGo:
		return succeed(run)
	case <-ctx.Done():
		return interrupted(ctx, run)
	}
}

func (g *gate) Release(protocol.Lane) {}

// requireStart waits for the start of a call.
func (g *gate) requireStart(t *testing.T, id protocol.CallID) *lane.Run {
	t.Helper()
	select {
	case run := <-g.started:
		require.Equal(t, id, run.Call.ID)
		return run
	case <-time.After(patience):
		require.FailNow(t, "call does not start", id)
		return nil
	}
}

// enqueueWithoutReady appends calls to their mailbox as a publisher does that dies then.
func (f *fleet) enqueueWithoutReady(calls ...*protocol.Call) {
	f.t.Helper()
	for _, c := range calls {
		raw(f.t, f, wire.CallSubject(protocol.DefaultFleet, c.Pool, wire.HashLane(c.Lane()), c.ID), c)
	}
}

// list is the lanes of the default pool by name, and their names in order.
func (f *fleet) list(o *operator.Operator) (map[protocol.Lane]operator.Status, []protocol.Lane) {
	f.t.Helper()
	list, err := o.List(f.t.Context(), pool, 0)
	require.NoError(f.t, err)
	require.Zero(f.t, list.LeftOut)
	byName, names := map[protocol.Lane]operator.Status{}, []protocol.Lane{}
	for _, status := range list.Lanes {
		require.Equal(f.t, pool, status.Pool)
		require.Equal(f.t, string(wire.HashLane(status.Lane)), status.Hash)
		byName[status.Lane] = status
		names = append(names, status.Lane)
	}
	return byName, names
}

func (f *fleet) show(o *operator.Operator, name protocol.Lane) *operator.View {
	f.t.Helper()
	view, err := o.Show(f.t.Context(), pool, name, 0)
	require.NoError(f.t, err)
	return view
}

// listed waits until a lane is listed the way that it should be. The first list may be another one:
// a holder that is very busy does not answer in time, and what is settled is removed a moment
// later.
func (f *fleet) listed(o *operator.Operator, name protocol.Lane, is func(operator.Status) bool) operator.Status {
	f.t.Helper()
	var status operator.Status
	require.Eventually(f.t, func() bool {
		byName, _ := f.list(o)
		status = byName[name]
		return is(status)
	}, patience, 10*time.Millisecond)
	return status
}

// shown is listed for all that is known of the lane.
func (f *fleet) shown(o *operator.Operator, name protocol.Lane, is func(*operator.View) bool) *operator.View {
	f.t.Helper()
	var view *operator.View
	require.Eventually(f.t, func() bool {
		view = f.show(o, name)
		return is(view)
	}, patience, 10*time.Millisecond)
	return view
}

// kill cancels what runs in a lane whose holder is well.
func kill(t *testing.T, o *operator.Operator, name protocol.Lane) (killed []lane.RunningCall) {
	t.Helper()
	require.Eventually(t, func() bool { // a holder that is very busy may not answer in time
		var err error
		killed, err = o.Kill(t.Context(), pool, name)
		return err == nil
	}, patience, 10*time.Millisecond)
	return killed
}

// What a list costs depends on what it shows, not on how many lanes there are.
func TestOperator_AListCostsWhatItShows(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	var first []protocol.Lane
	var calls []*protocol.Call
	for i := range 1500 {
		name := fmt.Sprintf("account/%04d", i)
		if i < 10 {
			first = append(first, protocol.Lane(name))
			put(t, p, newCall("s", exclusive(name)), newCall("s", exclusive(name)))
			continue
		}
		calls = append(calls, newCall("s", exclusive(name)))
	}
	put(t, p, calls...)
	f.enqueueWithoutReady(newCall("s", exclusive("account/stalled")))
	nc := f.connect()
	o, err := operator.New(t.Context(), nc, protocol.DefaultFleet)
	require.NoError(t, err)
	messages := func() uint64 { s := nc.Stats(); return s.InMsgs + s.OutMsgs }

	before := messages()
	list, err := o.List(t.Context(), pool, 10)
	require.NoError(t, err)
	require.Less(t, messages()-before, uint64(250))
	require.Equal(t, 1491, list.LeftOut)
	var names []protocol.Lane
	for _, status := range list.Lanes {
		names = append(names, status.Lane)
		require.Equal(t, 2, status.Waiting)
	}
	require.Equal(t, first, names)
	before = messages()
	waiting, err := o.Waiting(t.Context(), pool, 10, 16)
	require.NoError(t, err)
	require.Len(t, waiting, 20)
	require.Less(t, messages()-before, uint64(350))
}

// The first messages may all be of one lane.
func TestOperator_ADeepLaneHidesNoOther(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	calls := make([]*protocol.Call, 5000)
	for i := range calls {
		calls[i] = newCall("s", exclusive("account/deep"))
	}
	put(t, p, calls...)
	put(t, p, newCall("s", exclusive("account/last")))
	list, err := f.operator().List(t.Context(), pool, 10)
	require.NoError(t, err)
	require.Len(t, list.Lanes, 2)
	require.Equal(t, protocol.Lane("account/deep"), list.Lanes[0].Lane)
	require.Equal(t, 5000, list.Lanes[0].Waiting)
	require.Equal(t, protocol.Lane("account/last"), list.Lanes[1].Lane)
}

func TestOperator_ListWithoutAnyWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p := f.operator(), f.publisher()
	byName, _ := f.list(o)
	require.Empty(t, byName)

	f.enqueueWithoutReady(newCall("s", exclusive("account/stalled")), newCall("s", exclusive("account/stalled")))
	put(t, p, newCall("s", exclusive("account/one")))
	many := []*protocol.Call{newCall("s", exclusive("account/many")), newCall("s", shared("account/many/x")), newCall("s", exclusive("account/many"))}
	put(t, p, many...)
	confirmed, err := o.Pause(t.Context(), pool, "account/many")
	require.NoError(t, err)
	require.True(t, confirmed)
	_, err = o.Pause(t.Context(), pool, `account/an "odd" näme`)
	require.NoError(t, err)

	byName, names := f.list(o)
	require.Equal(t, []protocol.Lane{"account/stalled", "account/one", "account/many", `account/an "odd" näme`}, names, "the oldest first")
	for name, want := range map[protocol.Lane]struct {
		state   string
		waiting int
	}{
		"account/stalled":       {operator.StateStalled, 2},
		"account/one":           {operator.StateReady, 1},
		"account/many":          {operator.StatePaused, 3},
		`account/an "odd" näme`: {operator.StatePaused, 0},
	} {
		require.Equal(t, want.state, byName[name].State, name)
		require.Equal(t, want.waiting, byName[name].Waiting, name)
		require.Empty(t, byName[name].Holder)
		require.Empty(t, byName[name].Running)
	}

	list, err := o.List(t.Context(), pool, 1)
	require.NoError(t, err)
	require.Len(t, list.Lanes, 1)
	require.Equal(t, 3, list.LeftOut)
	require.False(t, list.Incomplete)
	list, err = o.List(t.Context(), "another", 0)
	require.NoError(t, err)
	require.Empty(t, list.Lanes)
}

func TestOperator_TellsWhoHoldsALaneAndWhatRuns(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	f.hold(g, lane.Options{Worker: "w-1", Slots: 2})
	f.hold(newGate(), lane.Options{Worker: "elsewhere", Pool: "another"})
	first, second, third := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	first.Tool = "bash"
	first.Delivery = protocol.AtMostOnce
	put(t, p, first, second, third)
	g.requireStart(t, first.ID)
	require.NoError(t, p.Cancel(t.Context(), first))
	f.await(p, first)
	g.requireStart(t, second.ID)

	status := f.listed(o, "account/a", func(s operator.Status) bool { return s.State == operator.StateHeld && s.Waiting == 1 })
	require.Equal(t, protocol.WorkerID("w-1"), status.Holder)
	require.Len(t, status.Running, 1)
	require.Equal(t, second.ID, status.Running[0].CallID)
	require.Equal(t, protocol.SessionID("s"), status.Running[0].SessionID)
	require.Equal(t, 1, status.Running[0].Attempt)

	view := f.shown(o, "account/a", func(v *operator.View) bool { return v.Holder != "" && len(v.Calls) == 2 })
	require.Equal(t, protocol.WorkerID("w-1"), view.Holder)
	require.Equal(t, []string{operator.CallRunning, operator.CallWaiting}, []string{view.Calls[0].State, view.Calls[1].State})
	require.Equal(t, 1, view.Calls[0].Attempt)
	require.Equal(t, third.Resources, view.Calls[1].Resources)
	g.letGo <- struct{}{}
	g.letGo <- struct{}{}
	f.await(p, second)
	f.await(p, third)
	f.requireQuiet()
}

func TestOperator_ShowTellsCallsInOrder(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	calls := make([]*protocol.Call, 5)
	for i := range calls {
		calls[i] = newCall("s", exclusive("account/a"))
		calls[i].Tool = fmt.Sprint("tool", i)
	}
	calls[0].Delivery = protocol.AtMostOnce
	put(t, p, calls...)
	require.NoError(t, p.Cancel(t.Context(), calls[3]))
	f.hold(g, lane.Options{Worker: "w-1"})
	g.requireStart(t, calls[0].ID)
	require.Equal(t, protocol.StatusCancelled, f.await(p, calls[3]).Status, "it need not wait for its turn")

	view := f.shown(o, "account/a", func(v *operator.View) bool { return v.Holder != "" && len(v.Calls) == 4 })
	for i, want := range []*protocol.Call{calls[0], calls[1], calls[2], calls[4]} {
		require.Equal(t, want.ID, view.Calls[i].CallID)
		require.Equal(t, want.Tool, view.Calls[i].Tool)
		require.WithinDuration(t, time.Now(), view.Calls[i].AcceptedAt, time.Minute)
	}
	require.Equal(t, operator.CallRunning, view.Calls[0].State)
	require.Len(t, view.Calls[0].Starts, 1)
	require.Equal(t, 1, view.Calls[0].Starts[0].Attempt)
	require.Equal(t, protocol.WorkerID("w-1"), view.Calls[0].Starts[0].WorkerID)

	short, err := o.Show(t.Context(), pool, "account/a", 2)
	require.NoError(t, err)
	require.Len(t, short.Calls, 2)
	require.Len(t, short.Calls[0].Starts, 1, "marks come behind the calls, also those that were not read")
	require.Equal(t, 2, short.LeftOut)
	for range calls {
		g.letGo <- struct{}{}
	}
	for _, call := range calls {
		f.await(p, call)
	}
	f.requireQuiet()
}

func TestOperator_NamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p := f.operator(), f.publisher()
	ctx := t.Context()
	_, err := o.Show(ctx, pool, "account/a", 0)
	require.ErrorIs(t, err, operator.ErrNoLane)
	require.ErrorContains(t, err, "account/a has nothing in pool default")
	call := newCall("s", exclusive("account/there"))
	put(t, p, call)
	elsewhere := newCall("s", exclusive("account/elsewhere"))
	elsewhere.Pool = "gpu"
	put(t, p, elsewhere)

	for name, verb := range map[string]func(protocol.Lane) error{
		"show": func(l protocol.Lane) error { _, err := o.Show(ctx, pool, l, 0); return err },
		"wake": func(l protocol.Lane) error { _, err := o.Wake(ctx, pool, l); return err },
		"kill": func(l protocol.Lane) error { _, err := o.Kill(ctx, pool, l); return err },
		"skip": func(l protocol.Lane) error { return o.Skip(ctx, pool, l, "c") },
	} {
		err := verb("account/typo")
		require.ErrorIs(t, err, operator.ErrNoLane, name)
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, "account/typo has nothing in pool default")
		require.ErrorContains(t, verb("account/elsewhere"), "account/elsewhere has nothing in pool default", name)
	}
	err = o.Skip(ctx, pool, "account/there", "c")
	require.ErrorIs(t, err, operator.ErrNoCall)
	require.ErrorContains(t, err, "lane account/there of pool default has no unfinished call c")
	_, err = o.Kill(ctx, pool, "account/there")
	require.ErrorIs(t, err, operator.ErrNothingRuns)
	require.ErrorContains(t, err, "no worker says that it holds it")
}

func TestOperator_WakeOfAStalledLane(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p := f.operator(), f.publisher()
	call := newCall("s", exclusive("account/a"))
	f.enqueueWithoutReady(call)
	byName, _ := f.list(o)
	require.Equal(t, operator.StateStalled, byName["account/a"].State)
	require.Equal(t, operator.CallWaiting, f.show(o, "account/a").Calls[0].State)
	did, err := o.Wake(t.Context(), pool, "account/a")
	require.NoError(t, err)
	require.True(t, did)
	f.hold(succeeds, lane.Options{})
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	f.requireQuiet()

	put(t, p, newCall("s", exclusive("account/b")))
	g := newGate()
	f.hold(g, lane.Options{Pool: "another"})
	ready := newCall("s", exclusive("account/b"))
	ready.Pool = "another"
	put(t, p, ready)
	g.requireStart(t, ready.ID)
	did, err = o.Wake(t.Context(), "another", "account/b")
	require.NoError(t, err)
	require.False(t, did, "it is held")
	g.letGo <- struct{}{}
	f.await(p, ready)
}

func TestOperator_SkipEndsOneCall(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	first, second, third := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	put(t, p, first, second, third)
	require.NoError(t, o.Skip(t.Context(), pool, "account/a", third.ID), "without a worker")
	require.Equal(t, operator.CallCancelling, f.show(o, "account/a").Calls[2].State)
	f.hold(g, lane.Options{})
	g.requireStart(t, first.ID)
	require.Equal(t, protocol.StatusCancelled, f.await(p, third).Status)
	require.NoError(t, o.Skip(t.Context(), pool, "account/a", second.ID), "behind one that runs")
	r := f.await(p, second)
	require.Equal(t, protocol.StatusCancelled, r.Status)
	require.Zero(t, r.Attempt)
	require.ErrorIs(t, o.Skip(t.Context(), pool, "account/a", second.ID), operator.ErrNoCall, "it has its result")
	require.NoError(t, o.Skip(t.Context(), pool, "account/a", first.ID), "one that runs")
	r = f.await(p, first)
	require.Equal(t, protocol.StatusCancelled, r.Status)
	require.Equal(t, 1, r.Attempt)
	require.Empty(t, g.started)
	f.requireQuiet()

	stalled := newCall("s", exclusive("account/stalled"))
	f.enqueueWithoutReady(stalled)
	require.NoError(t, o.Skip(t.Context(), pool, "account/stalled", stalled.ID))
	require.Equal(t, protocol.StatusCancelled, f.await(p, stalled).Status)
	f.requireQuiet()
}

func TestOperator_KillCancelsWhatRuns(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	f.hold(g, lane.Options{Slots: 3})
	calls := []*protocol.Call{newCall("s", shared("account/a")), newCall("s", shared("account/a")), newCall("s", exclusive("account/a"))}
	put(t, p, calls...)
	<-g.started
	<-g.started
	require.Len(t, kill(t, o, "account/a"), 2)
	require.Equal(t, protocol.StatusCancelled, f.await(p, calls[0]).Status)
	require.Equal(t, protocol.StatusCancelled, f.await(p, calls[1]).Status)
	g.requireStart(t, calls[2].ID)
	g.letGo <- struct{}{}
	require.Equal(t, protocol.StatusOK, f.await(p, calls[2]).Status)
	f.requireQuiet()
}

func TestOperator_AfterALostWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	nc := f.connect()
	lost, err := lane.NewHolder(t.Context(), nc, g, lane.Options{Worker: "lost", AckWait: briefLease})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- lost.Run(ctx, ctx) }()
	first, second := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	put(t, p, first, second)
	g.requireStart(t, first.ID)
	nc.Close()

	byName, _ := f.list(o)
	require.Equal(t, operator.StateLost, byName["account/a"].State)
	require.Equal(t, protocol.WorkerID("lost"), byName["account/a"].Holder, "its claim names it")
	require.Equal(t, "another worker: its holder lost does not answer", byName["account/a"].WaitsFor)
	require.Equal(t, report.Wait{Reason: report.ReasonLost, WorkerID: "lost", Pool: pool}, byName["account/a"].Wait)
	require.Equal(t, 2, byName["account/a"].Waiting)
	_, err = o.Kill(t.Context(), pool, "account/a")
	require.ErrorIs(t, err, operator.ErrNothingRuns)
	require.ErrorContains(t, err, "no worker says that it holds it")
	cancel()
	require.NoError(t, <-done)

	next := newGate()
	f.hold(next, lane.Options{Worker: "next"})
	next.requireStart(t, first.ID)
	status := f.listed(o, "account/a", func(s operator.Status) bool { return s.State == operator.StateHeld })
	require.Equal(t, protocol.WorkerID("next"), status.Holder)
	require.Equal(t, 2, status.Running[0].Attempt)
	view := f.shown(o, "account/a", func(v *operator.View) bool { return v.Holder != "" })
	require.Equal(t, 2, view.Calls[0].Attempt)
	require.Equal(t, 2, view.Calls[0].Starts[0].Attempt)
	require.Equal(t, protocol.WorkerID("next"), view.Calls[0].Starts[0].WorkerID)
	next.letGo <- struct{}{}
	next.letGo <- struct{}{}
	f.await(p, first)
	f.await(p, second)
	f.requireQuiet()
}

func TestOperator_ManyHeldLanesAreToldInParts(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	const n = 600
	f.hold(g, lane.Options{Worker: "w-1", Slots: n})
	calls := make([]*protocol.Call, n)
	for i := range calls {
		calls[i] = newCall("s", exclusive(fmt.Sprintf("account/%04d", i)))
		calls[i].RunTimeout = protocol.MillisOf(2 * patience)
	}
	put(t, p, calls...)
	for range calls {
		<-g.started
	}
	var list *operator.List
	require.Eventually(t, func() bool { // a holder that is very busy may be too slow with one of the parts
		var err error
		list, err = o.List(t.Context(), pool, n)
		return err == nil && !slices.ContainsFunc(list.Lanes, func(s operator.Status) bool { return s.State != operator.StateHeld })
	}, patience, 10*time.Millisecond, "some of the parts are missing")
	require.Len(t, list.Lanes, n)
	for _, status := range list.Lanes {
		require.Equal(t, protocol.WorkerID("w-1"), status.Holder)
		require.Len(t, status.Running, 1)
		require.Zero(t, status.Waiting)
	}
	close(g.letGo)
	f.requireQuiet()
}

func TestOperator_OnThreeServers(t *testing.T) {
	t.Parallel()
	f, _ := newClusterFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	f.hold(g, lane.Options{Worker: "w-1", Slots: 2})
	running, next := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	put(t, p, running, next)
	g.requireStart(t, running.ID)
	pause(t, o, "account/a")
	require.Equal(t, running.ID, kill(t, o, "account/a")[0].CallID)
	require.Equal(t, protocol.StatusCancelled, f.await(p, running).Status)
	view := f.shown(o, "account/a", func(v *operator.View) bool { return v.Holder != "" && v.Waiting == 1 })
	require.Equal(t, operator.StatePaused, view.State)
	require.Equal(t, protocol.WorkerID("w-1"), view.Holder)
	require.Empty(t, g.started)
	resume(t, o, "account/a")
	g.requireStart(t, next.ID)
	g.letGo <- struct{}{}
	require.Equal(t, protocol.StatusOK, f.await(p, next).Status)
	f.requireQuiet()
}
