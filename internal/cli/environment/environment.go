// Package environment turns a command's flags into what its tool calls run with, and closes that in
// order.
//
//	flags ──Open──► data directory ► sandbox driver ► view of the host ► telemetry ► fleet ► worker
//	                                                                                  │
//	        ◄─Close── in the opposite order                      with --nats: Begin ──┴─► copy of the workspace
//
// Without --nats the worker is inside this process, the fleet is the one that the processes of this
// user share (see Local), and the session uses the workspace in place. With --nats workers are
// elsewhere, and the session works on a copy: Begin sends it, and [transfer.Workspace.Fetch] brings
// changes back.
package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/workspace/transfer"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Flags say with what tool calls run: the flags of all commands that run some.
type Flags struct {
	ToolFlags   `group:"Tools:"`
	FleetFlags  `group:"Fleet:"`
	WorkerFlags `group:"Sandbox:"`
	HostFlags   `group:"Host:"`
}

// SessionFlags say what a session may do, and with which files.
type SessionFlags struct {
	GuardFlag   `group:"Policy:"`
	CopyFlags   `group:"Workspace:"`
	GitFlags    `group:"Workspace:"`
	cli.Protect `group:"Workspace:"`
	PolicyFlags `group:"Policy:"`
}

// CopyFlags say which files are copied to a fleet.
type CopyFlags struct {
	IncludeIgnored bool `help:"With --nats, copy also files that .gitignore files exclude. Files that look like secrets (.env, *.pem, id_rsa, ...) are copied only if .toolfleetignore includes them, such as !.env."`
}

// GitFlags say what becomes of what a session leaves for git.
type GitFlags struct {
	KeepGitSettings bool `help:"Leave settings and hooks of new repositories that your git would run. Default: after each call they are set aside, next to their files, and named."`
}

// Options say for what an environment is opened. Program, Logger and Warn are required.
type Options struct {
	Process
	// Flags say where the fleet is, and what the worker in this process is.
	Flags *Flags
	// Session is the session; nil flags are for a process that has none of its own (serve): no
	// worker is started.
	Session *SessionFlags
	ID      protocol.SessionID
	// Workspace is the absolute path of the session's directory; "" is an empty workspace.
	Workspace string
	// Template is what an empty workspace elsewhere begins with.
	Template *TemplateFlag
	// IndexAge and IndexBytes are those of [public.Options].
	IndexAge   time.Duration
	IndexBytes int64
	// Temporary removes the data directory at the end, unless --data names one.
	Temporary bool
	// Listen is the address of the server in this process; "" does not listen.
	Listen     string
	Plain, TLS bool // see [embedded.Options]
	// Existing is a fleet that must exist, which takes turns; nil means the one of Flags.
	Existing *ExistingFleet
	// Warn, Alert and Busy report to the person, see [transfer.Options]; an alert stands out.
	Warn, Alert, Busy func(string)
}

// Process is how this process logs, and what the fleet and traces call it.
type Process struct {
	Program cli.Program
	Logger  *slog.Logger
	// Client is the name of this process, for the server's monitoring, and Span of the root of its
	// trace; "" starts none.
	Client, Span string
	// Service is the name for telemetry; "" means toolfleet-coordinator.
	Service string
}

// traceFile is the file of spans; "" means none.
func (o *Options) traceFile() string {
	if o.Flags == nil {
		return ""
	}
	return o.Flags.TraceFile
}

// Environment is what a session runs with.
type Environment struct {
	Fleet *fleet.Fleet
	// Client is what programs have of the fleet.
	Client *public.Client
	// Data is the data directory of this process; "" for a session elsewhere.
	Data string
	// Host is what sandboxes of this process see of the host; nil with --nats.
	Host *Host
	// Git reports what the session has left for git to run.
	Git *gitguard.Report
	// Copy is the local workspace if the session works on a copy; nil in place.
	Copy *transfer.Workspace

	options  Options
	location location // of a session of this machine
	protect  []string
	closers  []func(error)
	fresh    bool // the data directory was created for a new session of this machine
	unused   bool // the session has neither a journal nor a result
}

// Open opens an environment. Before it starts or writes anything it checks all flags but those that
// need the sandbox driver, such as --mount. The context that it returns carries the trace. The
// caller closes the environment.
func Open(ctx context.Context, o Options) (_ context.Context, _ *Environment, err error) {
	e := &Environment{options: o}
	defer func() {
		if err != nil {
			e.Close(err)
		}
	}()
	worker, err := e.prepare(ctx)
	if err != nil {
		return ctx, nil, err
	}
	service := o.Service
	if service == "" {
		service = "toolfleet-coordinator"
	}
	end, err := o.Program.Telemetry(ctx, service, telemetry.Options{Serves: o.Session == nil, TraceFile: o.traceFile(), Logger: o.Logger})
	if err != nil {
		return ctx, nil, err
	}
	e.onClose(func(error) { end() })
	if o.Session != nil {
		ctx = telemetry.ExtractEnvironment(ctx, o.Program.Getenv)
	}
	if o.Span != "" {
		var ended func(error)
		ctx, ended = Span(ctx, o.Span)
		e.onClose(ended)
	}
	e.onClose(func(error) { e.Git.Close(ctx) }) // after the worker, when nothing of the session runs
	if o.Existing != nil {
		err = o.Existing.connect(ctx, e)
	} else {
		err = o.Flags.connect(ctx, e)
	}
	if err != nil {
		return ctx, nil, err
	}
	e.onClose(func(error) {
		e.unused = e.fresh && e.isUnused()
		_ = e.Client.Close() // nothing of it is left to lose
	})
	if o.Session != nil {
		if e.Git, err = gitguard.NewReport(ctx, o.Workspace, o.Session.KeepGitSettings, o.Alert); err != nil {
			return ctx, nil, err
		}
	}
	if worker != nil {
		err = worker.start(ctx, e)
	}
	return ctx, e, err
}

