package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// detached is what submit --detach prints with --json.
type detached struct {
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id"`
	TraceID   string             `json:"trace_id,omitempty"` // when this process exports traces
}

// leave has the turn accepted, and says how to go on.
func (c *submitCommand) leave(ctx context.Context, p program, fl *fleet.Fleet, call protocol.Call, workspace string) error {
	if err := accepted(ctx, fl, call); err != nil {
		return err
	}
	where := "--nats " + natsio.Redact(c.Nats)
	if c.Creds != "" {
		where += " --creds " + c.Creds
	}
	_, _ = fmt.Fprintf(p.Stderr, "coordinator: follow it with: coordinator session attach %s %s\n", where, call.SessionID)
	if workspace != "" {
		_, _ = fmt.Fprintf(p.Stderr, "coordinator: bring what it changes back with: coordinator session pull %s %s %s\n", where, call.SessionID, workspace)
	}
	if c.JSON {
		return printJSON(p, detached{call.SessionID, call.ID, telemetry.TraceID(ctx)})
	}
	_, err := fmt.Fprintln(p.Stdout, call.SessionID)
	return err
}

// accepted sends a call and returns when the fleet has it. The call goes on by itself.
func accepted(ctx context.Context, fl *fleet.Fleet, call protocol.Call) error {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	var result *protocol.Result
	err := fl.Dispatcher.Dispatch(ctx, []protocol.Call{call}, func(u loop.Update) {
		result = u.Result
		if u.State != loop.StateDone {
			leave(loop.ErrDetached)
		}
	})
	switch {
	case result != nil && result.Error != nil: // refused, or over already
		return fmt.Errorf("the turn was not accepted: %w", result.Error)
	case errors.Is(err, loop.ErrDetached):
		return nil
	default:
		return err
	}
}
