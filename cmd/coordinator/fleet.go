package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/sandbox/driver"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// fleetFlags say where the fleet is.
type fleetFlags struct {
	Nats string `placeholder:"URL" brief:"NATS servers of a fleet. Default: run everything here." help:"NATS server or servers of the fleet. Default: a server inside this process."`
	cli.Contexts
	cli.Login
	cli.Pools
	cli.Signing
	Fleet    string      `default:"tf" help:"Name of the fleet: the prefix of its subjects and streams."`
	Data     string      `placeholder:"DIR" help:"Data directory of the embedded server and worker. Default: one per session (or for serve) below ~/.local/state/toolfleet; for a call without --session a temporary one."`
	Replicas int         `default:"1" enum:"1,3,5" help:"Replicas of new streams: 1, 3 or 5."`
	Keep     cli.Keep    `embed:"" prefix:"keep-"`
	Results  cli.Results `embed:"" prefix:"result-"`
}

// workerFlags set up the embedded worker.
type workerFlags struct {
	Sandbox string            `default:"auto" placeholder:"DRIVER" brief:"Isolation: auto, ns, landlock or process." help:"Sandbox driver of the embedded worker: auto (the best that isolates here), ns (namespaces), landlock (paths only) or process (no isolation)."`
	Env     map[string]string `mapsep:"none" sep:"none" placeholder:"KEY=VALUE" brief:"Environment variable for commands." help:"Environment variable for the embedded worker's sandboxes; may be given several times."`
	McpEnv  []string          `placeholder:"NAME" help:"Variables of this process that MCP servers may be given (\"env\": {\"TOKEN\": \"$${TOKEN}\"}), separated by commas."`
	Slots   int               `default:"8" help:"Concurrent calls of the embedded worker."`
	Limits  cli.Limits        `embed:"" prefix:"limit-"`

	cli.Network
}

// connection is what [connect] needs beside the flags.
type connection struct {
	name   string  // of this process, for the server's monitoring
	listen string  // of an embedded server; "" does not listen
	data   string  // of an embedded server
	p      program // which ends with an embedded server that can store nothing any more
	logger *slog.Logger
	warn   func(string) // nil prints
}

// existingFleet says where a fleet is, for commands that make none.
type existingFleet struct {
	Nats string `required:"" placeholder:"URL" brief:"NATS servers of the fleet." help:"NATS server or servers of the fleet, separated by commas."`
	cli.Contexts
	cli.Login
	cli.Pools
	cli.Signing
	Fleet string `default:"tf" help:"Name of the fleet: the prefix of its subjects and streams."`
}

// connect reaches the fleet for a subcommand, which needs rights there beside those to look at its
// streams.
func (f *existingFleet) connect(ctx context.Context, subcommand string, logger *slog.Logger, rights ...natsio.Rights) (*fleet.Fleet, error) {
	name, err := protocol.ParseFleet(f.Fleet)
	if err != nil {
		return nil, cli.Usagef("--fleet: %v", err)
	}
	if f.Nats == "" { // which the flag's tag takes for given
		return nil, cli.Usagef("--nats: is empty; give the URL of the fleet's NATS server")
	}
	if err := errors.Join(f.Check(), f.CheckPools(f.Nats), f.CheckKey()); err != nil {
		return nil, err
	}
	fl, err := fleet.Connect(ctx, fleet.Options{
		Name: name, URL: f.Nats, Creds: f.Creds, SignKey: f.SignKey, TLS: f.Files(), Pools: f.Servers(), Client: "coordinator " + subcommand, Existing: true, Logger: logger,
	})
	if errors.Is(err, natsio.ErrNoFleet) {
		err = fmt.Errorf("there is no fleet %s at %s: choose another --fleet, or start a coordinator or worker first: %w", name, natsio.Redact(f.Nats), err)
	}
	if err != nil {
		return nil, err
	}
	if err := fl.CheckRights(ctx, rights...); err != nil { // else requests would go without an answer
		fl.Close()
		return nil, err
	}
	return fl, nil
}

// sessions looks at the sessions that are where the flags say.
func (f *fleetFlags) sessions() *sessionCommand {
	return &sessionCommand{Nats: f.Nats, Login: f.Login, Pools: f.Pools, Fleet: f.Fleet}
}

