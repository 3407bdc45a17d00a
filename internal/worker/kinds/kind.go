// Package kinds runs the payloads of calls: one entry of a table for each kind.
//
//	Env.Accept ──► Kind: what it needs, what it refuses ──► Attempt.Execute ──► value and error
//
// The table in this file has for each kind its requirements, the checks before it runs, and the
// function that runs it. To add a kind:
//
//  1. Describe it in package wire.
//  2. Write the function in a file of its own, with its payload's type:
//     func httpFetch(ctx context.Context, a *Attempt, p protocol.HTTPFetch) (protocol.Value, error)
//  3. Add a line to the table: wire.KindHTTPFetch: {Needs: NeedsSandbox, run: runs(httpFetch)}.
//
// A file operation is a row of the table in package files of the sandbox, and here a line with run:
// fileRun.
//
// A failure of a tool is an error that [protocol.Error] describes; any other
// error is the worker's.
package kinds

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/mcp/login"
	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/internal/worker/dialog"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Kind says how a worker runs the payloads of one kind.
type Kind struct {
	Needs Needs
	// NoFiles says that a payload touches no file of the workspace. In a directory that is used in
	// place it does not wait for the calls of other processes.
	NoFiles bool
	// acts says that a program of the sandbox may change files because of the payload, although it
	// touches none itself.
	acts bool
	// reads says that a payload changes no file.
	reads bool
	// check refuses a payload before anything is opened; nil accepts every one.
	check func(e *Env, p protocol.Payload) *protocol.Error
	// run executes a payload. The error is as the worker reads it.
	run func(ctx context.Context, a *Attempt, p protocol.Payload) (protocol.Value, error)
	// long reports whether a reader may be shown less than all of a value, which is stored whole
	// then; nil means a value whose JSON is longer than an error may be.
	long func(v protocol.Value) bool
}

// Needs is what a payload needs before it runs.
type Needs int

const (
	// NeedsNothing means that every worker runs the kind; the result names no sandbox level.
	NeedsNothing Needs = iota
	// NeedsFunction means that a function of the worker's program runs the kind, and may open the
	// sandbox.
	NeedsFunction
	// NeedsLane means that the lane must be a sandbox's; the sandbox is not opened.
	NeedsLane
	// NeedsAnySandbox means an open sandbox, a temporary one if the lane is of another resource.
	NeedsAnySandbox
	// NeedsSandbox means the open sandbox of the lane.
	NeedsSandbox
)

// table has all kinds of payloads that a worker with these handlers runs.
func table(handlers Handlers) map[protocol.Kind]*Kind {
	all := map[protocol.Kind]*Kind{
		wire.KindCommandRun:  {Needs: NeedsSandbox, check: checks(checkCommand), run: runs(commandRun), long: longer(outputSize)},
		wire.KindCodeRun:     {Needs: NeedsSandbox, check: checks(checkCode), run: runs(codeRun), long: longer(outputSize)},
		wire.KindToolRun:     {Needs: NeedsAnySandbox, run: runs(toolRun), long: longer(toolSize)},
		wire.KindProcessList: {Needs: NeedsSandbox, NoFiles: true, run: runs(processList)},
		wire.KindProcessRead: {Needs: NeedsSandbox, NoFiles: true, run: runs(processRead), long: neverLong},
		wire.KindProcessSend: {Needs: NeedsSandbox, NoFiles: true, acts: true, run: runs(processSend), long: neverLong},
		wire.KindProcessKill: {Needs: NeedsSandbox, NoFiles: true, acts: true, run: runs(processKill)},

		wire.KindFilesRead:      {Needs: NeedsSandbox, reads: true, run: fileRun, long: neverLong},
		wire.KindFilesWrite:     {Needs: NeedsSandbox, run: fileRun},
		wire.KindFilesRemove:    {Needs: NeedsSandbox, run: fileRun},
		wire.KindFilesEdit:      {Needs: NeedsSandbox, run: fileRun},
		wire.KindFilesJSONRead:  {Needs: NeedsSandbox, reads: true, run: fileRun},
		wire.KindFilesJSONWrite: {Needs: NeedsSandbox, run: fileRun},
		wire.KindFilesExists:    {Needs: NeedsSandbox, reads: true, run: fileRun},
		wire.KindFilesList:      {Needs: NeedsSandbox, reads: true, run: fileRun},
		wire.KindFilesTree:      {Needs: NeedsSandbox, reads: true, run: fileRun},
		wire.KindFilesGlob:      {Needs: NeedsSandbox, reads: true, run: fileRun},
		wire.KindFilesSearch:    {Needs: NeedsSandbox, reads: true, run: fileRun},

		wire.KindMCPList:        {Needs: NeedsSandbox, run: runs(mcpList)},
		wire.KindMCPCall:        {Needs: NeedsAnySandbox, run: runs(mcpCall), long: longer(mcpSize)},
		wire.KindDialogOpen:     {Needs: NeedsFunction, check: checks(checkDialog), run: runs(dialogOpen), long: longer(dialogSize)},
		wire.KindDialogContinue: {Needs: NeedsFunction, run: runs(dialogContinue), long: longer(dialogSize)},
		wire.KindDialogEnd:      {Needs: NeedsFunction, run: runs(dialogEnd), long: longer(dialogSize)},

		wire.KindWorkspaceImport:  {Needs: NeedsSandbox, check: checks(checkImport), run: runs(workspaceImport)},
		wire.KindWorkspaceExport:  {Needs: NeedsSandbox, reads: true, check: checks(checkExport), run: runs(workspaceExport)},
		wire.KindWorkspaceRestore: {Needs: NeedsSandbox, run: runs(workspaceRestore)},
		wire.KindWorkspaceFork:    {Needs: NeedsSandbox, check: checks(checkFork), run: runs(workspaceFork)},
		wire.KindWorkspaceMerge:   {Needs: NeedsSandbox, check: checks(checkMerge), run: runs(workspaceMerge)},
		wire.KindWorkspaceUnpack:  {Needs: NeedsSandbox, run: runs(workspaceUnpack)},
		wire.KindWorkspaceRemove:  {Needs: NeedsLane, NoFiles: true, run: runs(workspaceRemove)},

		wire.KindResultRead: {Needs: NeedsNothing, NoFiles: true, run: runs(resultRead), long: neverLong},
		wire.KindHTTPFetch:  {Needs: NeedsNothing, NoFiles: true, run: runs(httpFetch), long: longer(pageSize)},
		wire.KindNoop:       {Needs: NeedsNothing, NoFiles: true, run: runs(noop), long: neverLong},
		wire.KindTurnRun:    {Needs: NeedsNothing, check: checks(refuseTurn)},
	}
	for name, handler := range handlers.Calls {
		all[name] = &Kind{Needs: NeedsFunction, run: runs(handler.run), long: longer(userSize)}
	}
	return all
}

