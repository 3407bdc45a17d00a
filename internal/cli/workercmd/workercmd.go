// Package workercmd is the command line of a worker: of cmd/worker, and of the
// workers that users build with handlers of their own (pkg/worker).
package workercmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/doctor"
	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/join"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
)

// flags is the command line of the worker.
type flags struct {
	cli.Common

	Nats           string `placeholder:"URL" brief:"NATS servers of the fleet. Required." help:"NATS server or servers of the fleet, separated by commas. Required."`
	fleetFlags     `group:"Fleet:"`
	Slots          int    `default:"4" help:"Concurrent calls."`
	Name           string `placeholder:"NAME" help:"Name of this worker, shown wherever workers are: up to 32 letters, digits, '-' and '_'. Its id is the name and a random suffix. Default: the host's name."`
	sandboxFlags   `group:"Sandbox:"`
	workspaceFlags `group:"Workspaces:"`
	Tools          string        `placeholder:"DIR" brief:"Folder with the programs of your own tools." help:"Folder with the programs of your own tools; sandboxes can read it."`
	Background     time.Duration `default:"1h" help:"Maximum lifetime of a background process. While it runs, its sandbox stays on this worker."`
	Drain          time.Duration `default:"30s" help:"Time that running calls get after SIGTERM."`
}

// fleetFlags say which calls the worker takes, and how it reaches them.
type fleetFlags struct {
	cli.Connection
	Join     string        `placeholder:"TOKEN" brief:"Token of coordinator join-token add: instead of --nats." help:"Token that coordinator serve --listen or coordinator join-token add has printed, or a file with it: it says where the fleet is, how it is trusted, which calls run, and the pool. Other users of this machine see a command line, but not TOOLFLEET_JOIN or a file."`
	CallKeys string        `placeholder:"FILE" brief:"Public keys of trusted signers; others are rejected." help:"Public keys (PEM, Ed25519) of the trusted signers; other calls are rejected. The file is read again when it changes. Default: run every call of the fleet."`
	Pool     string        `default:"default" brief:"Pool whose calls the worker runs." help:"Pool whose calls the worker runs."`
	Lease    time.Duration `default:"0s" help:"Lease, applied only when the pool is created; 0 means the pool's lease, or 10s."`
	cli.Storage
	cli.Tracing
}

// sandboxFlags say what the sandboxes of the worker are.
type sandboxFlags struct {
	SandboxFlags
	MinLevel     string   `default:"none" enum:"none,paths,full,kernel" placeholder:"LEVEL" brief:"Start only if sandboxes prove this level." help:"Minimum level that sandboxes must prove: none, paths, full or kernel. Otherwise the worker does not start, and says what to set."`
	WarmMemory   cli.Size `default:"${warm_memory}" placeholder:"SIZE" help:"Memory for idle open sandboxes, 2M each, in addition to one per slot: a session that uses one again need not wait for a new sandbox. 0 means none. Default: an eighth of the memory of this machine or container. At most a sixth as many are open as this process may open files."`
	SandboxCheck bool     `brief:"Test the sandboxes of this host, and exit." help:"Test the sandboxes of this host, print the proven level and how to fix what is missing, and exit: 0 for level full, 4 for less, 1 for none."`
	JSON         bool     `name:"json" help:"Print the result of --sandbox-check as JSON."`
}

// SandboxFlags set up the sandboxes of a worker, which may be inside a coordinator.
type SandboxFlags struct {
	Sandbox string            `default:"${sandbox=auto}" placeholder:"DRIVER" brief:"Isolation: auto, ns, landlock, process or none." help:"Sandbox driver: auto (the best that isolates here), ns (namespaces), landlock (paths only), process (no isolation) or, for a worker program, none (no sandboxes: the worker runs only calls of its handlers). Default: auto; none for a program with its own handlers."`
	Env     map[string]string `mapsep:"none" sep:"none" placeholder:"KEY=VALUE" brief:"Environment variable for sandboxes." help:"Environment variable for sandboxes; may be given several times."`
	McpEnv  []string          `placeholder:"NAME" help:"Variables of this process that MCP servers may be given (\"env\": {\"TOKEN\": \"$${TOKEN}\"}), separated by commas."`
	cli.Network
	Limits cli.Limits `embed:"" prefix:"limit-"`
}

