package environment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/workercmd"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/mcp/login"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	internal "github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/workspace"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// FleetFlags say where the fleet is.
type FleetFlags struct {
	Nats string `placeholder:"URL" brief:"NATS servers of a fleet. Default: run everything here." help:"NATS server or servers of the fleet. Default: the fleet of your sessions on this machine."`
	Connection
	Data string `placeholder:"DIR" help:"Data directory of a fleet of its own, whose server is inside this process. Default: sessions of this machine share one fleet below ~/.local/state/toolfleet, whose server runs in the background while commands use it; a call without --session has a temporary one."`
	cli.Storage
	cli.Tracing
}

// ExistingFleet says where a fleet is, for commands that make none.
type ExistingFleet struct {
	Nats string `required:"" placeholder:"URL" brief:"NATS servers of the fleet." help:"NATS server or servers of the fleet, separated by commas."`
	Connection
}

// Connection is how a fleet is reached, and which one.
type Connection struct {
	cli.Connection
	cli.Pools
	cli.Signing
}

// checkFor checks the flags, but for those of the login, next to a URL.
func (c *Connection) checkFor(nats string) error {
	if err := workspace.CheckURL(c.Bodies); err != nil {
		return cli.Usagef("--bodies: %v", err)
	}
	return errors.Join(c.CheckFleet(), c.CheckPools(nats), c.CheckKey())
}

// options are the flags as [public.Connect] takes them. opened gets the fleet of the client.
func (c *Connection) options(nats, client string, logger *slog.Logger, opened func(*fleet.Fleet)) public.Options {
	o := public.Options{
		URL: nats, Creds: c.Creds, TLSCA: c.TLS.CA, TLSCert: c.TLS.Cert, TLSKey: c.TLS.Key, SignKey: c.SignKey,
		Pools: map[protocol.Pool]public.Server{}, Fleet: protocol.Fleet(c.Fleet), Bodies: c.Bodies, Logger: logger,
	}
	for pool, url := range c.PoolNats {
		o.Pools[protocol.Pool(pool)] = public.Server{URL: url, Creds: c.PoolCreds[pool]}
	}
	o.Client, o.Opened, o.Authority = client, opened, c.TLS.Authority
	return o
}

// warnUnsigned warns that calls are not signed, although the token is that of a coordinator serve,
// which has made a key next to it.
func (c *Connection) warnUnsigned(fl *fleet.Fleet, warn func(string)) {
	if fl.Signer == nil && filepath.Base(c.Creds) == embedded.TokenFile && warn != nil {
		warn(fmt.Sprintf("--creds %s: the key %s, which signs calls, is not next to it, so workers that run only signed calls refuse those of this process; copy it from the directory of the original token, or name it with --sign-key",
			c.Creds, signing.PrivateFile))
	}
}

// connect reaches the fleet for a process that sends turns.
func (f *ExistingFleet) connect(ctx context.Context, e *Environment) error {
	o := &e.options
	if err := f.reach(ctx, e, o.Client, o.Logger); err != nil {
		return err
	}
	f.warnUnsigned(e.Fleet, o.Warn)
	err := e.Fleet.CheckRights(ctx, natsio.CallRights(e.Fleet.Name, protocol.SessionPool)) // without rights the server never answers requests
	if err != nil {
		err = errors.Join(err, e.Client.Close())
	}
	return err
}

// Client reaches the fleet as a program does that has no more than the public API.
func (f *ExistingFleet) Client(ctx context.Context, logger *slog.Logger) (*public.Client, error) {
	var e Environment
	err := f.reach(ctx, &e, "coordinator", logger)
	return e.Client, err
}

func (f *ExistingFleet) reach(ctx context.Context, e *Environment, client string, logger *slog.Logger) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	options := f.options(f.Nats, client, logger, e.opened)
	options.Existing = true
	e.Client, err = public.Connect(ctx, options)
	if errors.Is(err, natsio.ErrNoFleet) {
		return fmt.Errorf("there is no fleet %s at %s: choose another --fleet, or start a coordinator or worker first: %w", f.Fleet, natsio.Redact(f.Nats), err)
	}
	return err
}

// check checks the flags before anything is connected.
func (f *ExistingFleet) check() error {
	if f.Nats == "" { // kong accepts an empty required flag
		return cli.Usagef("--nats: is empty; give the URL of the fleet's NATS server")
	}
	return errors.Join(f.checkFor(f.Nats), f.Check())
}