// consistent returns a usage error for flags that make no sense, alone or together.
func (f *fleetFlags) consistent() error {
	if _, err := protocol.ParseFleet(f.Fleet); err != nil {
		return cli.Usagef("--fleet: %v", err)
	}
	if err := f.Keep.Validate(); err != nil {
		return err
	}
	if err := errors.Join(f.Results.Validate(), f.CheckPools(f.Nats), f.CheckKey()); err != nil {
		return err
	}
	if f.Nats != "" {
		return f.Check()
	}
	if flags := f.Given(); len(flags) > 0 {
		return cli.Usagef("%s: for the servers of --nats only; without it the server is inside this process", strings.Join(flags, ", "))
	}
	if f.Replicas > 1 {
		return cli.Usagef("--replicas %d: needs --nats and as many servers; the one inside this process keeps 1", f.Replicas)
	}
	return nil
}

// connect reaches the fleet, or starts one inside this process.
func (f *fleetFlags) connect(ctx context.Context, c connection) (*fleet.Fleet, error) {
	if err := f.consistent(); err != nil {
		return nil, err
	}
	if err := f.makeData(); err != nil {
		return nil, err
	}
	warn := c.warn
	if warn == nil {
		warn = func(message string) { _, _ = fmt.Fprintln(c.p.err(), "coordinator: "+message) }
	}
	fl, err := fleet.Connect(ctx, fleet.Options{
		Name: protocol.Fleet(f.Fleet), URL: f.Nats, Creds: f.Creds, SignKey: f.SignKey, TLS: f.Files(), Pools: f.Servers(), Client: c.name, Data: c.data, Listen: c.listen, Replicas: f.Replicas,
		KeepAge: f.Keep.Age, KeepBytes: int64(f.Keep.Size), ResultAge: f.Results.Age, ResultBytes: int64(f.Results.Size), Logger: c.logger, Notify: warn,
	})
	if errors.Is(err, embedded.ErrInUse) && f.Data == "" && c.listen != "" { // serve's
		return nil, errors.New("another coordinator serve of yours runs on this machine: submit to it, stop it, start a second coordinator of its fleet with --nats, or give this one a fleet of its own with --data and another --listen")
	}
	if errors.Is(err, embedded.ErrInUse) && f.Data == "" { // the directory is the session's own
		return nil, fmt.Errorf("session %s is in use by another process on this machine: wait until that ends, or stop it, or begin a new session without --session and --continue", filepath.Base(c.data))
	}
	if err == nil && fl.Server != nil {
		fl.Server.WhenFailed(c.p.End)
	}
	return fl, err
}

// embeddedWorker is what an embedded worker runs with.
type embeddedWorker struct {
	flags   *workerFlags
	limits  sandbox.Limits
	allow   egress.Allow
	private []netip.Prefix
	protect []string // nil means the default
	tools   string   // absolute path of the folder of tools; "" for none
	driver  sandbox.Driver
	caps    sandbox.Caps
	host    *hostView // nil until see is called
}

// see has sandboxes see of the host what flags say, until forget. Nothing is seen by workers
// elsewhere, for whom e is nil.
func (e *embeddedWorker) see(ctx context.Context, flags *hostFlags, workspace, data string) (err error) {
	if e != nil {
		e.host, err = flags.open(ctx, e.driver.Name(), e.caps, e.allow, workspace, data)
	}
	return err
}

// forget ends that.
func (e *embeddedWorker) forget() error {
	if e == nil {
		return nil
	}
	return e.host.close()
}

// openWorker checks the flags of an embedded worker and of its fleet, and opens its sandbox driver,
// before anything is started, or written to the data directory. It returns nil for a fleet
// elsewhere, which has workers.
func (w *workerFlags) openWorker(
	ctx context.Context, f *fleetFlags, data string, tools folderFlag, protect []string, logger *slog.Logger,
) (*embeddedWorker, error) {
	if err := f.consistent(); err != nil {
		return nil, err
	}
	if w.Slots < 1 || w.Slots > worker.MaxSlots {
		return nil, cli.Usagef("--slots %d: must be 1 to %d", w.Slots, worker.MaxSlots)
	}
	if err := driver.Valid(w.Sandbox); err != nil {
		return nil, cli.Usagef("--sandbox: %v", err)
	}
	if err := cli.CheckEnv(w.Env); err != nil {
		return nil, err
	}
	limits, err := w.Limits.Sandbox()
	if err != nil {
		return nil, err
	}
	allow, private, err := w.Reachable()
	if err != nil {
		return nil, err
	}
	dir, err := tools.dir()
	if err != nil {
		return nil, cli.Usagef("--tools: %v", err)
	}
	if f.Nats != "" {
		return nil, nil //nolint:nilnil // the workers of the fleet are elsewhere
	}
	if err := f.makeData(); err != nil {
		return nil, err
	}
	opened, caps, err := driver.Open(ctx, w.Sandbox, &driver.Options{Logger: logger, Data: data})
	if errors.Is(err, sandbox.ErrLevel) {
		return nil, cli.Usagef("--sandbox %s: %v", w.Sandbox, err)
	}
	if err == nil {
		err = errors.Join(cli.Enforced(allow, caps), cli.Protects(protect, caps))
	}
	return &embeddedWorker{
		flags: w, limits: limits, allow: allow, private: private, protect: protect, tools: dir, driver: opened, caps: caps,
	}, err
}

