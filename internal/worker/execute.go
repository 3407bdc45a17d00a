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
	"github.com/toolfleet/toolfleet/internal/workspace"
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
	frames.send(protocol.FrameStarted, nil)
	var held *tenure // what a workspace that is kept here only needs not
	if w.sandboxes.checkpoints() {
		var stop func()
		held, stop = watchLease(ctx, run)
		defer stop()
		held.undos = w.sandboxes.undos(run.Call.Lane())
	}
	r := w.execute(ctx, run, frames)
	w.keep(ctx, run.Call, &r)
	w.commit(run, held, &r)
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
	return append(telemetry.Processed(w.options.Fleet.CallsStream()),
		telemetry.KeyCallID.String(string(run.Call.ID)), telemetry.KeyGenAIConversation.String(string(run.Call.SessionID)),
		telemetry.KeyPayload.String(string(run.Call.Payload.Kind())), telemetry.KeyLane.String(string(run.Call.Lane())),
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
			r = protocol.NewResult(run.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodePanic, "the tool panicked: %v", p))
		}
		r.Level = level
	}()
	if refusal := w.refuse(run.Call); refusal != nil {
		return protocol.NewResult(run.Call, protocol.StatusRejected, refusal)
	}
	if payload, isNoop := run.Call.Payload.(protocol.Noop); isNoop {
		return noop(ctx, run, payload)
	}
	if payload, isRead := run.Call.Payload.(protocol.ResultRead); isRead {
		value, err := w.resultRead(ctx, run.Call.SessionID, payload)
		return w.failed(ctx, run.Call, value, err)
	}
	level = w.options.Caps.Level.String()
	if run.Attempt > 1 {
		if done := w.covered(ctx, run); done != nil {
			return *done
		}
	}
	if handled, ok := w.handle(ctx, run, frames); ok {
		return handled
	}
	if answered, ok := w.talk(ctx, run, frames); ok {
		return answered
	}
	if _, removal := run.Call.Payload.(protocol.WorkspaceRemove); removal {
		value, err := w.workspaceRemove(ctx, run.Call.Lane())
		return w.failed(ctx, run.Call, value, err)
	}
	s, err := w.sandboxes.get(ctx, run.Call.Lane(), run.Fence, run.LeaseEnd)
	if err != nil {
		return w.failed(ctx, run.Call, nil, err)
	}
	done, err := w.committed(ctx, run.Call)
	if err != nil {
		return w.failed(ctx, run.Call, nil, err)
	}
	if done != nil {
		return *done
	}
	ctx, exec := w.options.Tracer.Start(ctx, telemetry.SpanSandboxExec, trace.WithAttributes(
		telemetry.KeySandboxDriver.String(w.options.Caps.Driver), telemetry.KeySandboxLevel.String(level)))
	defer exec.End()
	value, err := w.inSandbox(ctx, run, s, frames)
	if r = w.failed(ctx, run.Call, value, err); r.Error != nil {
		telemetry.Fail(exec, r.Error)
	}
	return r
}

// refuse says why this worker does not run a call at all; nil when it does.
func (w *Worker) refuse(c *protocol.Call) *protocol.Error {
	unknown, isUnknown := c.Payload.(protocol.UnknownPayload)
	if isUnknown && w.options.Handlers.Calls[unknown.Name] == nil {
		return protocol.Errorf(protocol.CodeUnknownPayload, "this worker does not know payload %q: it may be older than the coordinator, or lack the handler", unknown.Name)
	}
	if opening, is := c.Payload.(protocol.DialogOpen); is && w.options.Handlers.Stateful[opening.Tool].Run == nil {
		return protocol.Errorf(protocol.CodeUnknownPayload, "this worker does not know the stateful tool %q: it may be older than the coordinator, or lack the handler", opening.Tool)
	}
	need, err := sandbox.ParseLevel(c.MinLevel)
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalidPayload, "min_level: %v", err)
	}
	if need > w.options.Caps.Level {
		return protocol.Errorf(protocol.CodeSandboxLevel, "the call needs sandbox level %s, this worker has proven %s", need, w.options.Caps.Level)
	}
	if c.Payload.Kind() == protocol.KindTurnRun {
		return protocol.Errorf(protocol.CodeUnknownPayload, "turns are run by coordinators (pool %q), not by workers", protocol.SessionPool)
	}
	if !isUnknown && !anywhere(c.Payload) && sandboxOf(c.Lane()) == "" {
		return protocol.Errorf(protocol.CodeInvalidPayload, "payload %s needs a resource key sandbox/<id>, not %s", c.Payload.Kind(), c.Lane())
	}
	if name, is := uploadOf(c.Payload); is && !workspace.IsUpload(name) {
		return protocol.Errorf(protocol.CodeInvalidPayload, "%s: upload %.100q: must be 1 to 64 lower case letters and digits", c.Payload.Kind(), name)
	}
	return w.refuseCommand(c.Payload)
}

