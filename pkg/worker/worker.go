// Package worker builds workers that run tools of your own in Go.
//
// A handler is a function for one kind of payload. The tool that sends such payloads is made where
// the sessions run, with [github.com/toolfleet/toolfleet/pkg/tools.NewRemote] or with a manifest
// that names the kind; order, retries and time limits are as for built-in tools.
//
//	tools.NewRemote ──► call {"type": KIND, "arguments": ...} ──► Handle(KIND, fn)
//	 (coordinator)                lane of its resources              (worker)
//	     text ◄────── result {"type": KIND, "output": ...} ◄────────────┘
//
// A worker runs in one of three ways, with the same handlers. [Main] is the whole command line of
// the worker, so a program of ten lines is a worker. [Run] is a worker inside a program with a main
// function of its own. A program that is a client of the fleet starts workers with StartWorker of
// package fleet, which share its connection.
//
// A Go program calls a handler without a tool: fleet.Call{Handler: KIND, Args: ...}.
//
// [HandleStateful] is for tools that keep state between calls.
//
// # What a handler may rely on
//
// It runs in the worker's process, as the worker's user, outside of any sandbox: validate what you
// pass on. The arguments of a tool were checked against its schema by the process that runs the
// session, which is to be trusted as far as the fleet's credentials are. Args of fleet.Call.Handler
// were not: check them. Calls whose resources conflict never overlap; others run side by side, so a
// handler is safe for concurrent use. A panic is the result "tool_panicked". After a lost worker
// the call runs again, unless the tool or the call says at_most_once: then its result is
// outcome_unknown.
//
// Commands in a sandbox end with the lease of their lane, even if the worker is lost or stopped. A
// handler cannot be killed: if its process was stopped for longer than the lease, it continues
// concurrently with the next holder of the lane until it asks its ctx. Err and Done of that ctx,
// and [Call.LeaseEnd], look at the clock, so they know of the loss as soon as the process is
// resumed. A context that the handler made from ctx ends a moment later. Ask ctx right before each
// write; a process that is stopped between the question and the write still writes too late.
// [Call.Fence] is for resources that must refuse this.
package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli/workercmd"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/dialog"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Handler executes payloads of one kind. Make one with [Handle] or [HandleStateful].
type Handler struct {
	kind protocol.Kind
	// Exactly one of them is set.
	run      kinds.Handler
	stateful *kinds.Stateful
}

// Kind is the kind of payload that the handler is for.
func (h Handler) Kind() protocol.Kind { return h.kind }

// Call is one attempt of the call that a handler executes. It is valid until the
// handler returns.
type Call struct{ handling *kinds.Attempt }

// ID is the id of the call, the same in every attempt: a key for idempotence.
func (c *Call) ID() protocol.CallID { return c.handling.Run.Call.ID }

// Session is the session that the call belongs to.
func (c *Call) Session() protocol.SessionID { return c.handling.Run.Call.SessionID }

// Tool is the name of the tool, as the model called it; for fleet.Call.Handler it is the kind.
func (c *Call) Tool() string { return c.handling.Run.Call.Tool }

// Attempt counts the starts of the call, from 1.
func (c *Call) Attempt() int { return c.handling.Run.Attempt }

// LeaseEnd is the end of the worker's lease of the call's lane; renewals move it forward. When it
// has passed, ctx has ended. It looks at two clocks, and the one on which more time has passed
// counts: the monotonic clock continues while a process is stopped (SIGSTOP) and stands still while
// the machine is suspended, where the wall clock continues. A process that is stopped between
// checking LeaseEnd and acting may still act too late.
func (c *Call) LeaseEnd() time.Time { return c.handling.Run.LeaseEnd() }

// Fence is a number that grows with each holder of the call's lane. Only the resource itself can
// refuse a handler that continues after its lease: send the fence with every write; in the same
// transaction the resource refuses a fence lower than the greatest that it has stored. Fences of
// different lanes cannot be compared: store one for each lane. Fences also grow if the claims
// stream is deleted and created again. If all streams of the fleet are deleted, they begin again.
func (c *Call) Fence() uint64 { return c.handling.Run.Fence }

