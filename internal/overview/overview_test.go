package overview_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/overview"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

var update = flag.Bool("update", false, "write golden files")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(m.Run())
}

// connect connects to a fleet that listens.
func connect(t *testing.T, f *natsiotest.Fleet) *fleet.Client {
	t.Helper()
	client, err := fleet.Connect(t.Context(), fleet.Options{URL: f.Server.URL(), Creds: f.Server.CredentialFile(), Existing: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// reads reads pictures until one is as it should be.
func reads(t *testing.T, r *overview.Reader, so func(p *overview.Picture) bool) *overview.Picture {
	t.Helper()
	for began := time.Now(); ; {
		p, err := r.Read(t.Context())
		require.NoError(t, err)
		if so(p) {
			return p
		}
		if time.Since(began) > 3*time.Minute {
			body, _ := json.MarshalIndent(p, "", "  ")
			t.Fatalf("no picture is as it should be, the last one is: %s", body)
		}
	}
}

// waiting is a worker's handler whose calls run until the test lets them end.
func waiting(t *testing.T, client *fleet.Client) (table *tools.Table, end func()) {
	t.Helper()
	ended := make(chan struct{})
	wait := worker.Handle("wait", func(ctx context.Context, _ *worker.Call, in struct {
		Fail bool `json:"fail,omitempty"`
	},
	) (string, error) {
		if in.Fail {
			return "", fmt.Errorf("it fails")
		}
		select {
		case <-ended:
		case <-ctx.Done():
		}
		return "", ctx.Err()
	})
	_, err := client.StartWorker(t.Context(), worker.Options{Driver: "none", Name: "one", Slots: 2, Handlers: []worker.Handler{wait}})
	require.NoError(t, err)
	table, err = tools.NewTable(tools.NewRemote[struct {
		Fail bool `json:"fail,omitempty"`
	}]("wait", "Wait.", tools.Remote{Kind: "wait", Resources: []tools.Resource{{Key: "account/a"}}}))
	require.NoError(t, err)
	return table, sync.OnceFunc(func() { close(ended) })
}

// volatile are the numbers and names of a picture that differ from test to test.
var volatile = regexp.MustCompile(`("(?:time|started_at)": )"[^"]*"|("\w+_ms": )\d+|("\w+_per_s": )[0-9.e-]+|("build": )"[^"]*"|("(?:worker_id|holder)": "one)-[^"]*"|(worker one)-\w+|("left": )[0-9.]+`)

// waited is what a call has waited for.
var waited = regexp.MustCompile(`,\s*"waits": \{[^}]*\}`)

// The picture has workers, lanes with what runs and waits, what calls wait for, and limits; its
// JSON is what programs read.
func TestRead_PictureIsWhatProgramsRead(t *testing.T) {
	t.Parallel()
	client := connect(t, natsiotest.Listening(t, natsio.Topology{}))
	table, end := waiting(t, client)
	defer end()
	require.NoError(t, client.Limits().Set(t.Context(), fleet.Limit{Tenant: "acme", Concurrent: 2}))
	require.NoError(t, client.Limits().Set(t.Context(), fleet.Limit{Lane: "account/*", Concurrent: 1}))
	require.NoError(t, client.Limits().Set(t.Context(), fleet.Limit{Pool: "default", Waiting: 100}))
	failed, err := client.Call(t.Context(), fleet.Call{Table: table, Tool: "wait", Session: "s", ID: "failing", Arguments: `{"fail": true}`})
	require.NoError(t, err)
	require.Equal(t, protocol.StatusFailed, failed.Status)
	for _, id := range []protocol.CallID{"first", ""} {
		client.Go(t.Context(), fleet.Call{Table: table, Tool: "wait", Session: "s", ID: id, Tenant: "acme"})
		require.Eventually(t, func() bool {
			list, err := client.Lanes("").List(t.Context(), 0)
			return err == nil && len(list.Lanes) == 1 && len(list.Lanes[0].Running) == 1
		}, time.Minute, time.Millisecond)
	}
	reader := overview.New(client, overview.Options{Fleet: protocol.DefaultFleet})
	reads(t, reader, func(*overview.Picture) bool { return true })
	p := reads(t, reader, func(p *overview.Picture) bool {
		return p.Rates.CallsPerS != nil && len(p.Lanes) == 1 && len(p.Lanes[0].Running) == 1 && p.Rates.Running == 1 && p.Limits[0].Throttled && p.Limits[1].Throttled
	})
	body, err := json.MarshalIndent(p, "", "  ")
	require.NoError(t, err)
	body = waited.ReplaceAll(body, nil)
	body = append(volatile.ReplaceAllFunc(body, func(found []byte) []byte {
		parts := volatile.FindSubmatch(found)
		kept := bytes.Join(parts[1:], nil)
		switch {
		case bytes.Contains(kept, []byte("time")), bytes.Contains(kept, []byte("started_at")):
			return append(kept, `"2026-01-02T03:04:05Z"`...)
		case bytes.Contains(kept, []byte("build")):
			return append(kept, `"v1.2.3"`...)
		case bytes.Contains(kept, []byte("one")):
			return append(kept, map[bool]string{true: `"`, false: ""}[bytes.Contains(kept, []byte(`"`))]...)
		}
		return append(kept, '0')
	}), '\n')
	golden := filepath.Join("testdata", "picture.json")
	if *update {
		require.NoError(t, os.WriteFile(golden, body, 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), string(body))
}

// Rates are what workers have ended between two readings.
func TestRead_RatesAreWhatEndedInBetween(t *testing.T) {
	t.Parallel()
	client := connect(t, natsiotest.Listening(t, natsio.Topology{}))
	table, end := waiting(t, client)
	end()
	reader := overview.New(client, overview.Options{})
	first := reads(t, reader, func(p *overview.Picture) bool { return len(p.Workers) == 1 })
	require.Nil(t, first.Rates.CallsPerS, "nothing is known before the second reading")
	for i := range 10 {
		_, err := client.Call(t.Context(), fleet.Call{Table: table, Tool: "wait", Session: "s", Arguments: fmt.Sprintf(`{"fail": %t}`, i < 4)})
		require.NoError(t, err)
	}
	p := reads(t, reader, func(p *overview.Picture) bool { return len(p.Workers) == 1 && p.Workers[0].Ended == 10 })
	require.EqualValues(t, 4, p.Workers[0].Failed)
	require.Positive(t, *p.Rates.CallsPerS)
	require.InDelta(t, 0.4, *p.Rates.FailedPerS / *p.Rates.CallsPerS, 1e-9)
}

// A worker whose calls were running and that does not answer any more is what is looked at first. A
// worker that was stopped is not.
func TestRead_LostWorkersAreFirst(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	client := connect(t, f)
	lostAt, link := f.ConnectVia()
	who, err := lostAt.Subscribe(wire.WhoSubject(f.Name, protocol.DefaultPool), func(request *nats.Msg) {
		body, err := wire.Encode(&wire.WorkerInfo{
			WorkerID: "gone", Pool: protocol.DefaultPool, Slots: 1, Running: 1, Driver: "none", Level: "none", Network: "all", Languages: []string{},
		})
		if err == nil {
			_ = request.Respond(body)
		}
	})
	require.NoError(t, err)
	defer func() { _ = who.Unsubscribe() }()
	require.NoError(t, lostAt.Flush())
	_, end := waiting(t, client)
	defer end()
	reader := overview.New(client, overview.Options{})
	reads(t, reader, func(p *overview.Picture) bool { return len(p.Workers) == 2 && p.Workers[0].State == overview.Serving })
	link.Cut()
	p := reads(t, reader, func(p *overview.Picture) bool { return len(p.Workers) == 2 && p.Workers[0].State == overview.Lost })
	require.Equal(t, protocol.WorkerID("gone"), p.Workers[0].WorkerID)
	require.Equal(t, "worker gone", p.Looks[0].What)
	require.Equal(t, "it does not answer; calls that ran there: 1", p.Looks[0].Why)
	require.Greater(t, p.Looks[0].AgeMS, int64(10_000))
	require.Equal(t, 2, p.Rates.Slots, "of those that answer")
}

// What a principal may not see is missing, and named; the rest is there.
func TestRead_SaysWhatMayNotBeSeen(t *testing.T) {
	t.Parallel()
	client := connect(t, natsiotest.Listening(t, natsio.Topology{}))
	_, end := waiting(t, client)
	defer end()
	require.NoError(t, client.Limits().Set(t.Context(), fleet.Limit{Tenant: "acme", Concurrent: 2}))
	require.NoError(t, client.Limits().Set(t.Context(), fleet.Limit{Tenant: "other", Concurrent: 1}))
	ctx := judge.With(t.Context(), judge.Principal{Known: judge.ByToken, Tenant: "acme", Name: "ann", Role: judge.RoleRun})
	p, err := overview.New(client, overview.Options{}).Read(ctx)
	require.NoError(t, err)
	require.Len(t, p.Workers, 1)
	require.Empty(t, p.Lanes)
	require.Len(t, p.Limits, 1)
	require.Equal(t, protocol.Tenant("acme"), p.Limits[0].Tenant)
	require.Len(t, p.Missing, 2)
	for i, part := range []string{"lanes of pool default", "lanes of pool session"} {
		require.Equal(t, part, p.Missing[i].Part)
		require.True(t, p.Missing[i].Denied)
	}
}

// A server that is away is an error at the end of the context, and the same reader continues when
// it is back.
func TestRead_ContinuesWhenTheServerIsBack(t *testing.T) {
	t.Parallel()
	options := embedded.Options{Data: t.TempDir(), Listen: "127.0.0.1:0"}
	server, err := embedded.Start(t.Context(), options)
	require.NoError(t, err)
	client, err := fleet.Connect(t.Context(), fleet.Options{URL: server.URL(), Creds: server.CredentialFile()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	reader := overview.New(client, overview.Options{})
	reads(t, reader, func(*overview.Picture) bool { return true })
	options.Listen = server.Address()
	server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = reader.Read(ctx)
	require.Error(t, err)
	server, err = embedded.Start(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	require.Eventually(t, func() bool {
		_, err := reader.Read(t.Context())
		return err == nil
	}, 3*time.Minute, 10*time.Millisecond)
}

// Of ten thousand lanes those that wait longest are read, in bounded time, and it is said how many
// more there are. A reading that takes long is not repeated at once.
func TestRead_TenThousandLanes(t *testing.T) {
	t.Parallel()
	const all = 10_000
	f := natsiotest.Listening(t, natsio.Topology{})
	publisher, err := lane.NewPublisher(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	for i := range all {
		call := &protocol.Call{
			ID: protocol.CallID(fmt.Sprintf("c%d", i)), SessionID: "s", Pool: protocol.DefaultPool, Tool: "bash",
			Resources: []protocol.Use{{Key: protocol.ResourceKey(fmt.Sprintf("account/%d", i)), Access: protocol.Exclusive}},
			Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: wire.Noop{},
		}
		require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: call}))
	}
	reader := overview.New(connect(t, f), overview.Options{})
	began := time.Now()
	p, err := reader.Read(t.Context())
	require.NoError(t, err)
	first := time.Since(began)
	require.Empty(t, p.Missing)
	require.Less(t, first, time.Minute)
	require.Len(t, p.Lanes, 100)
	require.Equal(t, all-100, p.LanesLeftOut)
	require.Equal(t, protocol.Lane("account/0"), p.Lanes[0].Lane)
	require.Equal(t, 100, p.Rates.Waiting)
	require.Len(t, p.Waits, 1)
	require.Equal(t,
		overview.Wait{WaitsFor: "pool default has no worker that answers", Wait: report.Wait{Reason: report.ReasonWorker, Pool: "default"}, Calls: 100, Lanes: 100},
		p.Waits[0])
	t.Logf("a picture of %d lanes: %s", all, first)
}

// A call that names a pool by mistake is seen, and what it waits for.
func TestRead_PoolsThatNoWorkerHasServed(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	client := connect(t, f)
	_, end := waiting(t, client)
	defer end()
	publisher, err := lane.NewPublisher(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: &protocol.Call{
		ID: "c", SessionID: "s", Pool: "dfault", Tool: "bash", Resources: []protocol.Use{{Key: "account/a", Access: protocol.Exclusive}},
		Delivery: protocol.Idempotent, IssuedAt: time.Now(), Payload: wire.Noop{},
	}}))
	unserved, err := client.UnservedPools(t.Context())
	require.NoError(t, err)
	require.Equal(t, []protocol.Pool{"dfault"}, unserved)
	p := reads(t, overview.New(client, overview.Options{}), func(p *overview.Picture) bool { return len(p.Lanes) == 1 })
	require.Equal(t, protocol.Pool("dfault"), p.Lanes[0].Pool)
	require.Equal(t, "pool dfault has no worker that answers", p.Lanes[0].WaitsFor)
	require.Equal(t, report.Wait{Reason: report.ReasonWorker, Pool: "dfault"}, p.Lanes[0].Wait)
	require.Equal(t, p.Lanes[0].Wait, p.Looks[0].Wait)
	require.Equal(t, "call of bash", p.Looks[0].What)
	require.Empty(t, p.Missing)
}

// holding is a host whose calls run until their lane is lost.
type holding struct {
	lane.DefaultHost

	started chan struct{}
}

func (h *holding) Execute(ctx context.Context, _ *lane.Run) protocol.Result {
	close(h.started)
	<-ctx.Done()
	return protocol.Result{Status: protocol.StatusCancelled, Error: protocol.Errorf(protocol.CodeCancelled, "it is over")}
}

func (h *holding) Release(protocol.Lane) {}

// What a lost lane waits for is said, also if no worker is there that could take it over.
func TestRead_ALostLane(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	client := connect(t, f)
	publisher, err := lane.NewPublisher(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: &protocol.Call{
		ID: "c", SessionID: "s", Pool: protocol.DefaultPool, Tool: "bash", Resources: []protocol.Use{{Key: "account/a", Access: protocol.Exclusive}},
		Delivery: protocol.Idempotent, IssuedAt: time.Now(), Payload: wire.Noop{},
	}}))
	nc, link := f.ConnectVia()
	host := &holding{started: make(chan struct{})}
	holder, err := lane.NewHolder(t.Context(), nc, host, lane.Options{Worker: "gone"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- holder.Run(ctx, ctx) }()
	defer func() {
		cancel()
		assert.NoError(t, <-done)
	}()
	<-host.started
	link.Cut()

	list, err := client.Lanes("").List(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, "lost", list.Lanes[0].State)
	require.Equal(t, "pool default has no worker that answers", list.Lanes[0].WaitsFor)
	require.Equal(t, report.Wait{Reason: report.ReasonWorker, Pool: "default"}, list.Lanes[0].Wait)
	shown, err := client.Lanes("").Show(t.Context(), "account/a", 0)
	require.NoError(t, err)
	require.Equal(t, list.Lanes[0].WaitsFor, shown.WaitsFor)

	other, err := f.NC.Subscribe(wire.WhoSubject(f.Name, protocol.DefaultPool), func(request *nats.Msg) {
		body, err := wire.Encode(&wire.WorkerInfo{
			WorkerID: "other", Pool: protocol.DefaultPool, Slots: 1, Driver: "process", Level: "process", Network: "all", Languages: []string{},
		})
		if err == nil {
			_ = request.Respond(body)
		}
	})
	require.NoError(t, err)
	defer func() { _ = other.Unsubscribe() }()
	require.NoError(t, f.NC.Flush())
	p := reads(t, overview.New(client, overview.Options{}), func(p *overview.Picture) bool {
		return len(p.Workers) > 1 && len(p.Lanes) > 0 && p.Lanes[0].SilentMS > 0
	})
	require.Equal(t, "another worker: its holder gone does not answer", p.Lanes[0].WaitsFor)
	require.Equal(t, overview.Lost, p.Workers[0].State)
	require.Equal(t, p.Lanes[0].SilentMS, p.Workers[0].SilentMS, "nobody has looked since it was lost, and its heartbeat says when that was")
	looks := slices.IndexFunc(p.Looks, func(l overview.Look) bool { return l.WorkerID == "gone" && l.Kind == overview.KindWorker })
	require.GreaterOrEqual(t, looks, 0)
	require.Equal(t, p.Workers[0].SilentMS, p.Looks[looks].AgeMS)
	require.Equal(t, report.Wait{Reason: report.ReasonLost, WorkerID: "gone", Pool: "default"}, p.Lanes[0].Wait)
	require.Equal(t, p.Lanes[0].Wait, p.Waits[0].Wait)
}

func TestWaits_AreSummedUpByReason(t *testing.T) {
	t.Parallel()
	const limited, unclaimed, earlier = "limit account/*: rate 60/min", "a slot: no worker has claimed the lane", "an earlier call of the lane, which runs"
	rate, slot, later := report.Wait{Reason: report.ReasonRate, Limit: "account/*"}, report.Wait{Reason: report.ReasonSlot}, report.Wait{Reason: report.ReasonNotBefore}
	require.Equal(t, []overview.Wait{
		{limited, rate, 6, 2},
		{earlier, report.Wait{Reason: report.ReasonLane}, 4, 2},
		{unclaimed, slot, 3, 1},
		{"its time", later, 1, 1},
	}, overview.Waits([]report.Lane{
		{WaitsFor: limited, Wait: rate, Waiting: 2},
		{WaitsFor: unclaimed, Wait: slot, Waiting: 3},
		{WaitsFor: "its time", Wait: later, Delayed: 1},
		{WaitsFor: limited, Wait: rate, Waiting: 4},
		{WaitsFor: earlier, Wait: report.Wait{Reason: report.ReasonLane, SessionID: "s", CallID: "c"}, Waiting: 3},
		{WaitsFor: earlier, Wait: report.Wait{Reason: report.ReasonLane, SessionID: "s", CallID: "d"}, Waiting: 1},
		{Waiting: 1},
	}))
}