// anywhere reports whether a payload needs no sandbox of a session.
func anywhere(p protocol.Payload) bool {
	switch p.Kind() {
	case protocol.KindNoop, protocol.KindResultRead, protocol.KindToolRun,
		protocol.KindDialogOpen, protocol.KindDialogContinue, protocol.KindDialogEnd:
		return true
	default:
		return false
	}
}

// inSandbox runs a payload in its sandbox.
func (w *Worker) inSandbox(ctx context.Context, run *lane.Run, s sandbox.Sandbox, frames *frames) (protocol.Value, error) {
	switch payload := run.Call.Payload.(type) {
	case protocol.CommandRun:
		return w.commandRun(ctx, s, run, payload, frames)
	case protocol.CodeRun:
		return w.codeRun(ctx, s, payload, frames)
	case protocol.ToolRun:
		return w.toolRun(ctx, s, run.Call, payload, frames)
	case protocol.MCPList:
		return w.mcpList(ctx, s, run, payload)
	case protocol.MCPCall:
		return w.mcpCall(ctx, s, run, payload, frames)
	case protocol.ProcessList:
		return w.processes(run).List(), nil
	case protocol.ProcessRead:
		return valued(w.processes(run).Read(ctx, payload))
	case protocol.ProcessSend:
		return valued(w.processes(run).Send(ctx, payload))
	case protocol.ProcessKill:
		return valued(w.processes(run).Kill(ctx, payload.Process))
	case protocol.WorkspaceImport:
		return w.workspaceImport(ctx, run.Call.Lane(), payload)
	case protocol.WorkspaceExport:
		return w.workspaceExport(ctx, run.Call.Lane(), payload)
	case protocol.WorkspaceRestore:
		return w.workspaceRestore(ctx, run.Call.Lane(), payload)
	default:
		ops := fileOps{sandbox: s, session: run.Call.SessionID, seen: w.sandboxes.box(run.Call.Lane()).seen, ripgrep: w.languages.ripgrep, roots: run.Call.Roots}
		if value, known, err := ops.run(ctx, payload); known {
			return value, err
		}
		return nil, protocol.Errorf(protocol.CodeUnknownPayload, "this worker does not know payload %q", run.Call.Payload.Kind())
	}
}

// failed makes the result of a payload that returned value and err, either of which may be nil.
func (w *Worker) failed(ctx context.Context, c *protocol.Call, value protocol.Value, err error) protocol.Result {
	r := protocol.NewResult(c, protocol.StatusOK, nil)
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

func noop(ctx context.Context, run *lane.Run, payload protocol.Noop) protocol.Result {
	if !pause.For(ctx, payload.WorkMS.Duration()) {
		status, fault, _ := lane.Interrupted(ctx)
		return protocol.NewResult(run.Call, status, fault)
	}
	r := protocol.NewResult(run.Call, protocol.StatusOK, nil)
	r.Value = protocol.NoopResult{}
	return r
}

// maxFrame is the most output that one live frame carries.
const maxFrame = 32 << 10

// frames sends the live frames of one attempt. Its methods do not overlap.
type frames struct {
	worker *Worker
	run    *lane.Run
	seq    uint64
}

func (f *frames) send(kind protocol.FrameKind, data []byte) {
	f.seq++
	f.frame(kind, data)
}

func (f *frames) frame(kind protocol.FrameKind, data []byte) {
	body, err := protocol.EncodeFrame(&protocol.Frame{
		CallID: f.run.Call.ID, Seq: f.seq, Kind: kind, WorkerID: f.worker.options.ID, Attempt: f.run.Attempt, Data: data,
	})
	if err != nil {
		panic(fmt.Sprintf("encode frame: %v", err)) // strings and numbers always encode
	}
	// Lossy by contract: without a connection nobody listens.
	_ = f.worker.nc.Publish(f.worker.options.Fleet.OutputSubject(f.run.Call.SessionID, f.run.Call.ID), body)
}

func (f *frames) output(stream sandbox.Stream, data []byte) {
	kind := protocol.FrameStdout
	if stream == sandbox.Stderr {
		kind = protocol.FrameStderr
	}
	for len(data) > 0 {
		n := min(len(data), maxFrame)
		f.send(kind, data[:n])
		data = data[n:]
	}
}
