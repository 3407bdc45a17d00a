package worker

import (
	"context"
	"log/slog"
	"strings"

	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
		Directory: dir, Owner: w.env.Sandboxes.Owner(run.Call.Lane()), Program: strings.TrimSuffix(w.env.NC.Opts.Name, " "+string(run.Call.SessionID)), Session: run.Call.SessionID, Uses: run.Call.Resources,
	}, func(holder string) {
		last = holder
		live.Waiting(holder)
	})
	if err == nil {
		return leave, nil
	}
	if status, fault, is := lane.Interrupted(ctx); is {
		if last == "" {
			last = "its turn in " + dir
		}
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
	if err := w.env.Sandboxes.Lane(l).Kill(); err != nil { // what is left dies with the release
		w.options.Logger.WarnContext(ctx, "sandbox of a lost lane cannot be closed", slog.String("lane", string(l)), slog.Any("error", err))
	}
	w.env.ReleaseLane(l)
}

// MayLinger implements [lane.Host].
func (w *Worker) MayLinger(l protocol.Lane) bool { return w.env.Sandboxes.Lingers(l) }

// MustHold implements [lane.Host]: stateful sessions and background processes outlive their calls.
func (w *Worker) MustHold(l protocol.Lane) bool {
	return w.env.HoldsLane(l) || w.env.Sandboxes.Lane(l).Busy()
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
}
