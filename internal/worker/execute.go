package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Execute implements [lane.Executor].
func (w *Worker) Execute(ctx context.Context, run *lane.Run) protocol.Result {
	ctx = natsio.StoredBy(telemetry.Extract(ctx, run.Header), run.Call.Tenant)
	ctx = judge.With(ctx, judge.PrincipalOf(run.Owner()))
	ctx, process := w.options.Tracer.Start(ctx, telemetry.SpanProcess, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(w.attributes(run)...))
	defer process.End()
	ctx, tool := w.options.Tracer.Start(ctx, telemetry.SpanExecuteTool(run.Call.Tool), trace.WithAttributes(
		genaiconv.Operation.String(genaiconv.OperationTool), genaiconv.ToolType.String(genaiconv.ToolFunction),
		genaiconv.ToolName.String(run.Call.Tool), genaiconv.ToolCallID.String(run.Call.ToolCallID)))
	defer tool.End()

	w.metrics.Started(ctx, run.Call.Tool, run.Attempt, run.Queued, run.InLane)
	begun := time.Now()
	a := w.env.Attempt(run)
	a.Live.Started()
	lease, stop := checkpoint.Watch(ctx, run, w.env.Sandboxes.Lane(run.Call.Lane()).Undos())
	defer stop()
	r := w.execute(ctx, a)
	if !run.WillRetry(&r) {
		ended := time.Now()
		w.env.StoreFull(ctx, run.Call, &r)
		w.commit(run, lease, &r) //nolint:contextcheck // the changes of a cancelled call are stored, too: within the lease
		r.StoreMS = noticeable(time.Since(ended))
	}
	w.metrics.Executed(ctx, run.Call.Tool, r.Error.ErrorType(), time.Since(begun))
	tool.SetAttributes(telemetry.KeyStatus.String(string(r.Status)), telemetry.KeySandboxLevel.String(r.Level))
	if genaiconv.Captures() {
		arguments, _ := json.Marshal(run.Call.Payload) // wire types always encode
		value, _ := json.Marshal(r.Value)
		tool.SetAttributes(genaiconv.Captured(genaiconv.ToolCallArguments, string(arguments)), genaiconv.Captured(genaiconv.ToolCallResult, string(value)))
	}
	process.SetAttributes(telemetry.KeyStatus.String(string(r.Status)))
	if r.Error != nil {
		telemetry.Fail(tool, r.Error)
		telemetry.Fail(process, r.Error)
	}
	w.options.Logger.DebugContext(ctx, "call executed", slog.String("call_id", string(run.Call.ID)),
		slog.String("tool", run.Call.Tool), slog.Int("attempt", run.Attempt), slog.String("status", string(r.Status)))
	return r
}

// noticeable is a time in milliseconds; 0 below one, which results leave out.
func noticeable(d time.Duration) float64 {
	if d < time.Millisecond {
		return 0
	}
	return float64(d) / float64(time.Millisecond)
}

func (w *Worker) attributes(run *lane.Run) []attribute.KeyValue {
	return append(telemetry.Processed(wire.CallsStream(w.options.Fleet)),
		telemetry.KeyCallID.String(string(run.Call.ID)), genaiconv.ConversationID.String(string(run.Call.SessionID)),
		telemetry.KeyPayload.String(string(wire.KindOf(run.Call.Payload))), telemetry.KeyLane.String(string(run.Call.Lane())),
		telemetry.KeyPool.String(string(run.Call.Pool)), telemetry.KeyWorkerID.String(string(w.options.Worker)),
		telemetry.KeyAttempt.Int(run.Attempt),
		telemetry.KeyQueueMS.Float64(float64(run.Queued)/float64(time.Millisecond)),
		telemetry.KeyLaneMS.Float64(float64(run.InLane)/float64(time.Millisecond)))
}

