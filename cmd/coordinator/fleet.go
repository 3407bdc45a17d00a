package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/dispatch"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/driver"
)

// fleetFlags say where the fleet is.
type fleetFlags struct {
	Nats     string `placeholder:"URL" help:"NATS server or servers of the fleet. Default: a server inside this process."`
	Creds    string `placeholder:"FILE" help:"NATS credentials file, or a file with a token."`
	Fleet    string `default:"tf" help:"Name of the fleet: the prefix of its subjects and streams."`
	Data     string `placeholder:"DIR" help:"Directory of the embedded server and worker. Default: one of the session, below ~/.local/state/toolfleet."`
	Replicas int    `default:"1" enum:"1,3,5" help:"Replicas of streams that do not exist yet: 1, 3 or 5."`
}

// workerFlags set up the embedded worker.
type workerFlags struct {
	Sandbox string            `default:"auto" placeholder:"LEVEL" help:"Sandbox driver of the embedded worker: auto (the best that isolates) or process (no isolation)."`
	Env     map[string]string `mapsep:"none" sep:"none" placeholder:"KEY=VALUE" help:"Environment variable for the embedded worker's sandboxes; may be given several times."`
	Slots   int               `default:"8" help:"How many calls the embedded worker runs at once."`
}

// fleet is a connection to a fleet, with the server and the worker when they are embedded.
type fleet struct {
	name       protocol.Fleet
	nc         *nats.Conn
	js         jetstream.JetStream
	dispatcher *dispatch.Dispatcher
	journal    *journal.Journal
	server     *embedded.Server
	logger     *slog.Logger
	closers    []func()
	// abort ends the embedded worker at once.
	abort func()
}

// connection is what [connect] needs beside the flags.
type connection struct {
	name   string // of this process, for the server's monitoring
	listen string // of an embedded server; "" does not listen
	data   string // of an embedded server
	logger *slog.Logger
}

// connect reaches the fleet, or starts one inside this process.
func (f *fleetFlags) connect(ctx context.Context, c connection) (_ *fleet, err error) {
	name, err := protocol.ParseFleet(f.Fleet)
	if err != nil {
		return nil, cli.Usagef("--fleet: %v", err)
	}
	fl := &fleet{name: name, logger: c.logger, abort: func() {}}
	defer func() {
		if err != nil {
			fl.close()
		}
	}()
	options := natsio.ConnectOptions{Name: c.name, Creds: f.Creds, Logger: c.logger}
	if f.Nats == "" {
		fl.server, err = embedded.Start(ctx, embedded.Options{Data: filepath.Join(c.data, "nats"), Listen: c.listen, Logger: c.logger})
		if err != nil {
			return nil, err
		}
		fl.closers = append(fl.closers, fl.server.Close)
		options.Creds, options.Options = "", fl.server.Options()
	}
	if fl.nc, err = natsio.Connect(ctx, f.Nats, options); err != nil {
		return nil, err
	}
	fl.closers = append(fl.closers, fl.nc.Close)
	if fl.js, err = jetstream.New(fl.nc); err != nil {
		return nil, err
	}
	if err := natsio.Ensure(ctx, fl.js, natsio.Topology{Fleet: name, Replicas: f.Replicas}); err != nil {
		return nil, err
	}
	if fl.dispatcher, err = dispatch.New(ctx, fl.nc, name, &dispatch.Options{Tracer: telemetry.Tracer(), Logger: c.logger}); err != nil {
		return nil, err
	}
	fl.journal, err = journal.Open(ctx, fl.nc, name)
	return fl, err
}

// close ends everything that connect and startWorker started, last first.
func (f *fleet) close() {
	for _, closer := range slices.Backward(f.closers) {
		closer()
	}
	f.closers = nil
}

// drainTime is how long the embedded worker may take to end what runs.
const drainTime = 5 * time.Second

// embeddedWorker is what an embedded worker runs with.
type embeddedWorker struct {
	flags  *workerFlags
	driver sandbox.Driver
	caps   sandbox.Caps
}

// openWorker checks the flags of an embedded worker and opens its sandbox driver, before
// anything is started or written. It returns nil for a fleet elsewhere, which has workers.
func (w *workerFlags) openWorker(ctx context.Context, url string, logger *slog.Logger) (*embeddedWorker, error) {
	if w.Slots < 1 || w.Slots > 4096 {
		return nil, cli.Usagef("--slots %d: must be 1 to 4096", w.Slots)
	}
	if err := driver.Valid(w.Sandbox); err != nil {
		return nil, cli.Usagef("--sandbox: %v", err)
	}
	if url != "" {
		return nil, nil //nolint:nilnil // the workers of the fleet are elsewhere
	}
	opened, caps, err := driver.Open(ctx, w.Sandbox, &driver.Options{Logger: logger})
	if errors.Is(err, sandbox.ErrLevel) {
		return nil, cli.Usagef("--sandbox %s: %v", w.Sandbox, err)
	}
	return &embeddedWorker{flags: w, driver: opened, caps: caps}, err
}

// startWorker runs a worker inside this process. place maps sandboxes to directories used in place.
func (f *fleet) startWorker(ctx context.Context, e *embeddedWorker, data string, warn func(string), place func(string) (string, bool)) error {
	for _, warning := range e.caps.Warnings {
		warn(warning)
	}
	w, err := worker.New(ctx, f.nc, worker.Options{
		Fleet: f.name, Slots: e.flags.Slots, Data: data, Driver: e.driver, Caps: e.caps, Env: e.flags.Env,
		Workspace: place, Logger: f.logger, Tracer: telemetry.Tracer(),
	})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	drain, abort := context.WithCancel(context.WithoutCancel(ctx))
	f.abort = abort
	done := make(chan error, 1)
	go func() { done <- w.Run(running, drain) }()
	f.closers = append(f.closers, func() {
		stop()
		timer := time.AfterFunc(drainTime, abort)
		defer timer.Stop()
		defer abort()
		if err := <-done; err != nil {
			f.logger.WarnContext(running, "worker failed", slog.Any("error", err))
		}
	})
	return nil
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
	return dir, func() { _ = os.RemoveAll(dir) }, err // what cannot be removed is the system's to clean
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
	if !info.IsDir() {
		return "", cli.Usagef("--workspace %s: not a directory", dir)
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("--workspace %s: %w", dir, err)
	}
	return absolute, nil
}
