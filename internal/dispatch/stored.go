package dispatch

import (
	"context"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Result returns the stored result of a call, whoever sent that; nil when there is none yet.
func (d *Dispatcher) Result(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	return d.publisher.Result(ctx, session, call)
}

// Cancel asks for a call to end as cancelled, whoever sent it, of which Pool, Resources and ID are
// enough. Once it returns nil the request is stored; the result tells what became of it.
func (d *Dispatcher) Cancel(ctx context.Context, call *protocol.Call) error {
	return d.publisher.Cancel(ctx, call)
}