// execute runs the payload and turns whatever happens into a result.
func (w *Worker) execute(ctx context.Context, a *kinds.Attempt) (r protocol.Result) {
	run := a.Run
	level, network, opening := "", "", time.Duration(0)
	defer func() {
		if p := recover(); p != nil {
			w.options.Logger.ErrorContext(ctx, "payload panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			r = wire.NewResult(run.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodePanic, "the tool panicked: %v", p))
		}
		r.Level, r.Network, r.SandboxMS = level, network, noticeable(opening)
	}()
	k, refusal := w.env.Accept(run.Call)
	if refusal != nil {
		return wire.NewResult(run.Call, protocol.StatusRejected, refusal)
	}
	if refusal := a.Owned(ctx); refusal != nil {
		return wire.NewResult(run.Call, protocol.StatusRejected, refusal)
	}
	if k.Needs > kinds.NeedsNothing {
		level, network = w.options.Caps.Level.String(), w.reached(wire.KindOf(run.Call.Payload))
		if run.Attempt > 1 {
			if done := w.CommittedResult(ctx, run); done != nil {
				return *done
			}
			if w.isHalfDone(run.Call) {
				return wire.NewResult(run.Call, protocol.StatusOutcomeUnknown, protocol.Errorf(protocol.CodeOutcomeUnknown, halfDone))
			}
		}
	}
	if k.Needs >= kinds.NeedsAnySandbox {
		began := time.Now()
		box, err := a.Open(ctx)
		if opening = time.Since(began); err != nil {
			return w.resultOf(ctx, run.Call, nil, err)
		}
		defer box.Leave()
		done, err := committed(ctx, box, run.Call)
		if err != nil {
			return w.resultOf(ctx, run.Call, nil, err)
		}
		if done != nil {
			return *done
		}
		var exec trace.Span
		ctx, exec = w.options.Tracer.Start(ctx, telemetry.SpanSandboxExec, trace.WithAttributes(
			telemetry.KeySandboxDriver.String(w.options.Caps.Driver), telemetry.KeySandboxLevel.String(level)))
		defer func() {
			if r.Error != nil {
				telemetry.Fail(exec, r.Error)
			}
			exec.End()
		}()
	}
	value, err := a.Execute(ctx, k)
	r = w.resultOf(ctx, run.Call, value, err)
	if err == nil && k.Needs == kinds.NeedsFunction {
		if status, fault, late := outlasted(ctx); late {
			r.Status, r.Error = status, fault
		}
	}
	return r
}

// halfDone is what the caller reads of a call that [Worker.isHalfDone] reports.
const halfDone = "the process that ran the call ended before the call did. The session works in a directory in place, " +
	"so what the call had done until then is still there, and it was not started again: look at the files, then do what is missing"

// isHalfDone reports whether a call that another worker may have started must not start again: it
// changes a directory that is used in place, which no worker can restore to its state before the
// call.
func (w *Worker) isHalfDone(call *protocol.Call) bool {
	_, inPlace := w.env.Sandboxes.InPlace(call.Lane())
	_, changes := checkpoint.Changes(call)
	return inPlace && changes && call.Delivery == protocol.Rollback
}

// resultOf turns what a payload returned into its result.
func (w *Worker) resultOf(ctx context.Context, c *protocol.Call, value protocol.Value, err error) protocol.Result {
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
		r.Status, r.Error = protocol.StatusRejected, protocol.Errorf(codes.SandboxUnsupported, "%v; nothing was run", err)
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
	case codes.UnknownPayload, codes.InvalidPayload, protocol.CodeInvalidArguments,
		codes.Language, codes.PathEscape, codes.SandboxUnsupported, codes.NetworkOff, codes.LoginRequired, codes.NotSigned,
		protocol.CodeStateLost, protocol.CodePolicyDenied:
		return true
	default:
		return false
	}
}