// start runs the worker inside this process. The session's sandbox uses the directory workspace in
// place, unless that is "".
func (e *embeddedWorker) start(
	ctx context.Context, f *fleet.Fleet, data string, warn func(string), session protocol.SessionID, workspace string,
) error {
	for _, warning := range slices.Concat(e.host.access.notices(), cli.Warnings(e.limits, e.caps), cli.FewFiles(e.flags.Slots)) {
		warn(warning)
	}
	if e.host.git != "" {
		warn(e.host.git)
	}
	if workspace != "" && e.protect == nil && !e.caps.Protect {
		places, err := gitguard.Protected(ctx, workspace)
		if err != nil {
			return err
		}
		if len(places.Protect) > 0 {
			warn(fmt.Sprintf("driver %s cannot keep commands from changing %s: look at what is there before git or an editor runs it",
				e.caps.Driver, strings.Join(places.Protect, ", ")))
		}
	}
	if workspace != "" {
		if err := remembered(data, session, workspace); err != nil {
			return err
		}
	}
	env := maps.Clone(e.host.env)
	maps.Copy(env, e.flags.Env)
	store, _ := logins() // without a home they are in the data directory
	return f.StartWorker(ctx, worker.Options{
		Logins: store, Slots: e.flags.Slots, Data: data, Driver: e.driver, Caps: e.caps, Env: env, MCPEnv: e.flags.McpEnv, Limits: e.limits,
		Alone: true, Mounts: e.host.mounts, Tools: e.tools, Workspace: inPlace(session, workspace), Allow: e.allow, AllowPrivate: e.private, Protect: e.protect, Publish: e.host.access.forwards(session, warn),
	})
}

// inPlace returns a workspace that is used where it is, and "" for one of which a copy is.
func (f *fleetFlags) inPlace(workspace string) string {
	if f.Nats != "" {
		return ""
	}
	return workspace
}

// dataDir returns the directory of the embedded server and worker. Without --data it is the
// session's own, or a temporary one when nothing is to be kept; cleanup removes the latter.
func (f *fleetFlags) dataDir(session protocol.SessionID, keep bool) (dir string, cleanup func(), err error) {
	nothing := func() {}
	switch {
	case f.Data != "":
		dir, err = filepath.Abs(f.Data)
		return dir, nothing, err
	case keep:
		dir, err = cli.StateDir(filepath.Join("sessions", string(session)))
		return dir, nothing, err
	}
	dir, err = os.MkdirTemp("", "toolfleet-")
	return dir, func() { _ = removal.Tree(dir) }, err // what cannot be removed is the system's to clean
}

// makeData makes the directory of --data; one that cannot be made is a usage error.
func (f *fleetFlags) makeData() error {
	if f.Data == "" || f.Nats != "" {
		return nil
	}
	if err := os.MkdirAll(f.Data, 0o700); err != nil {
		return cli.Usagef("--data: %v", err)
	}
	return nil
}

// checkWorkspace returns the absolute path of an existing directory; "" stays "".
func checkWorkspace(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", cli.Usagef("--workspace %s: %v", dir, errors.Unwrap(err))
	}
	if !info.IsDir() { // opening a FIFO would wait
		return "", cli.Usagef("--workspace %s: not a directory", dir)
	}
	opened, err := os.OpenRoot(dir) // which takes the right to read it
	if err != nil {
		return "", cli.Usagef("--workspace %s: %v", dir, errors.Unwrap(err))
	}
	_ = opened.Close() // nothing was written
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("--workspace %s: %w", dir, err)
	}
	return absolute, nil
}
