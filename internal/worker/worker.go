// Package worker executes calls: it claims lanes of the fleet, opens a sandbox for each, runs
// payloads in it, and answers with typed results.
//
//	lane.Holder ──Execute──► Worker ──► kinds: the function of the payload's kind
//	     │                      │          │
//	     │                      │          └──► sandboxes: open, reuse, close ──► pkg/sandbox
//	     │                      ├──► results: what a message cannot carry
//	     │                      └──► checkpoint: what the call changed ──► fleet
//	     └──────Release───────► sandbox idle or closed; the workspace stays
//
// This package is the host: options, the lane engine's [lane.Host], and a call from its claim to
// its result. To add a kind of payload, see package kinds.
//
// A worker has no state but workspaces. With checkpoints the fleet stores them, and any worker
// continues. Otherwise they are in its data directory, and outlive it: another worker with the same
// directory (a restart, a neighbour on the machine, a shared volume) continues. A worker with
// another directory leaves its calls to a worker that has it, or answers "workspace_unavailable" if
// none lives, instead of starting over in an empty one.
//
// A failure of a tool is a result. So is a panic while a payload is executed: it is recovered here
// and nowhere else.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/mcp/login"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const flushTimeout = 2 * time.Second

// MaxSlots bounds the calls that a worker runs at once, wherever a user sets that.
const MaxSlots = 4096

// DefaultLinger is how long an idle lane is held.
const DefaultLinger = 5 * time.Second

// Options of a [Worker]; zero values mean the documented default.
type Options struct {
	// Options are those of the lanes. Defaults: Worker is the host name and a random suffix, Slots
	// 4, Linger [DefaultLinger]. With a negative Linger an idle lane is not held, and its sandbox
	// is closed. The worker sets Disk.
	lane.Options
	// Settings of sandboxes. Driver and Caps are required.
	sandboxes.Settings
	// Capabilities are what calls can use in addition to a sandbox. Without Logins.Dir, logins are
	// in Data.
	kinds.Capabilities

	// Build is the version of the program, which the worker reports.
	Build string
	// Data is the directory of workspaces. Required.
	Data string
	// Bodies is the S3 store of the fleet's workspaces, see [workspace.Open]; "" without one.
	Bodies string
	// Allow is what calls reach of the network; the zero value is nothing. Hosts are reached
	// through a proxy, and only at public addresses or in the ranges of AllowPrivate; never the
	// fleet's own servers.
	Allow        egress.Allow
	AllowPrivate []netip.Prefix
	// Publish are ports of sandboxes that this host reaches.
	Publish []Published
	// Alone says that the pool never has another worker: calls that this one cannot run are
	// refused.
	Alone bool
	// Tracer and Meter make spans and metrics; nil is what the process has installed.
	Tracer trace.Tracer
	Meter  metric.Meter
}

func (o Options) withDefaults() Options {
	o.Fleet, o.Pool = cmp.Or(o.Fleet, protocol.DefaultFleet), cmp.Or(o.Pool, protocol.DefaultPool)
	if o.Worker == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "worker"
		}
		o.Worker = wire.NewWorkerID(host)
	}
	if o.Slots <= 0 {
		o.Slots = 4
	}
	o.Linger = cmp.Or(o.Linger, DefaultLinger)
	o.CacheBytes, o.WarmBytes = cmp.Or(o.CacheBytes, sandboxes.DefaultCacheBytes), cmp.Or(o.WarmBytes, sandboxes.DefaultWarmBytes())
	if o.Background <= 0 {
		o.Background = kinds.DefaultBackground
	}
	if o.Logins.Dir == "" {
		o.Logins = LoginsIn(o.Data)
		o.Logins.Advice = func(server string) string {
			return fmt.Sprintf(`run "worker login %s --data %s --mcp-config FILE" where worker %s runs`, server, o.Data, o.Worker)
		}
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Tracer = cmp.Or(o.Tracer, telemetry.Tracer())
	o.Meter = cmp.Or(o.Meter, telemetry.Meter())
	if o.Workspace == nil {
		o.Workspace = func(string) (string, bool) { return "", false }
	}
	env := map[string]string{"PATH": os.Getenv("PATH"), "LANG": "C.UTF-8", "TERM": "dumb"}
	if o.Allow.Empty() && o.Caps.Enforces(isolation.NetworkNone) {
		maps.Copy(env, offlineEnv())
	}
	maps.Copy(env, o.Env)
	o.Env = env
	return o
}

