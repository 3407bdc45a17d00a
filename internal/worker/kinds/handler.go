package kinds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	fleetspace "github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Handler executes payloads of a kind of the user's own. It runs in the worker's
// process, not in a sandbox. arguments and the output are JSON values. An error
// that is a *[protocol.Error] is the result's as it is; any
// other is "tool_failed" with its text. When ctx ends, the call is over, whatever the
// handler returns. A handler that does not return then holds a slot, and its effects stay.
type Handler func(ctx context.Context, a *Attempt, arguments json.RawMessage) (json.RawMessage, error)

// Handlers are what executes payloads of kinds of the user's own, each kind in one way.
type Handlers struct {
	Calls    map[protocol.Kind]Handler
	Stateful map[protocol.Kind]Stateful
}

// Has reports whether there is a handler for a kind.
func (h Handlers) Has(kind protocol.Kind) bool {
	return h.Calls[kind] != nil || h.Stateful[kind].Run != nil
}

// Any reports whether there is any.
func (h Handlers) Any() bool { return len(h.Calls)+len(h.Stateful) > 0 }

// Kinds returns the kinds, sorted.
func (h Handlers) Kinds() []protocol.Kind {
	kinds := slices.AppendSeq(slices.Collect(maps.Keys(h.Calls)), maps.Keys(h.Stateful))
	slices.Sort(kinds)
	return kinds
}

// Validate reports the first handler that cannot be used.
func (h Handlers) Validate() error {
	for _, kind := range h.Kinds() {
		if _, err := wire.ParseUserKind(string(kind)); err != nil {
			return fmt.Errorf("handler: %w", err)
		}
		plain, isPlain := h.Calls[kind]
		stateful, isStateful := h.Stateful[kind]
		if isPlain == isStateful || isPlain && plain == nil {
			return fmt.Errorf("handler of %s: missing, or there are two", kind)
		}
		if err := stateful.Validate(); isStateful && err != nil {
			return fmt.Errorf("handler of %s: %w", kind, err)
		}
	}
	return nil
}

// errNoSandbox answers handlers of calls that have none.
var errNoSandbox = errors.New("the call has no sandbox: its resource key is not sandbox/<id>")

// run executes a payload of the handler's kind.
func (handler Handler) run(ctx context.Context, a *Attempt, payload protocol.UnknownPayload) (protocol.Value, error) {
	arguments, err := payload.Arguments()
	if err != nil {
		return nil, protocol.Errorf(codes.InvalidPayload, "%v", err)
	}
	output, err := handler(a.Run.Leased(ctx), a, arguments)
	if err == nil {
		value, encodeErr := wire.NewUserValue(payload.Name, output)
		if encodeErr == nil {
			return value, nil
		}
		err = encodeErr
	}
	return nil, toolError(err)
}

// userSize is the size of what a handler returned.
func userSize(v protocol.UnknownValue) int { return len(v.Raw) }

// toolError is an error of a user's function: typed ones that say their code as they are, all
// others tool_failed.
func toolError(err error) error {
	if fault, typed := errors.AsType[*protocol.Error](err); typed && fault.Code != "" {
		return err
	} else if typed {
		return &protocol.Error{Code: protocol.CodeToolFailed, Message: fault.Message}
	}
	return protocol.Errorf(protocol.CodeToolFailed, "%s", prose.Valid(err.Error()))
}

// Attempt is one attempt of a call, as the function that runs it sees it.
type Attempt struct {
	Run  *lane.Run
	Live *Live

	env         *Env
	laneSandbox *sandboxes.LaneSandbox // nil unless the kind needs an open sandbox
	sandbox     sandbox.Sandbox        // of laneSandbox
}

// Attempt returns an attempt of a call. Its sandbox is not open.
func (e *Env) Attempt(run *lane.Run) *Attempt {
	return &Attempt{Run: run, Live: &Live{env: e, run: run}, env: e}
}

// Open opens the sandbox of the call. The caller calls [sandboxes.LaneSandbox.Leave] when the call
// has ended.
func (a *Attempt) Open(ctx context.Context) (box *sandboxes.LaneSandbox, err error) {
	a.laneSandbox, a.sandbox, err = a.open(ctx)
	return a.laneSandbox, err
}

