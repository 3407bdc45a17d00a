package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// BenchmarkGrowth measures what looking costs, and what waits costs while no user looks, where
// there are 10, 1,000 and 10,000 of a thing: messages, time, processor time, memory, and disk for
// each. What depends on the number shows as another line for 10,000 than for 10. The processor time
// is that of this process, which has the server, too.
func BenchmarkGrowth(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("WaitingLanes/%d", n), func(b *testing.B) { growWaiting(b, n) })
		b.Run(fmt.Sprintf("PausedLanes/%d", n), func(b *testing.B) { growPaused(b, n) })
		b.Run(fmt.Sprintf("Sessions/%d", n), func(b *testing.B) { growSessions(b, n) })
		b.Run(fmt.Sprintf("Workspaces/%d", n), func(b *testing.B) { growWorkspaces(b, n) })
		b.Run(fmt.Sprintf("Triggers/%d", n), func(b *testing.B) { growTriggers(b, n) })
	}
}

// looks reports what looking costs.
func looks(b *testing.B, what string, nc *nats.Conn, look func() error) {
	b.Helper()
	before, cpu, begun := nc.Stats(), cpuTime(), time.Now()
	require.NoError(b, look())
	after := nc.Stats()
	b.ReportMetric(float64(after.InMsgs+after.OutMsgs-before.InMsgs-before.OutMsgs), what+"-messages")
	b.ReportMetric(float64(time.Since(begun).Microseconds())/1e3, what+"-ms")
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/1e3, what+"-cpu-ms")
}

// stored reports what each of n things takes on the server's disk.
func stored(b *testing.B, js jetstream.JetStream, n int, streams ...string) {
	b.Helper()
	bytes := uint64(0)
	for _, name := range streams {
		stream, err := js.Stream(b.Context(), name)
		require.NoError(b, err)
		bytes += stream.CachedInfo().State.Bytes
	}
	b.ReportMetric(float64(bytes)/float64(n), "stored-B/each")
}

// wait enqueues a call in each of n lanes.
func wait(b *testing.B, f *natsiotest.Fleet, n int) {
	b.Helper()
	p, err := lane.NewPublisher(b.Context(), f.NC, f.Name)
	require.NoError(b, err)
	var putting errgroup.Group
	putting.SetLimit(256)
	for i := range n {
		key := protocol.ResourceKey(fmt.Sprintf("account/%d", i))
		out := lane.Outgoing{Call: &protocol.Call{
			ID: wire.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool, Delivery: protocol.Idempotent,
			Resources: []protocol.Use{{Key: key, Access: protocol.Exclusive}}, IssuedAt: time.Now(), Payload: wire.Noop{},
		}}
		putting.Go(func() error { return p.Enqueue(b.Context(), out) })
	}
	require.NoError(b, putting.Wait())
}

func growWaiting(b *testing.B, n int) {
	b.Helper()
	f := natsiotest.New(b, natsio.Topology{})
	wait(b, f, n)
	nc := f.Connect()
	o, err := operator.New(b.Context(), nc, f.Name)
	require.NoError(b, err)
	for b.Loop() {
		looks(b, "ls", nc, func() error {
			_, err := o.List(b.Context(), protocol.DefaultPool, 0)
			return err
		})
		looks(b, "waiting", nc, func() error {
			_, err := o.Waiting(b.Context(), protocol.DefaultPool, 32, 16)
			return err
		})
	}
	stored(b, f.JS, n, wire.CallsStream(f.Name))
}

// idle does nothing.
type idle struct{ lane.DefaultHost }

func (idle) Execute(context.Context, *lane.Run) protocol.Result {
	return protocol.Result{Status: protocol.StatusOK, Value: wire.NoopResult{}}
}
func (idle) Release(protocol.Lane) {}

// growPaused measures a worker that holds n paused lanes, each with a call.
func growPaused(b *testing.B, n int) {
	b.Helper()
	f := natsiotest.New(b, natsio.Topology{})
	for i := range n {
		name := protocol.Lane(fmt.Sprintf("account/%d", i))
		mark := nats.NewMsg(wire.PauseSubject(f.Name, protocol.DefaultPool, wire.HashLane(name)))
		mark.Header.Set(wire.HeaderLane, wire.LaneHeader(name))
		_, err := f.JS.PublishMsg(b.Context(), mark)
		require.NoError(b, err)
	}
	wait(b, f, n)
	nc := f.Connect()
	before := heap()
	h, err := lane.NewHolder(b.Context(), nc, idle{}, lane.Options{Worker: "w", Slots: 4, Logger: f.Logger})
	require.NoError(b, err)
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, ctx) }()
	require.Eventually(b, func() bool { return h.Held() == n }, 5*time.Minute, 10*time.Millisecond)
	for b.Loop() {
		time.Sleep(45 * time.Second) // what was begun while there were few lanes is over
		b.ReportMetric(float64(heap()-before)/float64(n), "heap-B/each")
		stats, cpu, begun := nc.Stats(), cpuTime(), time.Now()
		time.Sleep(20 * time.Second)
		after, took := nc.Stats(), time.Since(begun).Seconds()
		b.ReportMetric(float64(after.InMsgs+after.OutMsgs-stats.InMsgs-stats.OutMsgs)/took, "messages/s")
		b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/1e3/took, "cpu-ms/s")
	}
	require.Equal(b, n, h.Held())
	stop()
	require.NoError(b, <-done)
}

