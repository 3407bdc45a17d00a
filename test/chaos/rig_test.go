//go:build linux

package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// setup is what a test wants around its fault.
type setup struct {
	servers int           // 1 or 3
	workers int           // default 3
	slots   int           // of each worker; default 8
	lanes   int           // default 12
	lease   time.Duration // default [leaseOf]
	proxied bool          // workers and callers reach the servers through a cable of their own
	cabled  bool          // servers reach each other through cables
	orphans bool          // callers are killed for good: nobody resumes what they have put
	// faults is how many faults the short form injects; the long one goes on until its calls are
	// made.
	faults int
	// pause is the longest time without a fault, between two of them.
	pause time.Duration
}

// rig is servers, workers and callers as processes, and what a test did to them.
type rig struct {
	t            *testing.T
	setup        setup
	dir          string
	random       *rand.Rand
	servers      []*node
	cables       map[[2]int]*natsiotest.Cable // from one server to another
	workers      []*member
	caller       *member
	bodies       *natsiotest.Cable // to the store of bodies; nil when the server has them
	store        string            // its URL
	nc           *nats.Conn
	js           jetstream.JetStream
	begun        int // members, for their names
	faults       []Fault
	orphaned     int                      // lives of callers that nobody goes on with
	orphans      int                      // what they have put
	entered      map[protocol.CallID]Time // calls seen in the calls stream; see watchCalls
	stopWatching func()
	leases       leases
	// remembered is how much the callers had written down when they were started last.
	remembered int64
	counts     map[string]int // faults by name
	logs       []string
	offset     time.Duration // wall clock minus monotonic clock
	since      time.Time     // when the test began
}

// node is a server process.
type node struct {
	*process

	role serverRole
}

// member is a worker or caller process.
type member struct {
	*process

	id    protocol.WorkerID
	cable *natsiotest.Cable // nil when it is not proxied
}

// newRig starts servers, workers and callers.
func newRig(t *testing.T, s setup) *rig {
	t.Helper()
	s.workers = max(s.workers, 3)
	r := newPlace(t, s)
	r.watchCalls()
	for range s.workers {
		r.startWorker()
	}
	r.startCaller()
	return r
}

// newPlace starts the servers only.
func newPlace(t *testing.T, s setup) *rig {
	t.Helper()
	s.slots, s.lanes = cmp.Or(s.slots, 8), max(s.lanes, 12)
	s.lease = cmp.Or(s.lease, leaseOf(&s))
	r := &rig{
		t: t, setup: s, dir: t.TempDir(), counts: map[string]int{}, cables: map[[2]int]*natsiotest.Cable{},
		random: rand.New(rand.NewPCG(*seed, uint64(len(t.Name())))), offset: offset(), since: time.Now(),
	}
	if *keep != "" {
		r.dir = filepath.Join(*keep, strings.ReplaceAll(t.Name(), "/", "_"))
		require.NoError(t, os.MkdirAll(r.dir, 0o700))
	}
	if s.proxied || s.cabled {
		r.watchCables()
	}
	r.startServers()
	r.connect()
	r.watchLeases()
	return r
}

// leaseOf is a lease for workers of one server. In the short form, which runs beside other tests,
// it is longer: a renewal is sent two fifths of a lease before that is not trusted any more, and
// each process that it and its answer pass may be kept from running for [longTick] without
// anybody's notice.
func leaseOf(s *setup) time.Duration {
	switch {
	case *callCount > 0:
		return time.Second
	case s.proxied:
		return 4 * time.Second
	}
	return 2 * time.Second
}

// watchCables writes down when the machine keeps this process from running, which carries what the
// others say to each other.
func (r *rig) watchCables() {
	r.t.Helper()
	path := r.path("cables.log")
	log, err := openJournal(path)
	require.NoError(r.t, err)
	r.logs = append(r.logs, path)
	ctx, stop := context.WithCancel(context.WithoutCancel(r.t.Context()))
	var watcher sync.WaitGroup
	watcher.Go(func() { log.watch(ctx) })
	r.t.Cleanup(func() {
		stop()
		watcher.Wait()
		if err := log.file.Close(); err != nil {
			r.t.Errorf("log of the cables: %v", err)
		}
	})
}

// offset is the wall clock minus the monotonic clock.
func offset() time.Duration { return time.Duration(time.Now().UnixNano() - int64(now())) }

// path is a file of this test.
func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) startServers() {
	r.t.Helper()
	n := max(r.setup.servers, 1)
	ports := natsiotest.FreePorts(r.t, 3*n)
	for i := range n {
		role := serverRole{Name: fmt.Sprintf("n%d", i+1), Data: r.path(fmt.Sprintf("server-%d", i+1)), Port: ports[i]}
		if n > 1 {
			role.ClusterPort, role.HealthPort = ports[n+i], ports[2*n+i]
			role.Routes, role.Cabled = r.routes(i, ports[n:2*n]), r.setup.cabled
		} else {
			role.Log = r.path(role.Name + ".log")
			r.logs = append(r.logs, role.Log)
		}
		r.servers = append(r.servers, &node{role: role})
		r.startServer(i)
	}
}

// routes is how a server reaches the others, which listen on the given ports.
func (r *rig) routes(i int, ports []int) (routes []string) {
	r.t.Helper()
	for n, port := range ports {
		if n == i {
			continue
		}
		route := fmt.Sprintf("127.0.0.1:%d", port)
		if r.setup.cabled {
			cable := natsiotest.NewCable(r.t, route)
			r.cables[[2]int{i, n}], route = cable, cable.Address()
		}
		routes = append(routes, route)
	}
	return routes
}