// Options are the flags as a worker takes them, with the number of its slots. Others are the names
// that --sandbox takes beside the drivers.
func (f *SandboxFlags) Options(slots int, others ...string) (o worker.Options, err error) {
	if slots < 1 || slots > worker.MaxSlots {
		return o, cli.Usagef("--slots %d: must be 1 to %d", slots, worker.MaxSlots)
	}
	if err := drivers.Valid(f.Sandbox); err != nil && !slices.Contains(others, f.Sandbox) {
		return o, cli.Usagef("--sandbox: %s", strings.Join(append([]string{err.Error()}, others...), ", "))
	}
	if err := cli.CheckEnv(f.Env); err != nil {
		return o, err
	}
	o.Slots, o.Env, o.MCPEnv = slots, f.Env, f.McpEnv
	if o.Limits, err = f.Limits.Sandbox(); err == nil {
		o.Allow, o.AllowPrivate, err = f.Reachable()
	}
	return o, err
}

// workspaceFlags say where workspaces are, and what nothing changes in them.
type workspaceFlags struct {
	Data      string   `placeholder:"DIR" brief:"Directory of workspaces." help:"Directory of workspaces. Default: ~/.local/state/toolfleet/worker."`
	DataCache cli.Size `default:"20G" placeholder:"SIZE" help:"Disk space in --data for cached copies of idle workspaces, which the fleet stores anyway; 0 means no cache."`
	cli.Protect
}

// FromProcess returns the surroundings of this process.
func FromProcess(version string) cli.Program {
	return cli.Program{
		Name: "worker", Version: version,
		Description: "Takes tool calls of a fleet from NATS and executes them in local sandboxes. Every flag can be set by an environment variable: --nats is TOOLFLEET_NATS. SIGTERM drains; a second signal exits at once. \"worker login SERVER\" logs it in to an MCP server.",
		Examples: map[string][]string{"": {
			`worker --nats nats://nats1:4222 --creds worker.creds --slots 8`,
			`worker --nats nats://nats1:4222 --min-level full --limit-memory 2G`,
			`worker --sandbox-check`,
		}},
		Files: cli.Files{User: true, Section: "worker"},
		Args:  os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
	}
}

// Run runs a worker that also executes payloads of the kinds that handlers are for. It
// returns the exit code when a signal has ended it.
func Run(p cli.Program, handlers kinds.Handlers) int {
	if len(p.Args) > 0 && p.Args[0] == "login" {
		return logIn(p)
	}
	var f flags
	p.Defaults = map[string]string{"warm_memory": cli.Size(sandboxes.DefaultWarmBytes()).String()}
	if handlers.Any() {
		p.Defaults["sandbox"] = worker.NoSandboxes
	}
	ctx := context.Background() //nolint:forbidigo // the root of a program
	return cli.Run(p, &f, &f.Common, func(cli.Selected) error {
		if f.SandboxCheck {
			data, err := f.data()
			if err != nil {
				return err
			}
			ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
			defer stop()
			return doctor.Run(ctx, data, false, p.Stdout, f.JSON)
		}
		return serve(ctx, p, &f, handlers)
	})
}

// validate finds what is wrong with flags that need nothing else to be judged.
func (f *flags) validate() error {
	switch {
	case f.Join != "" && (f.Nats != "" || len(f.Given()) > 0):
		return cli.Usagef("--join: the token says where the fleet is: give it without --nats and %s", cmp.Or(strings.Join(f.Given(), ", "), "--creds"))
	case f.Nats == "" && f.Join == "": // not by its tag: the check of sandboxes needs none
		return cli.Usagef("missing flags: --nats=URL or --join=TOKEN; coordinator serve starts a fleet, and prints the flags that workers need")
	case f.Pool == string(protocol.SessionPool):
		return cli.Usagef("--pool %s: is the pool of turns, which coordinator serve takes; choose another name", f.Pool)
	case f.Name != "" && !workerName.MatchString(f.Name):
		return cli.Usagef("--name %s: must be 1 to 32 letters, digits, '-' or '_'", f.Name)
	case f.Lease != 0 && (f.Lease < cli.MinLease || f.Lease > natsio.MaxAckWait):
		return cli.Usagef("--lease %s: must be 0 or %s to %s", f.Lease, cli.MinLease, natsio.MaxAckWait)
	case f.WarmMemory != 0 && f.WarmMemory < sandboxes.WarmSandbox:
		return cli.Usagef("--warm-memory %s: must be 0 or at least 2M, the memory of one sandbox", f.WarmMemory)
	case f.Drain < 0:
		return cli.Usagef("--drain %s: must not be negative", f.Drain)
	case f.Background <= 0:
		return cli.Usagef("--background %s: must be more than 0", f.Background)
	}
	if err := workspace.CheckURL(f.Bodies); err != nil {
		return cli.Usagef("--bodies: %v", err)
	}
	return errors.Join(f.CheckFleet(), f.Check(), f.CheckStorage())
}

