package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/workercmd"
	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	internal "github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Options are the settings of a worker, for [Run] and for the StartWorker of a fleet's client;
// zero values mean the documented default.
type Options struct {
	// Server says where the fleet is. Run requires its URL. A worker of a client is in the client's
	// fleet, and Server must be zero.
	Server Server
	// Pool is whose calls the worker takes; "" means [protocol.DefaultPool].
	Pool protocol.Pool
	// Name is shown wherever workers are: 1 to 32 letters, digits, "-" and "_". The worker's id is
	// the name and a random suffix. "" means the host's name.
	Name string
	// Slots is the number of calls that run at once, 1 to 4096; 0 means 4.
	Slots int
	// Handlers execute payloads of kinds of your own.
	Handlers []Handler
	// Driver is the sandbox driver: "auto" (the best that isolates here), "ns", "landlock",
	// "process", which isolates nothing, or "none": the worker takes only calls of its Handlers. ""
	// means "auto".
	Driver string
	// Env is added to the environment of sandboxes.
	Env map[string]string
	// Data is the directory of workspaces; "" means ~/.local/state/toolfleet/worker for Run, and
	// the client's data directory for its workers.
	Data string
	// Tools is the folder with the programs of tools that are commands; "" for none.
	Tools string
	// Workspace, when set, names a directory to be used in place for a sandbox; ok is false for
	// sandboxes that live in the data directory.
	Workspace func(sandbox string) (dir string, ok bool)
	// Protect are paths in workspaces that neither commands nor file operations change: relative,
	// at most 256. nil means the files that git and editors run, in directories used in place, and
	// none elsewhere; empty means none.
	Protect []string
	// Drain is the time that running calls get when the context of Run ends; 0 means 30 s. Workers
	// of a client get theirs from its Close, or from the caller of Drain.
	Drain time.Duration
	// Logger gets what goes wrong; nil means the client's logger; Run then discards messages.
	Logger *slog.Logger
}

// Server says where a fleet is, and who the worker is there.
type Server struct {
	// URL is the NATS server or servers, separated by commas.
	URL string
	// Creds is a NATS credentials file, or a file with a token; "" for none.
	Creds string
	// TLSCA is a file of certificates (PEM) that the servers' are checked against; "" means the
	// system's. TLSCert and TLSKey are the files of a certificate that the worker shows, both or
	// neither.
	TLSCA, TLSCert, TLSKey string
	// Fleet is the name of the fleet; "" means [protocol.DefaultFleet].
	Fleet protocol.Fleet
	// CallKeys is a file with the public keys (PEM, Ed25519) of the trusted signers: calls that
	// none of them has signed are rejected. "" runs every call of the fleet.
	CallKeys string
}

// defaultDrain is the time that running calls get.
const defaultDrain = 30 * time.Second

// Run runs a worker until ctx ends. Then it takes no more calls, and returns nil when those that
// run have ended, or an error if the time of [Options].Drain was over before: killed calls run
// again on other workers, except at_most_once calls.
//
// Any other error says why the worker could not start: invalid options, all joined, before anything
// is sent; a server that does not answer; [sandbox.ErrLevel] when no driver isolates on this host;
// of package fleet, ErrVersion for a fleet of another version, and ErrRights if the user may not
// take calls. Streams of the fleet that are missing are created. If the connection, rights or
// streams are lost later, Run logs that, and takes calls again when they are back.
func Run(ctx context.Context, o Options) error {
	setup, err := o.Setup()
	if err = errors.Join(err, o.Server.setup(&setup)); err != nil {
		return err
	}
	if setup.Data == "" {
		if setup.Data, err = cli.StateDir("worker"); err != nil {
			return fmt.Errorf("data: %w", err)
		}
	}
	if err := os.MkdirAll(setup.Data, 0o700); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if setup.Workspace != nil {
		if setup.InPlace, err = inplace.OpenOwn(); err != nil { // as where the state folder is read-only
			setup.Logger.WarnContext(ctx, "calls do not wait for other processes that use the same directory, and may overlap with their calls", slog.Any("error", err))
		}
	}
	if setup.Driver, setup.Caps, err = internal.OpenDriver(ctx, o.Driver, &drivers.Options{Logger: setup.Logger, Data: setup.Data}, setup.Handlers); err != nil {
		return err
	}
	s := &o.Server
	nc, err := workercmd.Join(ctx, natsio.Server{URL: s.URL, Creds: s.Creds, TLS: natsio.TLS{CA: s.TLSCA, Cert: s.TLSCert, Key: s.TLSKey}}, setup, natsio.Storage{})
	if err != nil {
		return err
	}
	defer nc.Close()
	w, err := internal.New(ctx, nc, setup)
	if err != nil {
		return err
	}
	drain, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abort(nil)
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(cmp.Or(o.Drain, defaultDrain), func() { abort(errDrain) })
	})()
	if err := w.Run(ctx, drain); err != nil {
		return err
	}
	return context.Cause(drain)
}