// outlasted is [lane.Interrupted] for a function of a user's, which nothing can kill: it came to
// its end by itself after its context had ended.
func outlasted(ctx context.Context) (status protocol.Status, fault *protocol.Error, ok bool) {
	if status, fault, ok = lane.Interrupted(ctx); !ok {
		return "", nil, false
	}
	const kept = "it was not killed and came to its end, so its effects stay; what it returned is its value"
	switch fault.Code {
	case protocol.CodeRunTimeout:
		fault.Message = "the call took longer than its time; " + kept
	case protocol.CodeDeadline:
		fault.Message = "the deadline of the call passed while it ran; " + kept
	default:
		fault.Message = "the call was cancelled while it ran; " + kept
	}
	return status, fault, ok
}

// CommittedResult implements [lane.Host]. It opens the sandbox first: that of a call that does not
// run again, or that a function of this program runs, may not be open yet.
func (w *Worker) CommittedResult(ctx context.Context, run *lane.Run) *protocol.Result {
	if w.options.Caps.Driver == NoSandboxes || sandboxes.ID(run.Call.Lane()) == "" {
		return nil
	}
	box, _, err := w.env.Sandboxes.Open(ctx, run.Call.Lane(), "", run.Fence, run.LeaseEnd)
	var done *protocol.Result
	if err == nil {
		defer box.Leave()
		done, err = committed(ctx, box, run.Call)
	}
	if err != nil {
		w.options.Logger.WarnContext(ctx, "checkpoint of a call cannot be read", slog.String("call_id", string(run.Call.ID)), slog.Any("error", err))
	}
	return done
}

// committed is the result of a call whose changes were committed before its worker was lost; nil if
// the call must run.
func committed(ctx context.Context, box *sandboxes.LaneSandbox, call *protocol.Call) (*protocol.Result, error) {
	c := box.Checkpoints()
	if c == nil {
		return nil, nil //nolint:nilnil // it must run
	}
	return c.Result(ctx, call.ID)
}

// commit stores what a call has changed with the fleet, before its result is stored.
func (w *Worker) commit(run *lane.Run, lease *checkpoint.Lease, r *protocol.Result) {
	box := w.env.Sandboxes.Lane(run.Call.Lane())
	c := box.Checkpoints()
	only, mutates := checkpoint.Changes(run.Call)
	if !mutates || r.Status == protocol.StatusRejected {
		return
	}
	if c == nil {
		if lease.Undone(box.Undos()) {
			w.abandon(run, box)
		}
		return
	}
	if r.WorkerID == "" {
		r.WorkerID, r.Attempt = w.options.Worker, run.Attempt
	}
	lost := r.Error != nil && r.Error.Code == protocol.CodeSandboxLost && run.Call.Delivery != protocol.AtMostOnce
	if !lease.Valid() || lost { // it was killed, and runs again in the workspace as it was
		w.abandon(run, box)
		return
	}
	err := c.Commit(only, lease, r)
	switch {
	case err == nil:
	case errors.Is(err, workspace.ErrLost) || errors.Is(err, checkpoint.ErrUndone) || lease.Context().Err() != nil:
		w.abandon(run, box)
	default:
		*r = w.resultOf(lease.Context(), run.Call, nil, undo(lease.Context(), box, c, err))
	}
}

// abandon gives up a call whose changes are not stored, and closes the sandbox that has them.
func (w *Worker) abandon(run *lane.Run, box *sandboxes.LaneSandbox) {
	run.Abandon()
	if err := box.Kill(); err != nil { // the release closes the rest
		w.options.Logger.Warn("sandbox of an abandoned lane cannot be closed", slog.String("lane", string(run.Call.Lane())), slog.Any("error", err))
	}
}

// undo undoes the changes of a call that cannot be stored, and returns the error of the call.
func undo(ctx context.Context, box *sandboxes.LaneSandbox, c *checkpoint.Directory, cause error) error {
	if err := c.Undo(ctx, box.Kill); err != nil {
		box.Reclaim()
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable,
			"the call ran, but its changes could not be stored with the fleet, and are undone before the next call: %v", errors.Join(cause, err))
	}
	return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "the call ran, but its changes could not be stored with the fleet, and were undone: %v", cause)
}

// The methods that the lane engine needs, in addition to [Worker.Execute].
var _ lane.Host = (*Worker)(nil)