// consistent returns a usage error for flags that make no sense, alone or together.
func (f *FleetFlags) consistent() error {
	if err := errors.Join(f.checkFor(f.Nats), f.CheckStorage()); err != nil {
		return err
	}
	if f.Nats != "" {
		return f.Check()
	}
	if flags := f.Given(); len(flags) > 0 {
		return cli.Usagef("%s: needs --nats; without it the server is inside this process", strings.Join(flags, ", "))
	}
	if f.Replicas > 1 {
		return cli.Usagef("--replicas %d: needs --nats, and as many servers; the server inside this process has 1 replica", f.Replicas)
	}
	return nil
}

// connect reaches the fleet, or starts one inside this process.
func (f *FleetFlags) connect(ctx context.Context, e *Environment) (err error) {
	if err := f.makeData(); err != nil {
		return err
	}
	o, data := &e.options, e.Data
	options := f.options(f.Nats, o.Client, o.Logger, e.opened)
	options.Data, options.Listen, options.Notify, options.Storage = data, o.Listen, o.Warn, public.Storage(f.Bounds())
	options.Plain, options.TLS = o.Plain, o.TLS
	options.IndexAge, options.IndexBytes = o.IndexAge, o.IndexBytes
	ends := func(reason error) {
		o.Program.End(reason)
		e.Fleet.NC.Close() // requests to it then fail at once
	}
	if e.shared() {
		e.location.options(&options, ends)
		options.Origin = origin(o.ID)
	}
	e.Client, err = public.Connect(ctx, options)
	switch {
	case errors.Is(err, embedded.ErrInUse) && f.Data == "" && o.Session == nil:
		return fmt.Errorf("you already run a coordinator serve on this machine%s: submit to it, or stop it, or start a second coordinator of its fleet with --nats, or start another fleet with --data and another --listen", embedded.Holder(filepath.Join(data, fleet.ServerDir)))
	case err == nil && f.Nats != "":
		f.warnUnsigned(e.Fleet, o.Warn)
	case err == nil && e.Fleet.Server != nil:
		e.Fleet.Server.WhenFailed(ends)
	}
	return err
}

// opened takes over the fleet of the client.
func (e *Environment) opened(fl *fleet.Fleet) { e.Fleet = fl }

// Pool is the pool of the calls of the session.
func (e *Environment) Pool() protocol.Pool {
	if e.options.Session == nil || e.options.Existing != nil {
		return protocol.DefaultPool
	}
	return e.options.Flags.pool(e.options.ID)
}

// shared reports whether the session is one of the shared fleet of this machine.
func (e *Environment) shared() bool { return e.location.dir != "" && !e.location.own }

// dataDir returns the directory of the worker in this process, and of its server, unless that is
// shared. Without --data it is the session's own, a temporary one, which remove removes, or that of
// serve.
func (o *Options) dataDir() (dir string, remove func(), err error) {
	remove = func() {}
	switch given := o.Flags.Data; {
	case o.Session == nil && given != "":
		return given, remove, nil
	case o.Session == nil:
		if dir, err = cli.StateDir("serve"); err != nil {
			err = cli.Usagef("--data: %v", err)
		}
		return dir, remove, err
	case given != "" || !o.Temporary:
		p, err := locationOf(given)
		return p.data(o.ID), remove, err
	}
	dir, err = os.MkdirTemp("", "toolfleet-")
	return dir, func() { _ = system.RemoveTree(dir) }, err // the system removes what cannot be removed here
}

// pool is the pool of the calls of a session.
func (f *FleetFlags) pool(id protocol.SessionID) protocol.Pool {
	if f.Nats != "" {
		return protocol.DefaultPool
	}
	return location{own: f.Data != ""}.pool(id)
}

// makeData makes the directory of --data; one that cannot be made is a usage error.
func (f *FleetFlags) makeData() error {
	if f.Data == "" || f.Nats != "" {
		return nil
	}
	if err := os.MkdirAll(f.Data, 0o700); err != nil {
		return cli.Usagef("--data: %v", err)
	}
	return nil
}

// WorkerFlags set up the embedded worker: the one inside this process.
type WorkerFlags struct {
	workercmd.SandboxFlags
	Slots int `default:"8" help:"Concurrent calls of the embedded worker."`
}