// runs turns a function for one type of payload into [Kind].run.
func runs[P protocol.Payload](run func(context.Context, *Attempt, P) (protocol.Value, error)) func(context.Context, *Attempt, protocol.Payload) (protocol.Value, error) {
	return func(ctx context.Context, a *Attempt, p protocol.Payload) (protocol.Value, error) {
		typed, ok := p.(P)
		if !ok {
			return nil, unknownPayload(wire.KindOf(p))
		}
		return run(ctx, a, typed)
	}
}

// checks turns a check of one type of payload into [Kind].check.
func checks[P protocol.Payload](check func(*Env, P) *protocol.Error) func(*Env, protocol.Payload) *protocol.Error {
	return func(e *Env, p protocol.Payload) *protocol.Error {
		typed, ok := p.(P)
		if !ok {
			return unknownPayload(wire.KindOf(p))
		}
		return check(e, typed)
	}
}

func unknownPayload(name protocol.Kind) *protocol.Error {
	return protocol.Errorf(codes.UnknownPayload, "this worker does not know payload %q: it may be older than the coordinator, or lack the handler", name)
}

// longer reports whether a value of one type is too long to be shown whole, by its size in bytes.
func longer[V protocol.Value](size func(V) int) func(protocol.Value) bool {
	return func(v protocol.Value) bool {
		typed, ok := v.(V)
		return ok && size(typed) > plain.MaxShown
	}
}

// neverLong is for values that are shown whole, or that store themselves.
func neverLong(protocol.Value) bool { return false }