// errDrain is returned by [Run] when calls were killed at the end of the time [Options].Drain.
var errDrain = errors.New("worker: the time to drain is over: running calls were killed")

// workerName is what [Options].Name takes.
var workerName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

// Setup is for package fleet: it returns the options as a worker inside this module takes them,
// except for Server. It connects to nothing, and reports every invalid option.
func (o *Options) Setup() (setup internal.Options, err error) {
	var problems []error
	note := func(err error) { problems = append(problems, err) }
	if o.Slots < 0 || o.Slots > internal.MaxSlots {
		note(fmt.Errorf("slots %d: must be 1 to %d", o.Slots, internal.MaxSlots))
	}
	if o.Drain < 0 {
		note(fmt.Errorf("drain %s: must not be negative", o.Drain))
	}
	if o.Pool == protocol.SessionPool {
		note(fmt.Errorf("pool %q: is that of the coordinators", o.Pool))
	} else if o.Pool != "" {
		_, err := protocol.ParsePool(string(o.Pool))
		note(err)
	}
	setup = internal.Options{
		Options:  lane.Options{Pool: o.Pool, Slots: o.Slots, Logger: o.Logger},
		Settings: sandboxes.Settings{Env: o.Env, Tools: o.Tools, Workspace: o.Workspace, Protect: o.Protect}, Data: o.Data,
	}
	switch {
	case o.Name == "":
	case workerName.MatchString(o.Name):
		setup.Worker = wire.NewWorkerID(o.Name)
	default:
		note(fmt.Errorf("name %q: must be 1 to 32 letters, digits, '-' or '_'", o.Name))
	}
	setup.Handlers, err = byKind(o.Handlers...)
	note(err)
	if o.Tools != "" {
		setup.Tools, err = filepath.Abs(o.Tools)
		note(err)
	}
	if o.Data != "" {
		setup.Data, err = filepath.Abs(o.Data)
		note(err)
	}
	return setup, errors.Join(problems...)
}

// setup adds what a worker of a fleet elsewhere needs.
func (s *Server) setup(setup *internal.Options) error {
	var problems [3]error
	if s.URL == "" {
		problems[0] = errors.New("server: URL: is missing")
	} else {
		problems[0] = natsio.CheckURLs(s.URL)
	}
	setup.Fleet, problems[1] = protocol.ParseFleet(string(cmp.Or(s.Fleet, protocol.DefaultFleet)))
	if s.CallKeys != "" {
		setup.Keys, problems[2] = signing.Open(s.CallKeys)
	}
	setup.Logger = cmp.Or(setup.Logger, slog.New(slog.DiscardHandler))
	if setup.Worker == "" {
		host, _ := os.Hostname() // only a name
		setup.Worker = wire.NewWorkerID(host)
	}
	return errors.Join(problems[:]...)
}
