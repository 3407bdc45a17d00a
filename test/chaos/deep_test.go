//go:build linux

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Lanes in which 50,000 calls wait (300 in the short form) are drained in order while the workers
// that hold them are killed, and calls of other lanes do not wait for them.
func TestChaos_LanesAreDeep(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	begin := time.Now()
	depth, lanes, kills := 300, 2, 2
	if *callCount > 0 {
		depth, lanes, kills = 50_000, max(1, *callCount/50_000), max(10, *callCount/5000)
	}
	r := newPlace(t, setup{})
	d := newDeep(r)
	for n := range lanes {
		d.fill(n, depth)
	}
	for range 3 {
		r.startWorker()
	}
	var probes sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	probes.Go(func() { d.probe(ctx) })
	t.Cleanup(func() { stop(); probes.Wait() })
	for n := range kills { // somebody has to live for a lease to see that others do not
		d.awaitSettled(ctx, lanes*depth*(n+1)/(kills+1))
		d.killBusiest()
	}
	d.awaitSettled(ctx, lanes*depth)
	stop()
	probes.Wait()
	report := r.conclude(begin)
	require.GreaterOrEqual(t, report.Accepted, lanes*depth)
	all, undisturbed := d.latencies()
	t.Logf("%d lanes of %d calls; calls of other lanes took %s; those at least %s away from a kill %s",
		lanes, depth, quantiles(all), away(r), quantiles(undisturbed))
}

// deep is the callers of deep lanes, and of other lanes beside.
type deep struct {
	*rig

	publisher *lane.Publisher
	results   *calls.Results
	journal   *journal
	mu        sync.Mutex
	probed    []probe
}

// probe is one call of another lane, from before it was put until its result was told.
type probe struct{ from, until Time }

func newDeep(r *rig) *deep {
	d := &deep{rig: r}
	path := r.path("caller.log")
	r.logs = append(r.logs, path)
	var err error
	d.journal, err = openJournal(path)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = d.journal.file.Close() })
	d.publisher, err = lane.NewPublisher(r.t.Context(), r.nc, protocol.DefaultFleet)
	require.NoError(r.t, err)
	d.results = calls.NewResults(r.nc, protocol.DefaultFleet, func(err error) { d.journal.trouble(err.Error()) })
	return d
}

func (d *deep) call(session protocol.SessionID, key string, work time.Duration) *protocol.Call {
	return &protocol.Call{
		ID: wire.RandomCallID(), SessionID: session, Pool: protocol.DefaultPool, Delivery: protocol.Idempotent, IssuedAt: time.Now(),
		Resources: []protocol.Use{{Key: protocol.ResourceKey(key), Access: protocol.Exclusive}}, Payload: wire.Noop{WorkMS: protocol.MillisOf(work)},
	}
}

// fill puts the calls of one lane, every fourth of which must not start twice.
func (d *deep) fill(n, depth int) {
	d.t.Helper()
	for i := range depth {
		call := d.call("deep", fmt.Sprintf("deep/%d", n), time.Millisecond)
		if i%4 == 0 {
			call.Delivery = protocol.AtMostOnce
		}
		d.put(call)
		require.NoError(d.t, d.publisher.Enqueue(d.t.Context(), lane.Outgoing{Call: call}))
		d.journal.write(&Record{Kind: KindAccepted, CallID: call.ID})
	}
}

// put writes a call down that is about to be put.
func (d *deep) put(call *protocol.Call) {
	bare := *call
	bare.Payload = nil
	d.journal.write(&Record{Kind: KindPut, CallID: call.ID, Call: &bare})
}

// awaitSettled waits until at least n calls of deep lanes have results.
func (d *deep) awaitSettled(ctx context.Context, n int) {
	d.t.Helper()
	for progress, last := time.Now(), 0; ; pause.For(ctx, 20*time.Millisecond) {
		stream, err := d.js.Stream(ctx, wire.ResultsStream(protocol.DefaultFleet))
		require.NoError(d.t, err)
		d.mu.Lock()
		settled := int(stream.CachedInfo().State.Msgs) - len(d.probed)
		d.mu.Unlock()
		if settled >= n {
			return
		}
		if settled > last {
			progress, last = time.Now(), settled
		}
		require.Less(d.t, time.Since(progress), patience, "only %d calls of deep lanes have results", settled)
	}
}