func (a *Attempt) open(ctx context.Context) (*sandboxes.LaneSandbox, sandbox.Sandbox, error) {
	box, s, err := a.env.Sandboxes.Open(ctx, a.lane(), a.sharer(), a.Run.Fence, a.Run.LeaseEnd)
	if err == nil && box.Checkpoints() != nil { // a call of another tenant may have taken it meanwhile
		on := judge.Object{Kind: judge.Workspace, ID: sandboxes.ID(a.lane()), Owner: box.Checkpoints().Owner()}
		if refusal := a.Run.May(a.act(), on); refusal != nil {
			box.Leave()
			return nil, nil, refusal
		}
	}
	return box, s, err
}

// Owned refuses a call that touches what the tenant of its signer does not own: the workspaces of
// its lane, of its session and of its payload, and the upload that this names. Without an answer
// about one it is refused as well.
func (a *Attempt) Owned(ctx context.Context) *protocol.Error {
	if a.Run.Signer == nil || a.Run.Signer.Tenant == "" || a.env.Workspaces == nil {
		return nil
	}
	acts, upload := map[string]judge.Act{string(a.Run.Call.SessionID): judge.Use}, ""
	switch p := a.Run.Call.Payload.(type) {
	case wire.WorkspaceMerge:
		acts[p.From] = judge.See
	case wire.WorkspaceFork:
		acts[p.To] = judge.Change
	case wire.WorkspaceImport:
		upload = p.Upload
	case wire.WorkspaceExport:
		upload = p.Upload
	default:
	}
	acts[sandboxes.ID(a.lane())] = a.act()
	for _, id := range slices.Sorted(maps.Keys(acts)) {
		if id == "" {
			continue
		}
		if refusal := a.may(ctx, acts[id], judge.Object{Kind: judge.Workspace, ID: id}, hashOf(id)); refusal != nil {
			return refusal
		}
	}
	if upload == "" {
		return nil
	}
	return a.may(ctx, judge.Use, judge.Object{Kind: judge.Upload, ID: upload}, fleetspace.UploadRef(upload, 0).Lane)
}

// act is what the call does to the workspace of its lane.
func (a *Attempt) act() judge.Act {
	switch a.Run.Call.Payload.(type) {
	case wire.WorkspaceRemove:
		return judge.Remove
	case wire.WorkspaceRestore, wire.WorkspaceMerge:
		return judge.Change
	default:
		return judge.Use
	}
}

// mayUpload is Owned for the moment in which an upload is written.
func (a *Attempt) mayUpload(id string) fleetspace.Owned {
	return func(owner judge.Owner) error {
		if refusal := a.Run.May(judge.Use, judge.Object{Kind: judge.Upload, ID: id, Owner: owner}); refusal != nil {
			return refusal
		}
		return nil
	}
}

// may refuses an act on the workspace of a lane, or on an upload, that its signer may not do. One
// that does not exist has no owner yet.
func (a *Attempt) may(ctx context.Context, act judge.Act, on judge.Object, lane wire.LaneHash) *protocol.Error {
	owner, err := a.env.Workspaces.Owner(ctx, lane)
	switch {
	case errors.Is(err, fleetspace.ErrNone):
		return nil
	case err != nil:
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "the owner of %s %s cannot be read: %v", on.Kind, on.ID, err)
	}
	on.Owner = owner
	return a.Run.May(act, on)
}

// Execute runs the payload of the call, and sets aside what that has left for git to run in a
// directory used in place. A call after which that cannot be found out has failed.
func (a *Attempt) Execute(ctx context.Context, k *Kind) (protocol.Value, error) {
	returned := false
	defer func() {
		if !returned { // it panicked
			a.env.Sandboxes.SetAsideLater(ctx, a.lane())
		}
	}()
	value, err := k.run(ctx, a, a.Run.Call.Payload)
	returned = true
	if k.NoFiles && !k.acts || k.reads {
		return value, err
	}
	moved, asideErr := a.env.Sandboxes.SetAside(ctx, a.lane())
	if asideErr != nil {
		value, err = unguarded(value, err, asideErr)
	}
	if len(moved) > 0 {
		value = results.Noted(value, "The user's git would run programs because of these settings and hooks of new repositories, "+
			"so they were set aside, in files that end in .set-aside: "+strings.Join(moved, ", ")+". If they are needed, say so: only the user can put them back.")
	}
	return value, err
}

