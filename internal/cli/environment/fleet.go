package environment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
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
	o.Client, o.Opened = client, opened
	return o
}

// warnUnsigned warns that calls are not signed, although the token is that of a coordinator serve,
// which has made a key next to it.
func (c *Connection) warnUnsigned(fl *fleet.Fleet, warn func(string)) {
	if fl.Signer() == nil && filepath.Base(c.Creds) == embedded.TokenFile && warn != nil {
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
		p, err := o.Flags.location()
		return p.data(o.ID), remove, err
	}
	dir, err = os.MkdirTemp("", "toolfleet-")
	return dir, func() { _ = system.RemoveTree(dir) }, err // the system removes what cannot be removed here
}

// Reach are the flags by which other commands reach the fleet.
func (f *FleetFlags) Reach() string {
	if f.Data != "" && f.Nats == "" {
		return f.Connection.Reach() + " --data " + cli.ShellWord(f.Data)
	}
	return f.Connection.Reach()
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
