// Package fleet runs sessions and tool calls from a Go program.
//
// A program that brings tools of its own ([tools.New], [tools.NewRemote]) connects to
// a fleet here, makes a table of its tools and those that are built in, and has a
// model work with them. Everything else is as with the coordinator's command line: the
// calls go through NATS JetStream to workers, and the session is journaled.
//
//	Connect ──► Fleet ──► Runner(model, table) ──► loop.Runner.Run(session, input)
//	              │ ├───► Call(table, session, tool, arguments, options): one call, no model
//	              │ └───► Answer, Approve: what calls, and sessions, ask a person
//	              └─────► StartWorker: a worker in this process, with handlers
//
// Without a URL the NATS server is inside the process too, so that one program is a
// whole fleet. See the example.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/dispatch"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/render"
	"github.com/toolfleet/toolfleet/internal/sandbox/driver"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
	"github.com/toolfleet/toolfleet/internal/session"
	internal "github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// Options say where the fleet is; nil and zero mean the documented default.
type Options struct {
	// URL is the NATS server or servers, separated by commas; "" starts one inside
	// this process, which nobody else can reach.
	URL string
	// Creds is a NATS credentials file, or a file with a token.
	Creds string
	// Pools are the servers of pools whose workers have a NATS account of their own there, so that
	// they reach nothing else of the fleet. They need a URL, where journals are, and are none of
	// [protocol.SessionPool].
	Pools map[protocol.Pool]Server
	// SignKey is a file with the private key (PEM, Ed25519) that calls are signed with, for workers
	// that run signed ones only; "" is calls.key beside Creds, if it is there.
	SignKey string
	// TLSCA is a file of certificates (PEM) that the servers' are checked against; "" means
	// the system's. TLSCert and TLSKey are the files of a certificate that this process shows,
	// both or neither.
	TLSCA, TLSCert, TLSKey string
	// Name is the name of the fleet; "" means [protocol.DefaultFleet].
	Name protocol.Fleet
	// Data is the directory of the embedded server and worker; "" means one that Close
	// removes, with the sessions and workspaces in it.
	Data string
	// Replicas is that of streams that do not exist yet: 1, 3 or 5; 0 means 1.
	Replicas int
	// KeepAge is how long results that were cut are kept at most, in a fleet that does not
	// exist yet; 0 means until their session is deleted.
	KeepAge time.Duration
	// KeepBytes bounds how much of them is kept in all, in a fleet that does not exist yet; 0
	// means no bound. When it is reached, nothing more is kept.
	KeepBytes int64
	// ResultAge is how long results of calls are kept, 10 minutes to 365 days, also in a fleet that
	// exists, whose older results go at once; 0 takes what the fleet has, or 7 days. A call that is
	// sent again when its result is gone runs again.
	ResultAge time.Duration
	// ResultBytes bounds how much of them is kept in all, at least 64 MiB, also in a fleet that
	// exists; beyond it the oldest go. 0 takes what the fleet has, or no bound.
	ResultBytes int64
	// Logger gets what goes wrong; nil discards it.
	Logger *slog.Logger
}

// Server is a NATS server or servers, separated by commas, and a credentials file or a file with a
// token; "" for none.
type Server = natsio.Server

// Fleet is a connection to a fleet. It is safe for concurrent use, except for Close.
type Fleet struct {
	inner   *fleet.Fleet
	data    string
	cleanup func() error
	logger  *slog.Logger

	elsewhere bool        // it may have workers that this process does not know
	named     atomic.Bool // a worker without isolation was started here, by its name
}

// least is the level that sandboxes need where nobody names one.
func (f *Fleet) least() string {
	if f.elsewhere && !f.named.Load() {
		return "paths"
	}
	return ""
}

// validate reports every fault but that of the name.
func (o *Options) validate() error {
	var faults []error
	switch o.Replicas {
	case 0, 1, 3, 5:
	default:
		faults = append(faults, fmt.Errorf("replicas %d: must be 1, 3 or 5", o.Replicas))
	}
	for pool, server := range o.Pools {
		_, err := protocol.ParsePool(string(pool))
		switch {
		case err != nil:
			faults = append(faults, err)
		case pool == protocol.SessionPool:
			faults = append(faults, fmt.Errorf("pools: %q is that of the coordinators, at the URL of the fleet", pool))
		case o.URL == "" || server.URL == "":
			faults = append(faults, fmt.Errorf("pools: %s needs the URL of its servers, and that of the fleet", pool))
		}
	}
	if o.KeepAge < 0 {
		faults = append(faults, fmt.Errorf("keep age %s: must not be negative", o.KeepAge))
	}
	if o.KeepBytes < 0 {
		faults = append(faults, fmt.Errorf("keep bytes %d: must not be negative", o.KeepBytes))
	}
	if o.ResultAge != 0 && (o.ResultAge < natsio.MinResultAge || o.ResultAge > natsio.MaxResultAge) {
		faults = append(faults, fmt.Errorf("result age %s: must be 0 or 10m to 8760h", o.ResultAge))
	}
	if o.ResultBytes != 0 && o.ResultBytes < natsio.MinResultSize {
		faults = append(faults, fmt.Errorf("result bytes %d: must be 0 or at least %d", o.ResultBytes, natsio.MinResultSize))
	}
	return errors.Join(faults...)
}

