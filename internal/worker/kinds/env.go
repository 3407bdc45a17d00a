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
	"github.com/toolfleet/toolfleet/internal/worker/dialog"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Capabilities are what calls of a worker can use in addition to a sandbox.
type Capabilities struct {
	// Handlers execute payloads of the user's own kinds; see [wire.ParseUserKind].
	Handlers Handlers
	// MCPEnv are the variables of this process that MCP servers may get where their configuration
	// names them.
	MCPEnv []string
	// Logins are those of people at MCP servers. Without a directory they are in the worker's data
	// directory, and "worker login" puts them there.
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

// Languages are those of code_run, sorted.
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

// Keep stores the whole of a result that a reader may not be shown at once.
func (e *Env) Keep(ctx context.Context, c *protocol.Call, r *protocol.Result) {
	err := e.Results.Keep(ctx, c, r, func(v protocol.Value) bool {
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
func (e *Env) HoldsLane(l protocol.Lane) bool { return e.dialogs.Lives(l) }

// ReleaseLane ends the stateful sessions of a lane.
func (e *Env) ReleaseLane(l protocol.Lane) { e.dialogs.Release(l) }