// unguarded is the outcome of a call after which it cannot be found out what the user's git would
// run. The next call, the end of the session and the next use of the directory try it again.
func unguarded(value protocol.Value, err, asideErr error) (protocol.Value, error) {
	said := fmt.Sprintf("the call has ended, but what the user's git would run in the workspace cannot be found out: %v", asideErr)
	fault, typed := errors.AsType[*protocol.Error](err)
	switch {
	case err == nil:
		return value, &protocol.Error{Code: protocol.CodeToolFailed, Message: said}
	case typed:
		both := *fault
		both.Message += "; " + said
		return value, &both
	default: // the worker words the error
		return results.Noted(value, said), err
	}
}

// Sandbox returns the sandbox of the call's session, and opens it at the first request.
func (a *Attempt) Sandbox(ctx context.Context) (sandbox.Sandbox, error) {
	if sandboxes.ID(a.lane()) == "" {
		return nil, errNoSandbox
	}
	box, s, err := a.open(ctx)
	if err == nil {
		box.Leave() // it stays as long as its lane is held
	}
	return s, err
}

// sharer names those who may share a temporary sandbox, with what lives in it and what was left in
// it: the calls of one owner, of a tool with the same program, variables and headers, so the same
// secrets. Everything else that a program there sees is the worker's, the same for all.
func (a *Attempt) sharer() string {
	of := struct {
		judge.Owner
		Server *protocol.MCPServer
		Argv   []string
		Env    map[string]string
	}{Owner: a.Run.Owner()}
	switch p := a.Run.Call.Payload.(type) {
	case protocol.MCPCall:
		of.Server = &p.Server
	case protocol.ToolRun:
		of.Argv, of.Env = p.Argv, p.Env
	default:
	}
	body, _ := json.Marshal(of) // texts always can be
	return string(body)
}

// Output sends live output to the followers of the call. It must not be called by
// two goroutines at a time, nor after the function has returned.
func (a *Attempt) Output(data []byte) { a.Live.output(sandbox.Stdout, data) }

func (a *Attempt) lane() protocol.Lane { return a.Run.Call.Lane() }

// maxFrame is the most output that one live frame carries.
const maxFrame = 32 << 10

// Live sends the live frames of one attempt. Its methods do not overlap.
type Live struct {
	env *Env
	run *lane.Run
	seq uint64
}

// Started says that the attempt has started.
func (f *Live) Started() { f.send(wire.FrameStarted, nil) }

// Waiting says which holder the call waits for, before it starts.
func (f *Live) Waiting(holder string) { f.frame(wire.FrameWaiting, []byte(holder)) }

func (f *Live) send(kind wire.FrameKind, data []byte) {
	f.seq++
	f.frame(kind, data)
}

func (f *Live) frame(kind wire.FrameKind, data []byte) {
	body, err := wire.Encode(&wire.Frame{
		CallID: f.run.Call.ID, Seq: f.seq, Kind: kind, WorkerID: f.env.ID, Attempt: f.run.Attempt, Data: data,
	})
	if err != nil {
		panic(fmt.Sprintf("encode frame: %v", err)) // strings and numbers always encode
	}
	// Frames may be lost by contract, so an error is ignored.
	_ = f.env.NC.Publish(wire.OutputSubject(f.env.Fleet, f.run.Call.SessionID, f.run.Call.ID), body)
}

func (f *Live) output(stream sandbox.Stream, data []byte) {
	kind := wire.FrameStdout
	if stream == sandbox.Stderr {
		kind = wire.FrameStderr
	}
	for len(data) > 0 {
		n := min(len(data), maxFrame)
		f.send(kind, data[:n])
		data = data[n:]
	}
}

// Bounds of the live output of a command, in bytes: it may write for hours.
const (
	liveRate  = 64 << 10 // a second
	liveBurst = 512 << 10
)

// Sparingly returns a function that sends live output as long as that is not too much. What is left
// out shows as a gap in the sequence of the frames; all of it is in the result, or where the
// process is read.
func (f *Live) Sparingly() func(stream sandbox.Stream, data []byte) {
	limit := rate.NewLimiter(liveRate, liveBurst)
	return func(stream sandbox.Stream, data []byte) {
		if !limit.AllowN(time.Now(), min(len(data), liveBurst)) {
			f.seq++
			return
		}
		f.output(stream, data)
	}
}