// heap is what is in use of the heap and of stacks.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func growSessions(b *testing.B, n int) {
	b.Helper()
	f := natsiotest.New(b, natsio.Topology{})
	opened := &fleet.Fleet{Name: f.Name, NC: f.Connect(), Logger: f.Logger}
	require.NoError(b, opened.Open(b.Context(), true))
	for i := range n {
		for _, e := range []loop.Event{{Type: loop.EventSessionStarted}, {Type: loop.EventTurnStarted, Turn: 1}, {Type: loop.EventTurnEnded, Turn: 1, Status: "answered"}} {
			e.Time = time.Now()
			body, err := json.Marshal([]loop.Event{e})
			require.NoError(b, err)
			_, err = f.JS.PublishAsync(wire.EventSubject(f.Name, protocol.SessionID(fmt.Sprintf("s%d", i))), body)
			require.NoError(b, err)
		}
		if i%1000 == 999 {
			<-f.JS.PublishAsyncComplete()
		}
	}
	<-f.JS.PublishAsyncComplete()
	reader, err := session.NewReader(b.Context(), opened)
	require.NoError(b, err)
	reader.Lanes, reader.Pool = true, protocol.DefaultPool
	for b.Loop() {
		looks(b, "ls", opened.NC, func() error {
			_, _, err := reader.List(b.Context(), 100)
			return err
		})
	}
	stored(b, f.JS, n, wire.SessionsStream(f.Name))
}

// growWorkspaces measures the list of sessions where only calls have used n workspaces.
func growWorkspaces(b *testing.B, n int) {
	b.Helper()
	f := natsiotest.New(b, natsio.Topology{})
	opened := &fleet.Fleet{Name: f.Name, NC: f.Connect(), Logger: f.Logger}
	require.NoError(b, opened.Open(b.Context(), true))
	store, err := workspace.Open(b.Context(), f.NC, f.Name, "")
	require.NoError(b, err)
	for i := range n {
		require.NoError(b, store.Begin(b.Context(), protocol.SandboxKey(fmt.Sprintf("w%d", i)).Lane(), snapshot.Tree{}, wire.RandomCallID()))
	}
	reader, err := session.NewReader(b.Context(), opened)
	require.NoError(b, err)
	reader.Workspaces = true
	for b.Loop() {
		looks(b, "ls", opened.NC, func() error {
			list, _, err := reader.List(b.Context(), 100)
			require.Len(b, list, min(n, 100))
			return err
		})
	}
	stored(b, f.JS, n, wire.WorkspacesStream(f.Name))
}

func growTriggers(b *testing.B, n int) {
	b.Helper()
	f := natsiotest.New(b, natsio.Topology{})
	nc := f.Connect()
	js, err := jetstream.New(nc)
	require.NoError(b, err)
	store, err := schedule.Open(b.Context(), js, f.Name)
	require.NoError(b, err)
	set := func(session protocol.SessionID) error {
		call := wire.RandomCallID()
		return store.AddTrigger(b.Context(), schedule.Schedule{
			Name: "t-" + string(call), KeepSession: true, Trigger: schedule.Trigger{By: call, Channel: "default.news"}, Secret: wire.SeedOf("seed", call),
			Call: protocol.Call{
				ID: wire.RandomCallID(), SessionID: session, Tool: "turn_run", Pool: protocol.SessionPool,
				Resources: []protocol.Use{{Key: protocol.ResourceKey("session/" + string(session)), Access: protocol.Exclusive}},
				Delivery:  protocol.Idempotent, IssuedAt: time.Now().UTC(), Payload: wire.TurnRun{Prompt: "hello"},
			},
		})
	}
	for i := range n {
		require.NoError(b, set(protocol.SessionID(fmt.Sprintf("s%d", i))))
	}
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&schedule.Runner{Store: store, Send: func(context.Context, *protocol.Call) error { return nil }, Logger: f.Logger}).Run(ctx)
	}()
	require.Eventually(b, func() bool {
		before := nc.Stats().InMsgs
		_, err := store.Triggers(b.Context(), "s0")
		return err == nil && nc.Stats().InMsgs-before < 5
	}, time.Minute, 100*time.Millisecond)
	for b.Loop() {
		looks(b, "set", nc, func() error { // as watch_channel
			_, err := store.Triggers(b.Context(), "s0")
			if err != nil {
				return err
			}
			return set("s0")
		})
		looks(b, "ls", nc, func() error {
			_, _, err := store.Page(b.Context(), "", 100)
			return err
		})
	}
	stored(b, f.JS, n, "KV_"+wire.SchedulesBucket(f.Name))
	stop()
	<-done
}