// Connect reaches a fleet, or starts one inside this process, and makes its streams if
// they are missing. ctx bounds the connecting only, and each server is tried for 5 s at most. It
// fails on options out of their bounds, all faults joined; an invalid name wraps
// [protocol.ErrInvalidName].
func Connect(ctx context.Context, options *Options) (*Fleet, error) {
	var o Options
	if options != nil {
		o = *options
	}
	name, err := protocol.ParseFleet(string(cmp.Or(o.Name, protocol.DefaultFleet)))
	if err = errors.Join(err, o.validate()); err != nil {
		return nil, err
	}
	f := &Fleet{data: o.Data, cleanup: func() error { return nil }, logger: o.Logger, elsewhere: o.URL != ""}
	if f.logger == nil {
		f.logger = slog.New(slog.DiscardHandler)
	}
	if f.data == "" {
		if f.data, err = os.MkdirTemp("", "toolfleet-"); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		f.cleanup = func() error { return removal.Tree(f.data) }
	}
	if f.data, err = filepath.Abs(f.data); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	f.inner, err = fleet.Connect(ctx, fleet.Options{
		Name: name, URL: o.URL, Creds: o.Creds, SignKey: o.SignKey, TLS: natsio.TLS{CA: o.TLSCA, Cert: o.TLSCert, Key: o.TLSKey}, Pools: o.Pools, Client: filepath.Base(os.Args[0]),
		Data: f.data, Replicas: o.Replicas, KeepAge: o.KeepAge, KeepBytes: o.KeepBytes,
		ResultAge: o.ResultAge, ResultBytes: o.ResultBytes, Logger: f.logger,
	})
	if err != nil {
		return nil, errors.Join(err, f.cleanup())
	}
	return f, nil
}

// Close ends the embedded workers and server, if there are any, and the connection. Calls
// that still run in a worker have 5 s to end. Closing twice is fine.
func (f *Fleet) Close() error {
	f.inner.Close()
	cleanup := f.cleanup
	f.cleanup = func() error { return nil }
	return cleanup()
}

// WorkerOptions are the settings of a worker inside the process; nil and zero mean the
// documented default.
type WorkerOptions struct {
	// Sandbox is the sandbox driver: "auto" (the default: the best that isolates here), "ns",
	// "landlock", "process", which isolates nothing, or "none": the worker takes calls of its
	// Handlers only.
	Sandbox string
	// Pool is whose calls the worker takes; "" means the default pool.
	Pool protocol.Pool
	// Slots is how many calls run at once, up to 4096; 0 means 4.
	Slots int
	// Env is added to the environment of sandboxes.
	Env map[string]string
	// Tools is the folder with the programs of tools that are commands; "" for none.
	Tools string
	// Workspace, when set, names a directory to be used in place for a sandbox; ok is
	// false for those that live in the data directory.
	Workspace func(sandbox string) (dir string, ok bool)
	// Protect are paths in workspaces that neither commands nor file operations change: relative,
	// at most 256. nil means, in directories that are used in place, what git and editors read or
	// run there on their own, and none elsewhere; empty means none.
	Protect []string
	// Handlers execute payloads of kinds of your own.
	Handlers []worker.Handler
}

