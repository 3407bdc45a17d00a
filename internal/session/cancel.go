package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrElsewhere means that a session has an open turn without a call: its process serves only this
// session, or was lost.
var ErrElsewhere = errors.New("no serving coordinator has it")

// Cancel ends the turns of a session that run or wait, as interrupted, with the calls that they
// wait for, and returns their ids when they have ended. Without any it does nothing. The error
// wraps [ErrElsewhere] when a turn is open that cannot be reached from here.
func Cancel(ctx context.Context, f *fleet.Fleet, id protocol.SessionID) ([]protocol.CallID, error) {
	cancelled, err := cancel(ctx, f, id)
	if err != nil {
		err = fmt.Errorf("cancel session %s: %w", id, err)
	}
	return cancelled, err
}

func cancel(ctx context.Context, f *fleet.Fleet, id protocol.SessionID) ([]protocol.CallID, error) {
	r, err := newRemover(ctx, f, id, Options{})
	if err != nil {
		return nil, err
	}
	cancelled, err := r.cancel(ctx, r.ownLanes()[0], nil)
	if err != nil || len(cancelled) > 0 {
		return cancelled, err
	}
	history, err := f.Journal.Load(ctx, id)
	if err != nil {
		return nil, err
	}
	info := describe(history.Events)
	if IsOpen(info.State) {
		return nil, fmt.Errorf("turn %d is open, and %w: stop the process that runs it, or continue it (run --session %s) if that process was lost", info.Turns, ErrElsewhere, id)
	}
	return nil, nil
}

// Unfinished returns what runs or waits for a session in a fleet: turns that coordinators were
// asked for, and calls in its sandbox. A turn that is open without any may have been left.
func Unfinished(ctx context.Context, f *fleet.Fleet, id protocol.SessionID, pool protocol.Pool) (turns, calls []operator.CallStatus, err error) {
	r, err := newRemover(ctx, f, id, Options{Pool: pool})
	if err == nil {
		turns, err = r.unfinished(ctx, r.ownLanes()[0])
	}
	if err == nil {
		calls, err = r.unfinished(ctx, r.ownLanes()[1])
	}
	if err != nil {
		return nil, nil, fmt.Errorf("session %s: %w", id, err)
	}
	return turns, calls, nil
}

// Idle returns an error that wraps [ErrBusy] if a lane of a pool has calls without a result, which
// a worker that starts would run. Those that run no program may be there: they complete a command
// that was killed.
func Idle(ctx context.Context, f *fleet.Fleet, pool protocol.Pool) error {
	o, err := operator.New(ctx, f.Conn(pool), f.Name)
	if err != nil {
		return err
	}
	list, err := o.List(ctx, pool, maxTurnLanes)
	if err != nil {
		return err
	}
	for i := range list.Lanes {
		l := &list.Lanes[i]
		if l.Waiting+l.Delayed == 0 {
			continue
		}
		view, err := o.Show(ctx, pool, l.Lane, 0)
		if errors.Is(err, operator.ErrNoLane) {
			continue
		}
		if err != nil {
			return err
		}
		for j := range view.Calls {
			switch call := &view.Calls[j]; call.Payload.(type) {
			case wire.WorkspaceMerge, wire.WorkspaceRestore, wire.WorkspaceRemove:
			default:
				return fmt.Errorf("%w: call %s of session %s has no result; continue that session (run --session)", ErrBusy, call.CallID, call.SessionID)
			}
		}
	}
	return nil
}
