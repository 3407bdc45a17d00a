package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Execute implements [lane.Executor].
func (w *Worker) Execute(ctx context.Context, run *lane.Run) protocol.Result {
	ctx = telemetry.Extract(ctx, run.Header)
	ctx, process := w.options.Tracer.Start(ctx, telemetry.SpanProcess, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(w.attributes(run)...))
	defer process.End()
	ctx, tool := w.options.Tracer.Start(ctx, telemetry.SpanExecuteTool(run.Call.Tool), trace.WithAttributes(
		telemetry.KeyGenAIOperation.String(telemetry.OperationExecuteTool), telemetry.KeyGenAIToolName.String(run.Call.Tool), telemetry.KeyGenAIToolCallID.String(run.Call.ToolCallID)))
	defer tool.End()

	w.metrics.Started(ctx, run.Call.Tool, run.Attempt, run.Queued, run.InLane)
	begun := time.Now()
	frames := &frames{worker: w, run: run}
	frames.send(wire.FrameStarted, nil)
	var lease *checkpoint.Lease // nil without checkpoints
	if w.sandboxes.Checkpoints() {
		var stop func()
		lease, stop = checkpoint.Watch(ctx, run, w.sandboxes.Box(run.Call.Lane()).Undos())
		defer stop()
	}
	r := w.execute(ctx, run, frames)
	w.keep(ctx, run.Call, &r)
	w.commit(run, lease, &r) //nolint:contextcheck // the changes of a cancelled call are stored, too: within the lease
	w.metrics.Executed(ctx, run.Call.Tool, r.Error.ErrorType(), time.Since(begun))
	tool.SetAttributes(telemetry.KeyStatus.String(string(r.Status)), telemetry.KeySandboxLevel.String(r.Level))
	process.SetAttributes(telemetry.KeyStatus.String(string(r.Status)))
	if r.Error != nil {
		telemetry.Fail(tool, r.Error)
		telemetry.Fail(process, r.Error)
	}
	w.options.Logger.DebugContext(ctx, "call executed", slog.String("call_id", string(run.Call.ID)),
		slog.String("tool", run.Call.Tool), slog.Int("attempt", run.Attempt), slog.String("status", string(r.Status)))
	return r
}

func (w *Worker) attributes(run *lane.Run) []attribute.KeyValue {
	return append(telemetry.Processed(wire.CallsStream(w.options.Fleet)),
		telemetry.KeyCallID.String(string(run.Call.ID)), telemetry.KeyGenAIConversation.String(string(run.Call.SessionID)),
		telemetry.KeyPayload.String(string(wire.KindOf(run.Call.Payload))), telemetry.KeyLane.String(string(run.Call.Lane())),
		telemetry.KeyPool.String(string(run.Call.Pool)), telemetry.KeyWorkerID.String(string(w.options.ID)),
		telemetry.KeyAttempt.Int(run.Attempt),
		telemetry.KeyQueueMS.Float64(float64(run.Queued)/float64(time.Millisecond)),
		telemetry.KeyLaneMS.Float64(float64(run.InLane)/float64(time.Millisecond)))
}

// execute runs the payload and turns whatever happens into a result.
func (w *Worker) execute(ctx context.Context, run *lane.Run, frames *frames) (r protocol.Result) {
	level := ""
	defer func() {
		if p := recover(); p != nil {
			w.options.Logger.ErrorContext(ctx, "payload panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			r = wire.NewResult(run.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodePanic, "the tool panicked: %v", p))
		}
		r.Level = level
	}()
	k, refusal := w.accept(run.Call)
	if refusal != nil {
		return wire.NewResult(run.Call, protocol.StatusRejected, refusal)
	}
	a := &Attempt{Run: run, worker: w, frames: frames}
	if k.needs > needsNothing {
		level = w.options.Caps.Level.String()
		if run.Attempt > 1 {
			if done := w.CommittedResult(ctx, run); done != nil {
				return *done
			}
		}
	}
	if k.needs >= needsAnySandbox {
		return w.inSandbox(ctx, a, k)
	}
	value, err := k.run(ctx, a, run.Call.Payload)
	if k.needs == needsFunction {
		return w.returned(ctx, run.Call, value, err)
	}
	return w.failed(ctx, run.Call, value, err)
}

// inSandbox opens the sandbox of a call, and runs the payload there unless an earlier attempt has
// done that.
func (w *Worker) inSandbox(ctx context.Context, a *Attempt, k *kind) (r protocol.Result) {
	call := a.Run.Call
	var err error
	if a.box, a.sandbox, err = w.sandboxes.Open(ctx, call.Lane(), a.Run.Fence, a.Run.LeaseEnd); err != nil {
		return w.failed(ctx, call, nil, err)
	}
	done, err := committed(ctx, a.box, call)
	if err != nil {
		return w.failed(ctx, call, nil, err)
	}
	if done != nil {
		return *done
	}
	ctx, exec := w.options.Tracer.Start(ctx, telemetry.SpanSandboxExec, trace.WithAttributes(
		telemetry.KeySandboxDriver.String(w.options.Caps.Driver), telemetry.KeySandboxLevel.String(w.options.Caps.Level.String())))
	defer exec.End()
	value, err := k.run(ctx, a, call.Payload)
	if r = w.failed(ctx, call, value, err); r.Error != nil {
		telemetry.Fail(exec, r.Error)
	}
	return r
}

// accept returns how a call is run here, or why this worker does not run it.
func (w *Worker) accept(c *protocol.Call) (*kind, *protocol.Error) {
	k := w.kinds[wire.KindOf(c.Payload)]
	if k == nil {
		return nil, unknownPayload(wire.KindOf(c.Payload))
	}
	level, err := sandbox.ParseLevel(c.MinLevel)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidPayload, "min_level: %v", err)
	}
	if level > w.options.Caps.Level {
		return nil, protocol.Errorf(protocol.CodeSandboxLevel, "the call needs sandbox level %s, this worker has proven %s", level, w.options.Caps.Level)
	}
	if (k.needs == needsSandbox || k.needs == needsLane) && sandboxes.ID(c.Lane()) == "" {
		return nil, protocol.Errorf(protocol.CodeInvalidPayload, "payload %s needs a resource key sandbox/<id>, not %s", wire.KindOf(c.Payload), c.Lane())
	}
	if k.check != nil {
		if refusal := k.check(w, c.Payload); refusal != nil {
			return nil, refusal
		}
	}
	return k, nil
}