// worker is what the embedded worker runs with.
type worker struct {
	internal.Options
	sandbox string // the flag
}

// checkWorker checks the flags of the worker; nil with --nats, where the fleet has workers.
func (f *Flags) checkWorker() (w *worker, err error) {
	w = &worker{sandbox: f.Sandbox}
	if w.Options, err = f.Options(f.Slots); err != nil {
		return nil, err
	}
	if w.Tools, err = f.folder(); err != nil {
		return nil, cli.Usagef("--tools: %v", err)
	}
	if f.Nats != "" {
		return nil, nil //nolint:nilnil // see the comment
	}
	return w, nil
}

// open opens the sandbox driver, and checks the flags that only some drivers can enforce.
func (w *worker) open(ctx context.Context, e *Environment) (err error) {
	if err := e.options.Flags.makeData(); err != nil {
		return err
	}
	w.Driver, w.Caps, err = drivers.Open(ctx, w.sandbox, &drivers.Options{Logger: e.options.Logger, Data: e.Data})
	if errors.Is(err, isolation.ErrLevel) {
		return cli.Usagef("--sandbox %s: %v", w.sandbox, err)
	}
	if err != nil {
		return err
	}
	return errors.Join(cli.Enforced(w.Allow, w.Caps), cli.Protects(e.protect, w.Caps), w.enough(e))
}

// enough refuses a session whose rules demand more of sandboxes than they prove here: each call
// would be rejected.
func (w *worker) enough(e *Environment) error {
	demanded, err := e.options.Session.minLevel()
	if err != nil {
		return err
	}
	if least, _ := isolation.ParseLevel(demanded); w.Caps.Level < least { // the policy has checked its name
		rule := "--min-level"
		if e.options.Session.MinLevel != demanded {
			rule = "--policy: min_level"
		}
		return cli.Usagef("%s %s: sandboxes of this machine prove level %s (driver %s); coordinator doctor says what they need", rule, demanded, w.Caps.Level, w.Caps.Driver)
	}
	return nil
}

// start runs the worker until the fleet is closed.
func (w *worker) start(ctx context.Context, e *Environment) error {
	o := &e.options
	for _, warning := range slices.Concat(e.Host.access.notices(), cli.Warnings(w.Limits, w.Caps), cli.FewFiles(w.Slots)) {
		o.Warn(warning)
	}
	if e.Host.git != "" {
		o.Warn(e.Host.git)
	}
	if o.Workspace != "" {
		w.Workspace = func(sandbox string) (string, bool) { return o.Workspace, sandbox == string(o.ID) }
		if err := w.warnUnprotected(ctx, e); err != nil {
			return err
		}
		if err := rememberWorkspace(e.Data, o.ID, o.Workspace); err != nil {
			return err
		}
	}
	given := w.Env
	w.Env = maps.Clone(e.Host.env)
	maps.Copy(w.Env, given)
	w.Logins, _ = Logins() // without a home they are in the data directory
	w.Mounts, w.Protect, w.KeepGitSettings, w.CacheBytes = e.Host.mounts, e.protect, o.Session.KeepGitSettings, math.MaxInt64
	w.Data, w.Alone, w.Publish = e.Data, true, e.Host.access.forwards(o.ID, o.Warn)
	if w.Pool = e.Pool(); e.shared() {
		e.Fleet.EndPool(ctx, w.Pool)
	}
	_, err := e.Fleet.StartWorker(ctx, w.Options)
	return err
}

// warnUnprotected warns if the driver cannot protect files that git or an editor runs.
func (w *worker) warnUnprotected(ctx context.Context, e *Environment) error {
	if e.protect != nil || w.Caps.Protect {
		return nil
	}
	places, err := gitguard.Protected(ctx, e.options.Workspace)
	if err == nil && len(places.Protect) > 0 {
		e.options.Warn(fmt.Sprintf("driver %s cannot protect %s from commands: check it before git or an editor runs it",
			w.Caps.Driver, strings.Join(places.Protect, ", ")))
	}
	return err
}

// Logins are the logins to MCP servers that workers inside this program use.
func Logins() (login.Store, error) {
	dir, err := cli.StateDir("logins")
	return login.Store{Dir: dir, Advice: func(server string) string {
		return fmt.Sprintf(`run "coordinator login %s --mcp-config FILE"`, server)
	}}, err
}