// valued is the result of a function that returns a certain value, as a value.
func valued[V protocol.Value](v V, err error) (protocol.Value, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Capabilities are what calls of a worker can use in addition to a sandbox.
type Capabilities struct {
	// Handlers execute payloads of the user's own kinds; see [wire.ParseUserKind].
	Handlers Handlers
	// MCPEnv are the variables of this process that MCP servers may get where their configuration
	// names them.
	MCPEnv []string
	// Logins are the logins of people at MCP servers. Without a directory they are in the worker's
	// data directory, and "worker login" puts them there.
	Logins login.Store
	// Background is the longest life of a background process, which keeps its sandbox open; 0 means
	// [DefaultBackground].
	Background time.Duration
}

// DefaultBackground is the longest life of a background process.
const DefaultBackground = time.Hour

// Network has the ways in which calls reach the network.
type Network struct {
	Allow     egress.Allow
	Sandboxes isolation.Network // from inside of sandboxes
	Servers   *http.Transport   // to MCP servers by URL; nil if nothing may be reached
	Pages     *http.Transport   // to pages of the web: only listed hosts, no private addresses
}

// Env is what kinds use of their worker.
type Env struct {
	Capabilities

	Sandbox sandboxes.Settings
	Network Network
	ID      protocol.WorkerID
	Fleet   protocol.Fleet
	Logger  *slog.Logger

	Sandboxes *sandboxes.Manager
	Remote
	prepared
}

// Remote is what the fleet stores, and the way there.
type Remote struct {
	NC         *nats.Conn
	JS         jetstream.JetStream
	Results    *results.Store
	Workspaces *workspace.Store
	// Result returns the stored result of a call; nil if there is none.
	Result func(context.Context, protocol.SessionID, protocol.CallID) (*protocol.Result, error)
	// Keys are those whose answers to questions count; nil accepts every answer.
	Keys *signing.Keys
}

// prepared is what [Env.Open] prepares.
type prepared struct {
	kinds      map[protocol.Kind]*Kind
	languages  languages
	limitKinds map[string]string // as results report them
	dialogs    *dialog.Set[*Attempt]
}

// Open prepares the table of kinds, and finds the languages of sandboxes, in a sandbox below the
// directory data. If it fails, the host works without languages.
func (e *Env) Open(ctx context.Context, data string) (err error) {
	e.kinds, e.limitKinds, e.dialogs = table(e.Handlers), limitKinds(e.Sandbox.Caps.Limits.Words()), dialog.New[*Attempt](graceAfter, e.Logger)
	e.languages = languagesOf(func(string) bool { return false })
	if e.Sandbox.Caps.Driver == sandboxes.NoDriver {
		return nil
	}
	found, err := findLanguages(ctx, e.Sandbox.Driver, isolation.Spec{Env: e.Sandbox.Env, Limits: e.Sandbox.Limits, Mounts: e.Sandbox.Mounts}, data)
	if err == nil {
		e.languages = found
	}
	return err
}

// Languages returns the languages of code_run, sorted.
func (e *Env) Languages() []string { return e.languages.names() }

// LimitKinds says how each limit is enforced, as results report it.
func (e *Env) LimitKinds() map[string]string { return e.limitKinds }

// CanRun reports whether this worker runs calls that need this: it has the function, the level, and
// sandboxes. It accepts calls that no worker could run, to refuse them.
func (e *Env) CanRun(n lane.Requirements) bool {
	if level, err := isolation.ParseLevel(n.Level); err == nil && level > e.Sandbox.Caps.Level {
		return false
	}
	if n.Handler {
		return e.Handlers.Has(n.Kind)
	}
	if k := e.kinds[n.Kind]; k != nil && k.Needs <= NeedsFunction {
		return true
	}
	return e.Sandbox.Caps.Driver != sandboxes.NoDriver
}

// NoFiles reports whether payloads of a kind touch no file of the workspace. Background processes
// do, in no order with calls, in this process or another.
func (e *Env) NoFiles(name protocol.Kind) bool {
	k := e.kinds[name]
	return k != nil && k.NoFiles
}

// Accept returns how a call is run here, or why this worker does not run it.
func (e *Env) Accept(c *protocol.Call) (*Kind, *protocol.Error) {
	name := wire.KindOf(c.Payload)
	k := e.kinds[name]
	if k == nil {
		return nil, unknownPayload(name)
	}
	level, err := isolation.ParseLevel(c.MinLevel)
	if err != nil {
		return nil, protocol.Errorf(codes.InvalidPayload, "min_level: %v", err)
	}
	if level > e.Sandbox.Caps.Level {
		return nil, protocol.Errorf(codes.SandboxLevel, "the call needs sandbox level %s, this worker has proven %s", level, e.Sandbox.Caps.Level)
	}
	if (k.Needs == NeedsSandbox || k.Needs == NeedsLane) && sandboxes.ID(c.Lane()) == "" {
		return nil, protocol.Errorf(codes.InvalidPayload, "payload %s needs a resource key sandbox/<id>, not %s", name, c.Lane())
	}
	if k.check != nil {
		if refusal := k.check(e, c.Payload); refusal != nil {
			return nil, refusal
		}
	}
	return k, nil
}

// StoreFull stores the whole of a result that a reader may not be shown at once.
func (e *Env) StoreFull(ctx context.Context, c *protocol.Call, r *protocol.Result) {
	err := e.Results.StoreFull(ctx, c, r, func(v protocol.Value) bool {
		if k := e.kinds[wire.KindOf(c.Payload)]; k != nil && k.long != nil {
			return k.long(v)
		}
		body, err := wire.EncodeValue(v)
		return err == nil && len(body) > plain.MaxError
	})
	if err != nil {
		e.Logger.WarnContext(ctx, "result cannot be kept whole", slog.String("call_id", string(c.ID)), slog.Any("error", err))
		addNote(r, "the whole output could not be stored: "+unstored(err))
	}
}

// unstored says why an output was not stored.
func unstored(err error) string {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return "the disk of the worker is full"
	}
	if natsio.NoRoom(err) {
		return "the fleet has no room for it"
	}
	return "the fleet did not answer"
}

// addNote adds a note to the result of a command.
func addNote(r *protocol.Result, note string) {
	switch v := r.Value.(type) {
	case protocol.CommandRunResult:
		v.Notes = append(v.Notes, note)
		r.Value = v
	case protocol.ToolRunResult:
		v.Notes = append(v.Notes, note)
		r.Value = v
	}
}

// HoldsLane reports whether stateful sessions live in a lane.
func (e *Env) HoldsLane(l protocol.Lane) bool { return e.dialogs.HasRunning(l) }

// ReleaseLane ends the stateful sessions of a lane.
func (e *Env) ReleaseLane(l protocol.Lane) { e.dialogs.Release(l) }