// refuseTurn refuses a turn that was sent to a pool of workers.
func refuseTurn(*Worker, protocol.TurnRun) *protocol.Error {
	return protocol.Errorf(protocol.CodeUnknownPayload, "turns are run by coordinators (pool %q), not by workers", protocol.SessionPool)
}

// failed makes the result of a payload that returned value and err, either of which may be nil.
func (w *Worker) failed(ctx context.Context, c *protocol.Call, value protocol.Value, err error) protocol.Result {
	r := wire.NewResult(c, protocol.StatusOK, nil)
	r.Value = value
	if err == nil {
		return r
	}
	if status, fault, interrupted := lane.Interrupted(ctx); interrupted {
		r.Status, r.Error = status, fault
		return r
	}
	r.Status = protocol.StatusFailed
	if fault, ok := errors.AsType[*sandbox.Fault](err); ok {
		err = protocol.Errorf(protocol.Code(fault.Code), "%s", fault.Message)
	}
	if fault, ok := errors.AsType[*protocol.Error](err); ok {
		r.Error = fault
		switch {
		case notRun(fault.Code):
			r.Status = protocol.StatusRejected
		case fault.Code == protocol.CodeRunTimeout:
			r.Status = protocol.StatusTimeout
		case fault.Code == protocol.CodeOutcomeUnknown:
			r.Status = protocol.StatusOutcomeUnknown
		}
		return r
	}
	if errors.Is(err, sandbox.ErrUnsupported) {
		r.Status, r.Error = protocol.StatusRejected, protocol.Errorf(protocol.CodeSandboxUnsupported, "%v; nothing was run", err)
		return r
	}
	if errors.Is(err, sandbox.ErrClosed) {
		r.Error = protocol.Errorf(protocol.CodeSandboxLost, "the sandbox was closed while the call ran")
		return r
	}
	w.options.Logger.WarnContext(ctx, "sandbox failed", slog.String("call_id", string(c.ID)), slog.Any("error", err))
	r.Error = protocol.Errorf(protocol.CodeInternal, "the worker failed to run the call: %v", err)
	return r
}

// notRun reports whether a code says that the call was wrong in itself, so that nothing was run.
func notRun(code protocol.Code) bool {
	switch code {
	case protocol.CodeUnknownPayload, protocol.CodeInvalidPayload, protocol.CodeInvalidArguments,
		protocol.CodeLanguage, protocol.CodePathEscape, protocol.CodeSandboxUnsupported, protocol.CodeNetworkOff, protocol.CodeLoginRequired,
		protocol.CodeStateLost, protocol.CodePolicyDenied:
		return true
	default:
		return false
	}
}

// noop waits for as long as the payload says.
func noop(ctx context.Context, _ *Attempt, p protocol.Noop) (protocol.Value, error) {
	if !pause.For(ctx, p.WorkMS.Duration()) {
		return nil, ctx.Err()
	}
	return protocol.NoopResult{}, nil
}

// maxFrame is the most output that one live frame carries.
const maxFrame = 32 << 10

// frames sends the live frames of one attempt. Its methods do not overlap.
type frames struct {
	worker *Worker
	run    *lane.Run
	seq    uint64
}

func (f *frames) send(kind wire.FrameKind, data []byte) {
	f.seq++
	f.frame(kind, data)
}

func (f *frames) frame(kind wire.FrameKind, data []byte) {
	body, err := wire.EncodeFrame(&wire.Frame{
		CallID: f.run.Call.ID, Seq: f.seq, Kind: kind, WorkerID: f.worker.options.ID, Attempt: f.run.Attempt, Data: data,
	})
	if err != nil {
		panic(fmt.Sprintf("encode frame: %v", err)) // strings and numbers always encode
	}
	// Lossy by contract: without a connection nobody listens.
	_ = f.worker.nc.Publish(wire.OutputSubject(f.worker.options.Fleet, f.run.Call.SessionID, f.run.Call.ID), body)
}

func (f *frames) output(stream sandbox.Stream, data []byte) {
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