// prepare checks the flags, and opens the sandboxes of this process and what they see of the host;
// nil with --nats and for a process without a session.
func (e *Environment) prepare(ctx context.Context) (w *worker, err error) {
	o := &e.options
	if o.Session != nil {
		if e.protect, err = o.Session.Places(); err != nil {
			return nil, err
		}
	}
	if o.Existing != nil {
		return nil, nil //nolint:nilnil // see the comment
	}
	if err := o.Flags.consistent(); err != nil {
		return nil, err
	}
	if o.Session != nil && o.Session.IncludeIgnored && o.Flags.Nats == "" {
		return nil, cli.Usagef("--include-ignored: needs --nats; without it nothing is copied, and sessions see all files of the directory")
	}
	if o.Session != nil {
		if w, err = o.Flags.checkWorker(); w == nil || err != nil {
			return nil, err
		}
	}
	var remove func()
	if e.Data, remove, err = o.dataDir(); err != nil {
		return nil, err
	}
	_, missing := os.Stat(e.Data)
	e.fresh = o.Session != nil && o.Flags.Data == "" && errors.Is(missing, fs.ErrNotExist)
	if err := e.hold(ctx); err != nil {
		return nil, err
	}
	e.onClose(func(error) {
		if remove(); e.unused { // else each start of an MCP server would leave an empty session
			_ = system.RemoveTree(e.Data)
		}
	})
	if w == nil {
		return nil, nil //nolint:nilnil // see the comment
	}
	if err := w.open(ctx, e); err != nil {
		return nil, err
	}
	if e.Host, err = o.Flags.open(ctx, w, o.Workspace, e.Data); err != nil {
		return nil, err
	}
	e.onClose(func(error) { _ = e.Host.close() }) // its cache is brought below its limit another time
	return w, nil
}

// hold has this process alone run a session of the shared fleet.
func (e *Environment) hold(ctx context.Context) (err error) {
	o := &e.options
	if o.Session == nil || o.Flags.Nats != "" || o.Temporary && o.Flags.Data == "" {
		return nil
	}
	if e.location, err = locationOf(o.Flags.Data); err != nil {
		return err
	}
	if err := e.location.earlier(o.ID); err != nil {
		return err
	}
	release, err := e.location.hold(ctx, o.ID)
	if errors.Is(err, public.ErrSessionBusy) {
		return fmt.Errorf("%w; or begin a new session without --session and --continue", err)
	}
	if err == nil {
		e.onClose(func(error) { release() })
	}
	return err
}

// isUnused reports whether nothing came of the session, nor of those of other clients in its
// directory.
func (e *Environment) isUnused() bool {
	boxes, _ := os.ReadDir(filepath.Join(e.Data, "sandboxes")) // there may be none
	others := slices.ContainsFunc(boxes, func(box fs.DirEntry) bool { return box.Name() != string(e.options.ID) })
	return !others && e.Fleet.IsUnused(e.options.ID)
}

// Begin gives a session elsewhere its workspace: the template, or a copy of the directory. In place
// there is nothing to do. limited says that the session has a time limit, which is over when the
// copy is brought back.
func (e *Environment) Begin(ctx context.Context, limited bool) error {
	o := &e.options
	if o.Flags.Nats == "" {
		return nil
	}
	if o.Template != nil {
		if err := o.Template.begin(ctx, e.Fleet, o.ID); err != nil {
			return err
		}
	}
	if o.Workspace == "" {
		return nil
	}
	level, err := o.Session.minLevel()
	if err != nil {
		return err
	}
	stamps, _ := cli.StateDir("uploads") // without a home nothing is kept
	e.Copy, err = transfer.Send(ctx, transfer.Options{
		Fleet: e.Fleet, Session: o.ID, Pool: protocol.DefaultPool, Dir: o.Workspace, Protect: e.protect, MinLevel: cmp.Or(level, MinLevelElsewhere),
		IncludeIgnored: o.Session.IncludeIgnored, Stamps: stamps, Warn: o.Warn, Busy: o.Busy,
	})
	if err == nil {
		e.Copy.Hurry = limited
	}
	return err
}

func (e *Environment) onClose(closer func(error)) { e.closers = append(e.closers, closer) }

// Close closes everything, last first. The trace ends with the error of the command.
func (e *Environment) Close(err error) {
	for _, closer := range slices.Backward(e.closers) {
		closer(err)
	}
	e.closers = nil
}

// Span starts the root of a trace, named after the command that the user typed. ended ends it with
// the command's error.
func Span(ctx context.Context, command string) (_ context.Context, ended func(error)) {
	ctx, span := telemetry.Tracer().Start(ctx, command)
	return ctx, func(err error) {
		telemetry.Fail(span, err)
		span.End()
	}
}