// killBusiest kills the worker that has written down most since it was started, and starts another.
func (d *deep) killBusiest() {
	size := func(m *member) int64 {
		info, err := os.Stat(d.path(string(m.id) + ".log"))
		if err != nil {
			return 0 // it has not begun yet
		}
		return info.Size()
	}
	busiest := slices.MaxFunc(d.workers, func(a, b *member) int { return int(size(a) - size(b)) })
	d.killWorker(slices.Index(d.workers, busiest))
}

// probe puts a call into a lane that nobody uses, 50 times a second and whether or not those before
// have their results, until ctx ends and all have them. There are not ever more of them on a busy
// machine.
func (d *deep) probe(ctx context.Context) {
	var open sync.Map
	watch, err := d.results.Watch(ctx, "probe", func(r *protocol.Result) {
		done, _ := open.LoadAndDelete(r.CallID)
		if done, waits := done.(chan *protocol.Result); waits {
			done <- r
		}
	}, nil)
	if err != nil {
		d.journal.trouble(err.Error())
		return
	}
	defer watch.Stop()
	var group errgroup.Group
	group.SetLimit(64)
	for n := 0; pause.For(ctx, 20*time.Millisecond); n++ {
		call, done := d.call("probe", fmt.Sprintf("probe/%d", n), 0), make(chan *protocol.Result, 1)
		open.Store(call.ID, done)
		group.Go(func() error { d.follow(context.WithoutCancel(ctx), call, done); return nil })
	}
	_ = group.Wait()
}

// follow puts a call and waits for its result.
func (d *deep) follow(ctx context.Context, call *protocol.Call, done <-chan *protocol.Result) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d.put(call)
	from := now()
	if err := d.publisher.Enqueue(ctx, lane.Outgoing{Call: call}); err != nil {
		d.journal.trouble(err.Error())
		return
	}
	d.journal.write(&Record{Kind: KindAccepted, CallID: call.ID})
	select {
	case r := <-done:
		until := now()
		d.journal.write(&Record{Kind: KindTold, CallID: r.CallID, Worker: r.WorkerID, Attempt: r.Attempt, Status: r.Status})
		d.mu.Lock()
		defer d.mu.Unlock()
		d.probed = append(d.probed, probe{from, until})
	case <-ctx.Done():
		d.journal.trouble("no result of " + string(call.ID) + " was told")
	}
}

// away is how long after a kill something may wait for a lane of the killed worker.
func away(r *rig) time.Duration { return r.setup.lease + time.Second }

// latencies are those of all probes, and of those that no kill can have touched.
func (d *deep) latencies() (all, undisturbed []time.Duration) {
	for _, p := range d.probed {
		took := time.Duration(p.until - p.from)
		all = append(all, took)
		if !slices.ContainsFunc(d.faults, func(f Fault) bool { return f.From <= p.until && p.from <= f.Until+Time(away(d.rig)) }) {
			undisturbed = append(undisturbed, took)
		}
	}
	return all, undisturbed
}

func quantiles(all []time.Duration) string {
	if len(all) == 0 {
		return "(none)"
	}
	slices.Sort(all)
	at := func(q float64) time.Duration { return all[int(q*float64(len(all)-1))].Round(100 * time.Microsecond) }
	return fmt.Sprintf("(%d calls) median %s, p99 %s, max %s", len(all), at(0.5), at(0.99), at(1))
}