// Resources is what the call has for the time of the handler: exclusively, or
// shared with other calls.
func (c *Call) Resources() []protocol.Use { return c.handling.Run.Call.Resources }

// Sandbox returns the sandbox of the session, for commands and files in its
// workspace. It is an error when the tool's resources are not of a sandbox. Do not
// close it: the worker does.
func (c *Call) Sandbox(ctx context.Context) (sandbox.Sandbox, error) { return c.handling.Sandbox(ctx) }

// Output shows data to live viewers of the call. It is lossy and no part of the
// result. Calls must not overlap.
func (c *Call) Output(data []byte) { c.handling.Output(data) }

// Handle makes a handler of a function. Args is decoded from the arguments of the tool call, and a
// field that Args does not have is an error; Output is encoded as JSON. The function must return
// soon after ctx ends: at the time limit, on cancel, and when the worker has lost its lane.
//
// A kind has 1 to 64 lower-case letters, digits and '_', and is no built-in payload. A bad kind,
// two handlers of one kind and a nil function are reported by [Main], [Run] and StartWorker.
//
// An error that is a *[protocol.Error] is the result's error as it is, for a model to
// read; any other becomes "tool_failed" with its text.
func Handle[Args, Output any](kind protocol.Kind, fn func(ctx context.Context, call *Call, args Args) (Output, error)) Handler {
	run := func(ctx context.Context, h *kinds.Attempt, raw json.RawMessage) (json.RawMessage, error) {
		args, err := decode[Args](kind, raw)
		if err != nil {
			return nil, err
		}
		return answered(fn(ctx, &Call{handling: h}, args))
	}
	if fn == nil {
		run = nil
	}
	return Handler{kind: kind, run: run}
}

// answered is what a function returned, as JSON. A nil *[protocol.Error] is no error, also as
// an error.
func answered[Output any](output Output, err error) (json.RawMessage, error) {
	if failure, typed := errors.AsType[*protocol.Error](err); err != nil && (!typed || failure != nil) {
		return nil, err
	}
	encoded, err := json.Marshal(output)
	if err != nil {
		return nil, fmt.Errorf("encode the output: %w", err)
	}
	return encoded, nil
}

// decode reads what a tool call gives to a handler.
func decode[T any](kind protocol.Kind, raw json.RawMessage) (value T, err error) {
	if len(raw) == 0 {
		return value, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&value); err != nil {
		return value, protocol.Errorf(codes.InvalidPayload,
			"the worker's handler of %s does not take this (%v): it may be of another version than the tool", kind, err)
	}
	return value, nil
}

// Main is the main function of a worker with handlers: the command line of cmd/worker
// (--nats, --sandbox, --slots, ...), until a signal. It does not return. The worker takes calls of
// its handlers only, and has no sandboxes, unless --sandbox names a driver ("auto"). Calls that
// need what it lacks stay for other workers of the pool.
func Main(handlers ...Handler) {
	version := "development"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	program := workercmd.FromProcess(version)
	all, err := byKind(handlers...)
	if err != nil {
		_, _ = fmt.Fprintf(program.Stderr, "%s: %v\n", program.Name, err)
		os.Exit(1)
	}
	os.Exit(workercmd.Run(program, all))
}

// byKind returns handlers by their kind. It is an error when a kind is not one that
// [wire.ParseUserKind] takes, or is there twice, when a function is nil, or when the limits of a
// stateful tool are negative.
func byKind(handlers ...Handler) (kinds.Handlers, error) {
	all := kinds.Handlers{Calls: map[protocol.Kind]kinds.Handler{}, Stateful: map[protocol.Kind]kinds.Stateful{}}
	for _, h := range handlers {
		if _, err := wire.ParseUserKind(string(h.kind)); err != nil {
			return kinds.Handlers{}, fmt.Errorf("handler: %w", err)
		}
		if all.Has(h.kind) {
			return kinds.Handlers{}, fmt.Errorf("handler of %s: there are two", h.kind)
		}
		if h.stateful == nil && h.run == nil {
			return kinds.Handlers{}, fmt.Errorf("handler of %s: function: missing", h.kind)
		}
		if h.stateful == nil {
			all.Calls[h.kind] = h.run
			continue
		}
		if err := h.stateful.Validate(); err != nil {
			return kinds.Handlers{}, fmt.Errorf("handler of %s: %w", h.kind, err)
		}
		all.Stateful[h.kind] = *h.stateful
	}
	return all, nil
}