// validate reports every fault of the pool and the slots; the rest is checked where it is used.
func (o *WorkerOptions) validate() error {
	var faults []error
	if o.Slots < 0 || o.Slots > internal.MaxSlots {
		faults = append(faults, fmt.Errorf("slots %d: must be 1 to %d", o.Slots, internal.MaxSlots))
	}
	if o.Pool == protocol.SessionPool {
		faults = append(faults, fmt.Errorf("pool %q: is that of the coordinators", o.Pool))
	} else if o.Pool != "" {
		_, err := protocol.ParsePool(string(o.Pool))
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// StartWorker runs a worker inside this process until Close, whatever becomes of ctx, which bounds
// the starting only. A fleet may have several. Workspaces are stored with the fleet, as by a worker
// program, so that any worker can continue a session. The error wraps
// [github.com/toolfleet/toolfleet/pkg/sandbox.ErrLevel] when no driver isolates on this host, and
// [wire.ErrInvalidKind] for a handler of a kind that cannot be.
func (f *Fleet) StartWorker(ctx context.Context, options *WorkerOptions) error {
	var o WorkerOptions
	if options != nil {
		o = *options
	}
	handlers, err := worker.ByKind(o.Handlers...)
	if err = errors.Join(o.validate(), err); err != nil {
		return err
	}
	if o.Tools != "" {
		if o.Tools, err = filepath.Abs(o.Tools); err != nil {
			return fmt.Errorf("folder of tools: %w", err)
		}
	}
	opened, caps, err := internal.OpenDriver(ctx, o.Sandbox, &driver.Options{Logger: f.logger, Data: f.data}, handlers)
	if err != nil {
		return err
	}
	if o.Sandbox == process.Name {
		f.named.Store(true)
	}
	return f.inner.StartWorker(ctx, internal.Options{
		Pool: o.Pool, Slots: o.Slots, Data: f.data, Driver: opened, Caps: caps, Env: o.Env, Tools: o.Tools,
		Workspace: o.Workspace, Protect: o.Protect, Handlers: handlers,
	})
}

// OpenModel opens a model by its spec, "openai:NAME" or "script:FILE", with the
// settings of the environment (OPENAI_API_KEY, OPENAI_BASE_URL). Any [loop.Model] of
// yours will do as well.
func OpenModel(spec string) (loop.Model, error) {
	opened, _, err := model.Open(spec, os.Getenv)
	return opened, err
}

// Runner makes what runs the sessions of a model with the tools of a table. Without a
// [loop.Options].MinLevel, commands and files of a fleet elsewhere ([Options].URL) need "paths", so
// that workers which isolate nothing take them only when "none" is said, or this process has
// started one.
func (f *Fleet) Runner(m loop.Model, table *tools.Table, options *loop.Options) (*loop.Runner, error) {
	var o loop.Options
	if options != nil {
		o = *options
	}
	o.MinLevel = cmp.Or(o.MinLevel, f.least())
	return loop.New(m, f.inner.Dispatcher, f.inner.Journal, table, &o)
}

// ErrSessionBusy is wrapped by the error of [Fleet.DeleteSession] for a session that has an
// open turn or unfinished calls.
var ErrSessionBusy = session.ErrBusy

// DeleteSession removes a session: its journal, its workspace, which takes a worker of the default
// pool, its results and the outputs that are kept with them. One that does not exist is fine. A
// busy session is [ErrSessionBusy], and nothing is removed, unless force is set: then its calls are
// cancelled. After any other error some of it may be left: delete it again.
func (f *Fleet) DeleteSession(ctx context.Context, id protocol.SessionID, force bool) error {
	if _, err := protocol.ParseSessionID(string(id)); err != nil {
		return err
	}
	_, err := session.Remove(ctx, f.inner, id, session.Options{Force: force})
	return err
}

// Outcome is what became of one tool call.
type Outcome = loop.SingleOutcome

// Errors of [Fleet.Call] that callers branch on.
var (
	// ErrNotSent says that the call was not sent: it does not run. Beside it stands why, as the
	// cause of a context that ended, or [ErrUnreachable].
	ErrNotSent = lane.ErrNotSent
	// ErrUnreachable says that the fleet did not answer.
	ErrUnreachable = dispatch.ErrUnreachable
	// ErrNoStream says that somebody deleted a stream of the fleet; it comes with [ErrUnreachable].
	ErrNoStream = natsio.ErrNoStream
)

// Call has one tool called, as a model would, in the sandbox of a session, and waits for its
// result. What goes wrong with the tool, or is not allowed by the options' policy, is an Outcome.
// The error says that the fleet failed: it wraps [ErrUnreachable] or [ErrNotSent], or
// [protocol.ErrInvalidName] for an invalid session id. The status of the Outcome beside it is
// [protocol.StatusRejected] if the call does not run, and [protocol.StatusOutcomeUnknown] if it
// may.
//
// Call returns within about 0.1 s of the end of ctx. A ctx that has ended before sends nothing, and
// is [ErrNotSent]. Else the call is cancelled, and its outcome told if the worker answers in that
// time; if not it is [protocol.StatusOutcomeUnknown]. While the server is away Call tries until ctx
// ends. nil options bind nothing; a Logger that they do not name is the fleet's, and what is kept
// goes to the fleet whatever Keeper they name.
func (f *Fleet) Call(
	ctx context.Context, table *tools.Table, session protocol.SessionID, tool, arguments string, options *loop.SingleOptions,
) (Outcome, error) {
	if _, err := protocol.ParseSessionID(string(session)); err != nil {
		return Outcome{}, err
	}
	if ctx.Err() != nil { // before a policy or a person is asked
		err := fmt.Errorf("call tool %s: %w: %w", tool, ErrNotSent, context.Cause(ctx))
		return failedOutcome(err), err
	}
	var o loop.SingleOptions
	if options != nil {
		o = *options
	}
	if o.Logger == nil {
		o.Logger = f.logger
	}
	o.Keeper, o.MinLevel = f.inner.Dispatcher, cmp.Or(o.MinLevel, f.least())
	single := loop.PlanSingle(ctx, table, session, tool, arguments, &o)
	if single.Call == nil {
		return single.Outcome, nil
	}
	result, err := f.inner.Dispatcher.Promptly(ctx, single.Call, single.Update)
	if err != nil {
		outcome := failedOutcome(err)
		return single.Failed(outcome.Status, outcome.Error), err
	}
	return single.Finish(ctx, result), nil
}

// failedOutcome says what an error tells about a call.
func failedOutcome(err error) Outcome {
	status, code := protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown
	if errors.Is(err, ErrNotSent) {
		status, code = protocol.StatusRejected, protocol.CodeFleetUnavailable
	}
	fault := protocol.Errorf(code, "%v", err)
	return Outcome{Status: status, Text: render.FailureText(status, fault), Error: fault}
}