// A worker that is killed while it holds a thousand lanes: another one gets them all when their
// leases have ended. The short form has 150.
func TestChaos_AThousandLanesComeBack(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	const lease = natsio.DefaultAckWait
	lanes := 150
	if *callCount > 0 {
		lanes = 1000
	}
	r := newPlace(t, setup{slots: lanes, lease: lease})
	r.startWorker()
	p, err := lane.NewPublisher(t.Context(), r.nc, protocol.DefaultFleet)
	require.NoError(t, err)
	var putting errgroup.Group
	for i := range lanes {
		whole := protocol.Use{Key: protocol.ResourceKey(fmt.Sprintf("account/%d", i)), Access: protocol.Exclusive}
		call := &protocol.Call{
			ID: wire.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool, Delivery: protocol.Idempotent, IssuedAt: time.Now(),
			Resources: []protocol.Use{whole}, Payload: wire.Noop{WorkMS: protocol.MillisOf(time.Hour)}, RunTimeout: protocol.MillisOf(time.Hour),
		}
		putting.Go(func() error { return p.Enqueue(t.Context(), lane.Outgoing{Call: call}) })
	}
	require.NoError(t, putting.Wait())
	r.awaitStarts(0, lanes)
	pause.For(t.Context(), lease) // every lease is renewed at least once
	r.startWorker()
	pause.For(t.Context(), 300*time.Millisecond)
	_, executions := r.starts(1)
	require.Zero(t, executions, "no lane is given away while it is held")
	killed := time.Now()
	r.workers[0].kill()
	r.awaitStarts(1, lanes)
	t.Logf("%d lanes, leases of %s: after kill -9 all are served again within %s", lanes, lease, time.Since(killed).Round(time.Millisecond))
	if _, executions = r.starts(1); !r.lostLease(r.workers[1].id) {
		require.Equal(t, lanes, executions)
	}
	r.workers[1].kill()
}

// starts is how many calls a worker has begun, and how often in all.
func (r *rig) starts(worker int) (calls, executions int) {
	log, err := os.ReadFile(r.path(string(r.workers[worker].id) + ".log"))
	if os.IsNotExist(err) {
		return 0, 0
	}
	require.NoError(r.t, err)
	begun := map[protocol.CallID]struct{}{}
	for line := range bytes.Lines(log) {
		var record Record
		if json.Unmarshal(line, &record) == nil && record.Kind == KindStart { // the last one may be half written
			begun[record.CallID] = struct{}{}
			executions++
		}
	}
	return len(begun), executions
}

func (r *rig) awaitStarts(worker, n int) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { calls, _ := r.starts(worker); return calls >= n }, patience, 100*time.Millisecond, "not all lanes are served")
}

// leases is what is heard of the workers' heartbeats.
type leases struct {
	mu   sync.Mutex
	last map[string]Time // when each life was stored or renewed last
	lost []Fault
}

// watchLeases notes whose lease ended. A machine that is busy enough brings a renewal or its answer
// too late without anybody being kept from running for [longTick]. That explains what a worker does
// not finish, and allows nothing else.
func (r *rig) watchLeases() {
	r.t.Helper()
	r.leases.last = map[string]Time{}
	_, destination := wire.BeatMapping(protocol.DefaultFleet)
	_, err := r.nc.Subscribe(destination, func(msg *nats.Msg) {
		beat, err := wire.Decode[wire.Heartbeat](msg.Data)
		stored, timeErr := time.Parse(time.RFC3339Nano, msg.Header.Get("Nats-Time-Stamp"))
		if err != nil || timeErr != nil {
			return
		}
		at := Time(stored.UnixNano() - int64(r.offset))
		r.leases.mu.Lock()
		defer r.leases.mu.Unlock()
		if beat.Expired {
			from := max(r.leases.last[msg.Subject], at-Time(2*r.setup.lease))
			r.leases.lost = append(r.leases.lost, Fault{Worker: beat.WorkerID, From: from, Until: at})
		}
		r.leases.last[msg.Subject] = at
	})
	require.NoError(r.t, err)
}

// addLostLeases adds to a history the leases that ended, but for those of workers that were killed.
func (r *rig) addLostLeases(h *History) {
	r.leases.mu.Lock()
	defer r.leases.mu.Unlock()
	for _, lost := range r.leases.lost {
		if !slices.ContainsFunc(r.faults, func(f Fault) bool { return f.Killed && f.Worker == lost.Worker }) {
			h.Faults = append(h.Faults, lost)
		}
	}
}

// lostLease reports whether a lease of a worker ended.
func (r *rig) lostLease(worker protocol.WorkerID) bool {
	r.leases.mu.Lock()
	defer r.leases.mu.Unlock()
	return slices.ContainsFunc(r.leases.lost, func(f Fault) bool { return f.Worker == worker })
}
