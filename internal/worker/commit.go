package worker

import (
	"context"
	"errors"
	"log/slog"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// CommittedResult implements [lane.Host]. It opens the sandbox first: that of a call that does not
// run again, or that a function of this program runs, may not be open yet.
func (w *Worker) CommittedResult(ctx context.Context, run *lane.Run) *protocol.Result {
	if w.options.Caps.Driver == NoSandboxes || sandboxes.ID(run.Call.Lane()) == "" {
		return nil
	}
	box, _, err := w.env.Sandboxes.Open(ctx, run.Call.Lane(), run.Fence, run.LeaseEnd)
	var done *protocol.Result
	if err == nil {
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
