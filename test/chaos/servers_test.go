//go:build linux

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// serverLease outlives a server that fails: renewals wait for the next one.
const serverLease = 6 * time.Second

func TestChaos_EmbeddedServerRestarts(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	run(t, setup{faults: 2, pause: time.Second, lease: serverLease}, restartServer)
}

func TestChaos_EmbeddedServerIsKilled(t *testing.T) { //nolint:paralleltest // see side
	run(t, setup{faults: 3, pause: time.Second, lease: serverLease}, killServer)
}

// restartServer stops a server in order and starts it again.
func restartServer(r *rig) {
	i := r.random.IntN(len(r.servers))
	from := now()
	r.servers[i].stop()
	r.startServer(i)
	r.awaitLeaders()
	r.fault("restart server", Fault{From: from, Until: now()})
}

// killServer is kill -9 of a server; it starts again with its data.
func killServer(r *rig) {
	i := r.random.IntN(len(r.servers))
	from := now()
	r.servers[i].kill()
	r.startServer(i)
	r.awaitLeaders()
	r.fault("kill server", Fault{From: from, Until: now()})
}

func TestChaos_ClusterLeadersChange(t *testing.T) { //nolint:paralleltest // see side
	long(t)
	run(t, setup{servers: 3, faults: 8, pause: 300 * time.Millisecond, lease: serverLease}, stepDown)
}

func TestChaos_ClusterServersFail(t *testing.T) { //nolint:paralleltest // see side
	long(t)
	run(t, setup{servers: 3, faults: 1, pause: time.Second, lease: serverLease}, killServer, stopServer, wipeServer)
}

func TestChaos_ClusterIsParted(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	run(t, setup{servers: 3, cabled: true, faults: 2, pause: time.Second, lease: serverLease}, partServer)
}

// partServer cuts a server off from the others for a while, but not from its clients: in that time
// it may lead what the others have another leader for.
func partServer(r *rig) {
	i := r.random.IntN(len(r.servers))
	cut := func(do func(*natsiotest.Cable)) {
		for ends, c := range r.cables {
			if ends[0] == i || ends[1] == i {
				do(c)
			}
		}
	}
	from := now()
	cut((*natsiotest.Cable).Sever)
	pause.For(r.t.Context(), time.Duration(r.random.Int64N(int64(20*time.Second))))
	cut((*natsiotest.Cable).Mend)
	r.awaitLeaders()
	r.fault("part server", Fault{From: from, Until: now()})
}

// stopServer is SIGSTOP of a server, and SIGCONT a while later.
func stopServer(r *rig) {
	s := r.servers[r.random.IntN(len(r.servers))]
	from := now()
	s.freeze()
	pause.For(r.t.Context(), time.Duration(r.random.Int64N(int64(8*time.Second))))
	s.thaw()
	r.awaitLeaders()
	r.fault("stop server", Fault{From: from, Until: now()})
}

// wipeServer is kill -9 of a server and the loss of its disk. What only it and one of the others
// have would then be on one disk, so the others have all there is before, and it has it again
// before anything else happens. It comes back when they have agreed on leaders: before that it
// could help one of them to lead that has less.
func wipeServer(r *rig) {
	i := r.random.IntN(len(r.servers))
	r.awaitReplicas()
	from := now()
	r.servers[i].kill()
	r.awaitLeaders()
	require.NoError(r.t, os.RemoveAll(r.servers[i].role.Data))
	r.startServer(i)
	r.awaitReplicas()
	r.fault("wipe server", Fault{From: from, Until: now()})
}