// ErrOver is wrapped by the error of [Dialog.Yield] when the dialog has ended.
var ErrOver = dialog.ErrOver

// StatefulOptions bound the dialogs of a stateful tool; nil and zero mean the documented default.
type StatefulOptions struct {
	// Idle is how long a dialog waits for its next call; 0 means 10 minutes.
	Idle time.Duration
	// Life is the longest time of a dialog; 0 means 2 hours.
	Life time.Duration
	// Live is the maximum number of dialogs of the tool in a worker; 0 means 64. More are refused
	// with limit_reached.
	Live int
	// PerSession is how many of them one session may have; 0 means 8.
	PerSession int
}

// Dialog is one run of the function of a stateful tool, from the call that opened it to its
// end. It is for that function's goroutine only.
type Dialog[Input, Output any] struct {
	kind protocol.Kind
	talk *kinds.Talk
}

// Call is the call that the function answers now: the opening call, or that of the last Yield. It
// is valid until the next Yield.
func (d *Dialog[Input, Output]) Call() *Call { return &Call{handling: d.talk.Call()} }

// Step is the context of that call. It ends when the call is cancelled or out of time, and with the
// dialog. A function that yields within a second after that keeps its dialog, and the result has
// its output next to the status. Otherwise the dialog is lost.
func (d *Dialog[Input, Output]) Step() context.Context {
	return d.talk.Call().Run.Leased(d.talk.Step())
}

// Yield answers the present call with a value and waits for the next, whose input it returns.
//
// The error wraps [ErrOver] when there is no next one: clean up and return. It is a
// *[protocol.Error] when the input is not of this type, as the tool was made with another.
func (d *Dialog[Input, Output]) Yield(output Output) (input Input, err error) {
	encoded, err := answered(output, nil)
	if err != nil {
		return input, err
	}
	raw, err := d.talk.Yield(encoded)
	if err != nil {
		return input, err
	}
	return decode[Input](d.kind, raw)
}

// HandleStateful makes the handler of a stateful tool, which is made with
// [github.com/toolfleet/toolfleet/pkg/tools.NewStateful] where the sessions run. A call of the tool
// runs fn in a goroutine of its own; each Yield answers one call and waits for the next, with
// everything that fn has in its variables. What fn returns is its last answer; an error is as with
// [Handle], and a panic is the result tool_panicked. Either ends the dialog.
//
//	func(ctx context.Context, d *worker.Dialog[Input, Output], args Args) (Output, error) {
//		state := open(args)
//		defer state.close()
//		output := state.greeting()
//		for !state.done() {
//			input, err := d.Yield(output)
//			if err != nil {
//				return output, err
//			}
//			output = state.next(d.Step(), input)
//		}
//		return output, nil
//	}
//
// The calls of a dialog come one after another, in the order of its lane, which the worker holds
// until the dialog ends. ctx ends when fn must return: when the model ended the dialog, it was idle
// for too long or is too old, or the worker stops or lost the lane. The worker waits for it, as
// nothing else can stop it. The state is in this process only: after a lost worker a call that
// continues it is outcome_unknown if it may have started, else rejected with state_lost.
func HandleStateful[Args, Input, Output any](
	kind protocol.Kind, fn func(ctx context.Context, dialog *Dialog[Input, Output], args Args) (Output, error), options *StatefulOptions,
) Handler {
	var o StatefulOptions
	if options != nil {
		o = *options
	}
	run := func(ctx context.Context, talk *kinds.Talk, raw json.RawMessage) (json.RawMessage, error) {
		args, err := decode[Args](kind, raw)
		if err != nil {
			return nil, err
		}
		return answered(fn(talk.Call().Run.Leased(ctx), &Dialog[Input, Output]{kind: kind, talk: talk}, args))
	}
	if fn == nil {
		run = nil
	}
	return Handler{kind: kind, stateful: &kinds.Stateful{
		Run: run, Idle: o.Idle, Life: o.Life, Live: o.Live, PerSession: o.PerSession,
	}}
}
