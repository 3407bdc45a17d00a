package worker

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Handler executes payloads of a kind of the user's own. It runs in the worker's
// process, not in a sandbox. arguments and the output are JSON values. An error
// that is a *[protocol.Error] or a *[sandbox.Fault] is the result's as it is; any
// other is "tool_failed" with its text. When ctx ends, the call is over whatever the
// handler returns; one that goes on then holds a slot, and what it does is not undone.
type Handler func(ctx context.Context, h *Handling, arguments json.RawMessage) (json.RawMessage, error)

// Handling is one attempt of a call that a [Handler] executes.
type Handling struct {
	Call    *protocol.Call
	Attempt int

	worker *Worker
	frames *frames
}

// errNoSandbox answers handlers of calls that have none.
var errNoSandbox = errors.New("the call has no sandbox: its resource key is not sandbox/<id>")

// Sandbox returns the sandbox of the call's session, which is opened by the first that asks.
func (h *Handling) Sandbox(ctx context.Context) (sandbox.Sandbox, error) {
	if sandboxOf(h.Call.Lane()) == "" {
		return nil, errNoSandbox
	}
	return h.worker.sandboxes.get(ctx, h.Call.Lane())
}

// Output sends live output to whoever watches the call. It must not be called by
// two goroutines at a time, nor after the handler has returned.
func (h *Handling) Output(data []byte) { h.frames.output(sandbox.Stdout, data) }

// handle runs the handler of a payload; ok is false when there is none for its kind.
func (w *Worker) handle(ctx context.Context, run *lane.Run, frames *frames) (r protocol.Result, ok bool) {
	payload, isUnknown := run.Call.Payload.(protocol.UnknownPayload)
	handler := w.options.Handlers[run.Call.Payload.Kind()]
	if !isUnknown || handler == nil {
		return r, false
	}
	arguments, err := payload.Arguments()
	if err != nil {
		return protocol.NewResult(run.Call, protocol.StatusRejected, protocol.Errorf(protocol.CodeInvalidPayload, "%v", err)), true
	}
	value, err := w.callHandler(ctx, handler, &Handling{Call: run.Call, Attempt: run.Attempt, worker: w, frames: frames}, arguments)
	return w.failed(ctx, run.Call, value, err), true
}

// callHandler turns what a handler returns into a value, or an error that is the tool's.
func (w *Worker) callHandler(ctx context.Context, handler Handler, h *Handling, arguments json.RawMessage) (protocol.Value, error) {
	output, err := handler(ctx, h, arguments)
	if err == nil {
		value, encodeErr := protocol.NewUserValue(h.Call.Payload.Kind(), output)
		if encodeErr == nil {
			return value, ctx.Err()
		}
		err = encodeErr
	}
	if _, typed := errors.AsType[*protocol.Error](err); typed {
		return nil, err
	}
	if _, typed := errors.AsType[*sandbox.Fault](err); typed {
		return nil, err
	}
	return nil, protocol.Errorf(protocol.CodeToolFailed, "%s", strings.ToValidUTF8(err.Error(), "\uFFFD"))
}