// join reads the token, and sets what it says.
func (f *flags) join() error {
	if f.Join == "" {
		return nil
	}
	token, err := join.Parse(f.Join)
	if err == nil {
		err = token.For(join.RoleWorker)
	}
	switch {
	case err != nil:
		return cli.Usagef("--join: %v", err)
	case f.Pool != string(protocol.DefaultPool) && f.Pool != string(token.Pool):
		return cli.Usagef("--pool %s: the token is for pool %s", f.Pool, token.Pool)
	case f.Fleet != string(protocol.DefaultFleet) && f.Fleet != string(token.Fleet):
		return cli.Usagef("--fleet %s: the token is for fleet %s", f.Fleet, token.Fleet)
	}
	f.Nats, f.TLS.Authority, f.Pool, f.Fleet = token.URL(), token.Authority, string(token.Pool), string(token.Fleet)
	if f.CallKeys != "" || token.Keys == "" {
		return nil
	}
	data, err := f.data()
	if err != nil {
		return err
	}
	f.CallKeys = filepath.Join(data, "join-"+signing.PublicFile)
	if err := errors.Join(os.MkdirAll(data, 0o700), regular.Replace(f.CallKeys, []byte(token.Keys))); err != nil {
		return cli.Usagef("--data: %v", err)
	}
	return nil
}

// options are the flags as the worker takes them, after every check that needs no server.
func (f *flags) options() (worker.Options, error) {
	if err := f.validate(); err != nil {
		return worker.Options{}, err
	}
	if err := f.join(); err != nil {
		return worker.Options{}, err
	}
	o, err := f.Options(f.Slots, worker.NoSandboxes)
	if err != nil {
		return o, err
	}
	pool, err := protocol.ParsePool(f.Pool)
	if err != nil {
		return o, cli.Usagef("--pool: %v", err)
	}
	if o.Data, err = f.data(); err != nil {
		return o, err
	}
	if f.Tools != "" {
		folder, err := manifest.Open(f.Tools)
		if err != nil {
			return o, cli.Usagef("--tools: %v", err)
		}
		o.Tools = folder.Dir()
	}
	if o.Protect, err = f.Places(); err != nil {
		return o, err
	}
	if f.CallKeys != "" {
		if o.Keys, err = signing.Open(f.CallKeys); err != nil {
			return o, cli.Usagef("--call-keys: %v", err)
		}
	}
	o.Fleet, o.Pool, o.AckWait, o.Bodies, o.Background = protocol.Fleet(f.Fleet), pool, f.Lease, f.Bodies, f.Background
	o.WarmBytes, o.CacheBytes = cmp.Or(int64(f.WarmMemory), -1), cmp.Or(int64(f.DataCache), -1)
	return o, nil
}

// data is the directory of workspaces.
func (f *workspaceFlags) data() (dir string, err error) {
	if dir = f.Data; dir == "" {
		dir, err = cli.StateDir("worker")
	}
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", cli.Usagef("--data: %v", err)
	}
	return dir, nil
}

// workerName is what --name takes.
var workerName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