// LoginsIn are the logins of a worker with this data directory.
func LoginsIn(data string) login.Store { return login.Store{Dir: filepath.Join(data, "logins")} }

// Worker takes calls of one pool and executes them. Make one with [New] and run it once.
type Worker struct {
	lane.DefaultHost

	options Options
	env     *kinds.Env
	holder  *lane.Holder
	metrics *telemetry.WorkerMetrics
}

// New opens the streams and stores of the fleet, which must exist, and the worker's data directory.
func New(ctx context.Context, nc *nats.Conn, o Options) (*Worker, error) {
	o = o.withDefaults()
	if o.Driver == nil || o.Data == "" {
		return nil, errors.New("worker: a sandbox driver and a data directory are required")
	}
	if err := errors.Join(o.Handlers.Validate(), isolation.ValidateLimits(o.Limits)); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	if _, err := natsio.Open(ctx, js.ObjectStore, wire.BlobsBucket(o.Fleet)); err != nil {
		return nil, fmt.Errorf("worker: object store %s: %w", wire.BlobsBucket(o.Fleet), err)
	}
	stored, err := results.Open(ctx, js, o.Fleet)
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	w := &Worker{options: o, metrics: telemetry.NewWorkerMetrics(o.Meter, string(o.Pool), o.Caps.Driver, o.Caps.Level.String())}
	workspaces, err := workspace.Open(ctx, nc, o.Fleet, o.Bodies)
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	network, err := o.network(nc)
	if err != nil {
		return nil, err
	}
	opened, err := sandboxes.New(sandboxes.Options{
		Settings: o.Settings, Worker: o.Worker, Data: o.Data, Workspaces: workspaces,
		Network: network.Sandboxes, Idle: o.Linger > 0, Slots: o.Slots, Logger: o.Logger, Metrics: w.metrics,
	})
	if err != nil {
		return nil, err
	}
	w.env = &kinds.Env{
		Capabilities: o.Capabilities, Sandbox: o.Settings, Network: network, ID: o.Worker, Fleet: o.Fleet, Logger: o.Logger, Sandboxes: opened,
		Remote: kinds.Remote{NC: nc, JS: js, Keys: o.Keys, Results: stored, Workspaces: workspaces, Result: func(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
			return w.holder.Result(ctx, session, call)
		}},
	}
	if err := w.env.Open(ctx, o.Data); err != nil { // calls fail for the same reason
		o.Logger.WarnContext(ctx, "sandbox cannot be used", slog.Any("error", err))
	}
	lanes := o.Options
	lanes.Linger, lanes.Disk = max(o.Linger, 0), w.env.Sandboxes.Disk()
	w.holder, err = lane.NewHolder(ctx, nc, w, lanes)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// ID is the worker's id.
func (w *Worker) ID() protocol.WorkerID { return w.options.Worker }

// Languages returns the languages that code_run can run in this worker's sandboxes, sorted.
func (w *Worker) Languages() []string { return w.env.Languages() }

// Lease is the length of the pool's leases: within it another worker takes over from a lost one.
func (w *Worker) Lease() time.Duration { return w.holder.Lease() }

// Running is how many of the slots are in use.
func (w *Worker) Running() int {
	_, used, _ := w.holder.Load()
	return used
}

// Run accepts calls until ctx ends, then drains: running calls may finish until drain ends, and are
// killed then. It returns when all of them have ended.
func (w *Worker) Run(ctx, drain context.Context) error {
	unobserved := w.metrics.Observe(ctx, w.holder.Load)
	defer unobserved()
	unpublish := w.publish(ctx)
	stop := natsio.Describe(ctx, w.env.NC, w.options.Fleet, w.options.Pool, w.Info, w.options.Logger)
	var evicting sync.WaitGroup
	evicting.Go(func() { w.env.Sandboxes.RunEviction(ctx) })
	err := w.holder.Run(ctx, drain)
	stop()
	evicting.Wait()
	unpublish()
	w.env.Sandboxes.CloseAll() //nolint:contextcheck // the end must be done
	w.env.Network.Pages.CloseIdleConnections()
	if w.env.Network.Servers != nil {
		w.env.Network.Servers.CloseIdleConnections()
	}
	// The last of what it sent may be that its lanes are free: let it arrive before the connection
	// ends.
	_ = natsio.Flush(ctx, w.env.NC, flushTimeout) // without a connection leases end by themselves
	return err
}

// reach is what programs reach of the network.
func (w *Worker) reach() isolation.NetworkMode {
	network := cmp.Or(w.env.Network.Sandboxes.Mode, isolation.NetworkNone)
	if !w.options.Caps.Enforces(network) { // what is not kept away is reached
		return isolation.NetworkAll
	}
	return network
}

// reached is what calls of a kind reach, as results have it.
func (w *Worker) reached(kind protocol.Kind) string {
	network := w.reach()
	if class := wire.ClassOf(kind); network == isolation.NetworkNone || class == wire.ClassRead || class == wire.ClassWrite {
		return ""
	}
	return string(network)
}

// Info is what the worker says about itself.
func (w *Worker) Info() wire.WorkerInfo {
	o := w.options
	l := o.Limits
	info := wire.WorkerInfo{
		WorkerID: o.Worker, Pool: o.Pool, Build: o.Build,
		Driver: o.Caps.Driver, Launcher: o.Caps.Launcher, Level: o.Caps.Level.String(), Network: string(w.reach()), ReadOnly: o.Caps.ReadOnly,
		LimitKinds: w.env.LimitKinds(), Languages: append([]string{}, w.Languages()...), Kinds: o.Handlers.Kinds(),
		Limits: protocol.Limits{
			Wall: protocol.MillisOf(l.Wall), CPU: protocol.MillisOf(l.CPU), Memory: l.Memory, Processes: l.Processes,
			OpenFiles: l.OpenFiles, FileSize: l.FileSize, Disk: l.Disk, Output: l.Output,
		},
	}
	w.holder.Describe(&info)
	return info
}

// NoSandboxes is the driver of a worker that runs its handlers only.
const NoSandboxes = sandboxes.NoDriver

// ErrNothingToRun says that a worker has neither sandboxes nor handlers.
var ErrNothingToRun = errors.New("a worker without sandboxes and without handlers could run nothing")

// OpenDriver is [drivers.Open], and knows [NoSandboxes], too.
func OpenDriver(ctx context.Context, name string, o *drivers.Options, handlers kinds.Handlers) (isolation.Driver, isolation.Caps, error) {
	switch {
	case name != NoSandboxes:
		return drivers.Open(ctx, name, o)
	case !handlers.Any():
		return nil, isolation.Caps{}, ErrNothingToRun
	}
	return none{}, isolation.Caps{Driver: NoSandboxes}, nil
}

// none is the driver that opens nothing.
type none struct{}

func (none) Name() string { return NoSandboxes }

func (none) Probe(context.Context) (isolation.Caps, error) {
	return isolation.Caps{Driver: NoSandboxes}, nil
}

func (none) Open(context.Context, isolation.Spec) (sandbox.Sandbox, error) {
	return nil, errNoSandboxes
}

var errNoSandboxes = errors.New("this worker has no sandboxes (--sandbox none)")