// startServer starts a server, with the data that it had, and does not wait for it.
func (r *rig) startServer(i int) {
	r.t.Helper()
	s := r.servers[i]
	s.process = spawn(r.t, "server", &s.role, r.path(s.role.Name+".stderr"))
}

// url names all servers.
func (r *rig) url() string {
	urls := make([]string, len(r.servers))
	for i, s := range r.servers {
		urls[i] = fmt.Sprintf("nats://127.0.0.1:%d", s.role.Port)
	}
	return strings.Join(urls, ",")
}

// creds is the token file of the embedded server; a cluster has none.
func (r *rig) creds() string {
	if len(r.servers) > 1 {
		return ""
	}
	return filepath.Join(r.servers[0].role.Data, embedded.TokenFile)
}

// connect makes the test's own connection, and the streams of the fleet.
func (r *rig) connect() {
	r.t.Helper()
	ctx := context.WithoutCancel(r.t.Context())
	require.Eventually(r.t, func() bool {
		nc, err := natsio.Connect(ctx, r.url(), natsio.ConnectOptions{Name: "test", Creds: r.creds()})
		r.nc = nc
		return err == nil
	}, patience, 20*time.Millisecond, "no server answers")
	r.t.Cleanup(r.nc.Close)
	var err error
	r.js, err = jetstream.New(r.nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(r.t, err)
	replicas := len(r.servers)
	require.Eventually(r.t, func() bool {
		if err = natsio.Ensure(r.t.Context(), r.js, natsio.Topology{Storage: natsio.Storage{Replicas: replicas}}); err == nil {
			_, _, err = natsio.EnsurePool(r.t.Context(), r.js, protocol.DefaultFleet, protocol.DefaultPool, r.setup.lease)
		}
		return err == nil
	}, patience, 50*time.Millisecond, "no streams")
}

// through gives a member a network of its own, if the test wants that.
func (r *rig) through(m *member) string {
	if !r.setup.proxied {
		return r.url()
	}
	m.cable = natsiotest.NewCable(r.t, fmt.Sprintf("127.0.0.1:%d", r.servers[0].role.Port))
	return "nats://" + m.cable.Address()
}

// startWorker starts one more worker.
func (r *rig) startWorker() {
	r.t.Helper()
	r.begun++
	m := &member{id: protocol.WorkerID(fmt.Sprintf("w-%d", r.begun))}
	role := workerRole{URL: r.through(m), Creds: r.creds(), Log: r.path(string(m.id) + ".log"), Worker: m.id, Slots: r.setup.slots}
	m.process = spawn(r.t, "worker", &role, r.path(string(m.id)+".stderr"))
	r.workers = append(r.workers, m)
	r.logs = append(r.logs, role.Log)
}

// callerPath is the log of the callers: of all their lives until nobody goes on with them.
func (r *rig) callerPath() string { return r.path(fmt.Sprintf("caller-%d.log", r.orphaned)) }

// callerLog is how much the callers have written down.
func (r *rig) callerLog() int64 {
	info, err := os.Stat(r.callerPath())
	if os.IsNotExist(err) {
		return 0
	}
	require.NoError(r.t, err)
	return info.Size()
}

// startCaller starts the callers, or starts them again.
func (r *rig) startCaller() {
	r.t.Helper()
	m := &member{id: "caller"}
	role := callerRole{
		workload: workload{Seed: *seed, Lanes: r.setup.lanes, Life: r.orphaned},
		URL:      r.through(m), Creds: r.creds(), Log: r.callerPath(), Until: r.path("enough"),
		Callers: 16, Calls: 300, Think: 30 * time.Millisecond, Patience: patience,
	}
	if *callCount > 0 {
		role.Callers, role.Calls, role.Think, role.Lanes, role.Bursts = 64, max(1, *callCount-r.orphans), 0, 4*r.setup.lanes, true
	}
	if *limit > 0 {
		role.Deadline = r.since.Add(*limit)
	}
	if !slices.Contains(r.logs, role.Log) {
		r.logs = append(r.logs, role.Log)
	}
	r.remembered = r.callerLog()
	m.process = spawn(r.t, "caller", &role, r.path("caller.stderr"))
	r.caller = m
}

// The environment of a process that a test has started.
const (
	roleVariable   = "CHAOS_ROLE"
	configVariable = "CHAOS_CONFIG"
)

var (
	seed      = flag.Uint64("seed", 0, "seed of the faults and the calls; 0 chooses one and prints it")
	callCount = flag.Int("calls", 0, "calls per fault; 0 is the short form")
	limit     = flag.Duration("limit", 0, "how long calls are made at most, in the long form; 0 is until they are enough")
	keep      = flag.String("keep", "", "directory in which the logs of every test are kept")
)

func TestMain(m *testing.M) {
	if name := os.Getenv(roleVariable); name != "" {
		os.Exit(play(name))
	}
	natsiotest.Overlap()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	if err := errors.Join(os.Setenv("AWS_ACCESS_KEY_ID", "key"), os.Setenv("AWS_SECRET_ACCESS_KEY", "secret")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// role is the configuration of a process, and what it does.
type role interface {
	run(ctx context.Context) error
}

// play is the main function of a process that a test has started.
func play(name string) int {
	roles := map[string]role{"worker": &workerRole{}, "caller": &callerRole{}, "server": &serverRole{}, "machine": &machineRole{}, "coordinator": &coordinatorRole{}}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := json.Unmarshal([]byte(os.Getenv(configVariable)), roles[name])
	if err == nil {
		err = roles[name].run(ctx)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return 0 // it was stopped before it had begun
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	return 0
}