// CanRun implements [lane.Host]. A worker that is alone accepts every call, to refuse it.
func (w *Worker) CanRun(n lane.Requirements) bool { return w.options.Alone || w.env.CanRun(n) }

// Admit implements [lane.Host]: it waits until no process of this machine runs a call that
// conflicts with this one in a directory that is used in place. The followers of the call see what
// it waits for.
func (w *Worker) Admit(ctx context.Context, run *lane.Run) (leave func(), refusal *protocol.Result) {
	dir, is := w.env.Sandboxes.InPlace(run.Call.Lane())
	if !is || w.options.InPlace == nil || w.env.NoFiles(wire.KindOf(run.Call.Payload)) {
		return func() {}, nil
	}
	var last string
	live := w.env.Attempt(run).Live
	leave, err := w.options.InPlace.Lock(ctx, inplace.Use{
		Directory: dir, Owner: w.env.Sandboxes.Owner(run.Call.Lane()),
		Program: strings.TrimSuffix(w.env.NC.Opts.Name, " "+string(run.Call.SessionID)), Session: run.Call.SessionID,
		Uses: run.Call.Resources,
	}, func(holder string) {
		last = holder
		live.Waiting(holder)
	})
	if err == nil {
		return leave, nil
	}
	if status, fault, is := lane.Interrupted(ctx); is {
		last = cmp.Or(last, "its turn in "+dir)
		r := wire.NewResult(run.Call, status, protocol.Errorf(fault.Code, "the call ended while it waited for %s; nothing was run", last))
		return nil, &r
	}
	r := w.resultOf(ctx, run.Call, nil, protocol.Errorf(protocol.CodeSandboxUnavailable, "%v; nothing was run", err))
	return nil, &r
}

// OnLost implements [lane.Host]: it kills the lane's sandbox and ends its stateful sessions,
// without the grace of a cancel, because another worker may own the lane by now.
func (w *Worker) OnLost(ctx context.Context, l protocol.Lane) {
	w.metrics.Lost(ctx)
	if err := w.env.Sandboxes.Kill(l); err != nil { // what is left dies with the release
		w.options.Logger.WarnContext(ctx, "sandbox of a lost lane cannot be closed", slog.String("lane", string(l)), slog.Any("error", err))
	}
	w.env.ReleaseLane(l)
}

// OnWorkerLost implements [lane.Host].
func (w *Worker) OnWorkerLost(ctx context.Context, id protocol.WorkerID) {
	w.metrics.LostWorker(ctx)
	w.options.Logger.InfoContext(ctx, "a worker was lost: its lanes go to others", slog.String("worker_id", string(id)))
}

// MayLinger implements [lane.Host].
func (w *Worker) MayLinger(l protocol.Lane) bool { return w.env.Sandboxes.Lingers(l) }

// MustHold implements [lane.Host]: stateful sessions and background processes outlive their calls.
func (w *Worker) MustHold(l protocol.Lane) bool {
	return w.env.HoldsLane(l) || w.env.Sandboxes.Busy(l)
}

// PreferredDisk implements [lane.Host].
func (w *Worker) PreferredDisk(ctx context.Context, l protocol.Lane) string {
	return w.env.Sandboxes.LastAt(ctx, l)
}

// Release implements [lane.Executor].
func (w *Worker) Release(l protocol.Lane) {
	w.env.ReleaseLane(l)
	if err := w.env.Sandboxes.Release(l); err != nil {
		w.options.Logger.Warn("sandbox cannot be closed", slog.String("lane", string(l)), slog.Any("error", err))
	}
}

// OnSettled implements [lane.Host] for metrics and checkpoints.
func (w *Worker) OnSettled(ctx context.Context, c *protocol.Call, r *protocol.Result) {
	w.env.Sandboxes.Lane(c.Lane()).Checkpoints().Settled(c.ID)
	w.metrics.Ended(ctx, c.Tool, string(r.Status), r.Error.ErrorType())
	w.metrics.Waited(ctx, string(c.Tenant), wire.WaitsByReason(&r.Waits))
}