// stepDown has the leader of a stream or of the pool's consumer give up its place.
func stepDown(r *rig) {
	fleet := protocol.DefaultFleet
	subject := []string{
		"$JS.API.STREAM.LEADER.STEPDOWN." + wire.CallsStream(fleet),
		"$JS.API.STREAM.LEADER.STEPDOWN." + wire.ResultsStream(fleet),
		"$JS.API.CONSUMER.LEADER.STEPDOWN." + wire.CallsStream(fleet) + "." + wire.ReadyConsumer(protocol.DefaultPool),
	}[r.random.IntN(3)]
	from := now()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	answer, err := r.nc.RequestWithContext(ctx, subject, nil)
	if err != nil {
		return // no leader yet since the last time
	}
	var done struct {
		Success bool `json:"success"`
	}
	require.NoError(r.t, json.Unmarshal(answer.Data, &done))
	if done.Success {
		r.fault("step down", Fault{From: from, Until: now()})
	}
}

// awaitLeaders waits until the streams and the pool's consumer answer.
func (r *rig) awaitLeaders() { r.awaitCluster(func(int) bool { return true }) }

// awaitReplicas waits until every replica of them has caught up as well. The leaders say so for a
// while of a server that has just lost its disk, so each server is asked for itself.
func (r *rig) awaitReplicas() {
	r.t.Helper()
	for _, s := range r.servers {
		require.Eventually(r.t, func() bool { return s.healthy(r.t.Context()) }, patience, 50*time.Millisecond, "%s does not catch up", s.role.Name)
	}
	r.awaitCluster(func(current int) bool { return current == len(r.servers)-1 })
}

// healthy reports whether a server says that it has all that the others have.
func (n *node) healthy(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	question, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/healthz", n.role.HealthPort), nil)
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(question)
	if err != nil {
		return false
	}
	return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
}

func (r *rig) awaitCluster(enough func(replicas int) bool) {
	r.t.Helper()
	fleet := protocol.DefaultFleet
	require.Eventually(r.t, func() bool {
		ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Second)
		defer cancel()
		for _, name := range []string{wire.CallsStream(fleet), wire.ResultsStream(fleet)} {
			stream, err := r.js.Stream(ctx, name)
			if err != nil {
				return false
			}
			info := stream.CachedInfo()
			if len(r.servers) > 1 && (info.Cluster == nil || info.Cluster.Leader == "" || !enough(current(info.Cluster.Replicas))) {
				return false
			}
		}
		consumer, err := r.js.Consumer(ctx, wire.CallsStream(fleet), wire.ReadyConsumer(protocol.DefaultPool))
		if err != nil {
			return false
		}
		info := consumer.CachedInfo()
		return len(r.servers) == 1 || info.Cluster != nil && info.Cluster.Leader != "" && enough(current(info.Cluster.Replicas))
	}, patience, 50*time.Millisecond, "no leaders")
}

// current is how many replicas have caught up.
func current(replicas []*jetstream.PeerInfo) (n int) {
	for _, replica := range replicas {
		if replica.Current && !replica.Offline {
			n++
		}
	}
	return n
}

// idleMargin is how much longer than a lease a lane may stand idle although calls wait in it, of
// which nobody who lives knows: a worker that was killed right after it was told of them keeps them
// from the others for 5 s, and these look once a second.
const idleMargin = 9 * time.Second

// Nobody puts again what callers had put when they were killed, and nobody waits for it.
func TestChaos_CallersNeverComeBack(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	s := setup{faults: 6, pause: time.Second, slots: 32, orphans: true}
	report := run(t, s, abandonCaller, abandonCaller, killWorker)
	bound := leaseOf(&s) + idleMargin
	t.Logf("lane %s stood idle for %s while calls waited, the longest time of all; the bound is %s",
		report.IdleLane, report.Idle.Round(time.Millisecond), bound)
	require.LessOrEqual(t, report.Idle, bound+report.Stalled)
}