// serve runs a worker until a signal.
func serve(ctx context.Context, p cli.Program, f *flags, handlers kinds.Handlers) (err error) {
	logger := f.Logger(p)
	o, err := f.options()
	if err != nil {
		return err
	}
	o.Logger, o.Handlers, o.Build = logger, handlers, p.Version
	name := f.Name
	if name == "" {
		name, _ = os.Hostname() // only a name
	}
	o.Worker = wire.NewWorkerID(name)
	drain, abort := context.WithCancel(ctx)
	defer abort()
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()

	end, err := p.Telemetry(ctx, "toolfleet-worker", telemetry.Options{Instance: string(o.Worker), Serves: true, TraceFile: f.TraceFile, Logger: logger})
	if err != nil {
		return err
	}
	defer end()

	if err := f.openDriver(ctx, &o); err != nil {
		return err
	}
	o.Env = withPath(o.Env, os.Getenv("PATH"), o.Caps)
	for _, warning := range append(cli.Warnings(o.Limits, o.Caps), cli.FewFiles(o.Slots)...) {
		_, _ = fmt.Fprintln(p.Stderr, "worker: warning: "+warning)
	}
	nc, err := Join(ctx, f.Server(f.Nats), o, f.Bounds())
	if err != nil {
		return err
	}
	defer nc.Close()
	w, err := worker.New(ctx, nc, o)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(p.Stderr, "worker: %s takes calls of pool %s in fleet %s: %d slots, sandbox %s (level %s), languages %s, data %s\n",
		w.ID(), o.Pool, o.Fleet, o.Slots, o.Caps.Driver, o.Caps.Level, cmp.Or(strings.Join(w.Languages(), " "), "none"), o.Data)
	said := cli.Drains(ctx, f.Drain, abort, func() {
		p.Draining(f.Drain, w.Running(), "call", "what runs longer is killed, and left to other workers")
	})
	err = w.Run(ctx, drain)
	said()
	return err
}

// openDriver opens the sandbox driver of the flags, and sees that it can do what they ask for.
func (f *flags) openDriver(ctx context.Context, o *worker.Options) (err error) {
	if err := os.MkdirAll(o.Data, 0o700); err != nil {
		return cli.Usagef("--data: %v", err)
	}
	o.Driver, o.Caps, err = worker.OpenDriver(ctx, f.Sandbox, &drivers.Options{Logger: o.Logger, Data: o.Data}, o.Handlers)
	least, _ := isolation.ParseLevel(f.MinLevel) // its tag has the names
	switch {
	case errors.Is(err, worker.ErrNothingToRun):
		return cli.Usagef("--sandbox %s: %v", f.Sandbox, err)
	case errors.Is(err, isolation.ErrLevel):
		return cli.Usagef("--sandbox %s: %v%s", f.Sandbox, err, advice())
	case err != nil:
		return err
	case o.Caps.Level < least:
		return cli.Usagef("--min-level %s: driver %s proves level %s here%s", least, o.Caps.Driver, o.Caps.Level, why(o.Caps))
	}
	return errors.Join(cli.Enforced(o.Allow, o.Caps), cli.Protects(o.Protect, o.Caps))
}

// withPath adds to variables of sandboxes the PATH: what of the worker's own exists in them. The
// rest would tell commands how the host is set up.
func withPath(env map[string]string, path string, caps isolation.Caps) map[string]string {
	if _, given := env["PATH"]; given {
		return env
	}
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	env["PATH"] = hostenv.Find(hostenv.Host{Path: path, Env: os.Getenv, View: hostenv.ViewOf(caps)}, []string{}).Path
	return env
}

// why says what keeps sandboxes from more than they have proven.
func why(caps isolation.Caps) string {
	if caps.Driver == process.Name || caps.Driver == worker.NoSandboxes {
		return "; --sandbox auto chooses a driver that isolates"
	}
	return strings.Join(append([]string{""}, caps.Warnings...), "\n  ") + advice()
}

// advice is what to set on this host, or around this container, a line each.
func advice() string {
	return strings.Join(append([]string{""}, doctor.Advice()...), "\n  -> ")
}

// Join connects a worker to its fleet, and makes the fleet's streams where they are missing.
func Join(ctx context.Context, server natsio.Server, o worker.Options, bounds natsio.Storage) (*nats.Conn, error) {
	nc, err := natsio.Connect(ctx, server.URL, natsio.ConnectOptions{Name: "worker " + string(o.Worker), Creds: server.Creds, TLS: server.TLS, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err == nil {
		err = natsio.Ensure(ctx, js, natsio.Topology{Fleet: o.Fleet, Storage: bounds, Bounded: true, Logger: o.Logger})
	}
	if err == nil {
		err = workspace.Bind(ctx, nc, o.Fleet, o.Bodies)
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}
