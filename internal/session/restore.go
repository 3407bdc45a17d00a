package session

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Restore has a worker of a pool make a session's workspace what it was after a call; "" is the
// default pool. That is a further checkpoint: those after the call stay. The error wraps [ErrBusy]
// when the session has an open turn or unfinished calls; then nothing was changed.
func Restore(ctx context.Context, f *fleet.Fleet, id protocol.SessionID, pool protocol.Pool, at protocol.CallID) (wire.WorkspaceRestoreResult, error) {
	r, err := newRemover(ctx, f, id, Options{Pool: pool})
	if err == nil {
		err = r.refuseBusy(ctx, "or end it (session cancel)")
	}
	var value protocol.Value
	if err == nil {
		value, err = r.call(ctx, wire.WorkspaceRestore{At: at})
	}
	if err != nil {
		return wire.WorkspaceRestoreResult{}, fmt.Errorf("restore session %s: %w", id, err)
	}
	restored, _ := value.(wire.WorkspaceRestoreResult)
	return restored, nil
}