// abandonCaller is kill -9 of the callers in the middle of what they do, for good; others come,
// with calls and lanes of their own.
func abandonCaller(r *rig) {
	require.Eventually(r.t, func() bool { return r.caller.ended() || r.callerLog() > 0 }, patience, 10*time.Millisecond)
	pause.For(r.t.Context(), time.Duration(r.random.Int64N(int64(r.setup.pause))))
	enough := *callCount > 0 && r.orphans >= *callCount || *limit > 0 && time.Since(r.since) > *limit
	if r.caller.ended() || enough { // let those that are there come to their end
		return
	}
	r.caller.kill()
	log, err := os.ReadFile(r.callerPath())
	require.NoError(r.t, err)
	r.orphans += bytes.Count(log, []byte(`"kind":"put"`))
	r.orphaned++
	r.startCaller()
	r.counts["kill caller for good"]++
}

// watchCalls notes when the stream took each call, for callers that do not live to write it down.
// It does not see a call that is removed at once.
func (r *rig) watchCalls() {
	r.t.Helper()
	fleet := protocol.DefaultFleet
	r.entered = map[protocol.CallID]Time{}
	consumer, err := r.js.OrderedConsumer(r.t.Context(), wire.CallsStream(fleet), jetstream.OrderedConsumerConfig{HeadersOnly: true})
	require.NoError(r.t, err)
	watching, err := consumer.Consume(func(msg jetstream.Msg) {
		id := protocol.CallID(msg.Headers().Get(wire.HeaderCall))
		meta, err := msg.Metadata()
		if id == "" || err != nil { // marks name no call
			return
		}
		if at := Time(meta.Timestamp.UnixNano() - int64(r.offset)); r.entered[id] == 0 || at < r.entered[id] {
			r.entered[id] = at
		}
	})
	require.NoError(r.t, err)
	r.stopWatching = func() {
		watching.Stop()
		<-watching.Closed()
	}
	r.t.Cleanup(r.stopWatching)
}

// addEntered adds to a history what watchCalls saw.
func (r *rig) addEntered(h *History) {
	if r.stopWatching == nil {
		return
	}
	r.stopWatching()
	for id, at := range r.entered {
		require.NotNil(r.t, h.Calls[id], "call %s is in the stream, and nobody has put it", id)
		h.Calls[id].Entered = at
	}
}

// serverRole is a server: the embedded one, or one of several.
type serverRole struct {
	Name, Data  string
	Port        int
	ClusterPort int      // 0 is the embedded one
	Routes      []string // cluster addresses of the others, or of the cables to them
	Cabled      bool     // the others are reached through cables only
	Log         string   // of the embedded one: when the machine kept it from running
	HealthPort  int      // where it says over HTTP whether it has all that the others have
}

var errNotReady = errors.New("not ready in time")

func (s *serverRole) run(ctx context.Context) error {
	if s.ClusterPort == 0 {
		log, err := openJournal(s.Log)
		if err != nil {
			return err
		}
		running, err := embedded.Start(ctx, embedded.Options{Data: s.Data, Listen: fmt.Sprintf("127.0.0.1:%d", s.Port)})
		if err != nil {
			return err
		}
		log.watch(ctx)
		running.Close()
		return nil
	}
	o := &server.Options{
		ServerName: s.Name, Host: "127.0.0.1", Port: s.Port, NoSigs: true, JetStream: true, StoreDir: s.Data,
		Debug: true, Logtime: true, LogtimeUTC: true, // who led what and when: without it no violation can be explained
		HTTPHost: "127.0.0.1", HTTPPort: s.HealthPort,
		Cluster: server.ClusterOpts{Name: "toolfleet-chaos", Host: "127.0.0.1", Port: s.ClusterPort},
	}
	if s.Cabled {
		o.Cluster.Advertise = "127.0.0.1:1" // nobody finds a way around the cables
	}
	for _, route := range s.Routes {
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: route})
	}
	running, err := server.NewServer(o)
	if err != nil {
		return err
	}
	running.ConfigureLogger()
	running.Start()
	if !running.ReadyForConnections(time.Minute) {
		return errNotReady
	}
	<-ctx.Done()
	running.Shutdown()
	running.WaitForShutdown()
	return nil
}
