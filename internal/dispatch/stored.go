package dispatch

import (
	"context"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Result returns the stored result of a call, whoever sent that, of which Pool, SessionID and ID
// are enough; nil when there is none yet.
func (d *Dispatcher) Result(ctx context.Context, call *protocol.Call) (*protocol.Result, error) {
	return d.of(call.Pool).publisher.Result(ctx, call.SessionID, call.ID)
}

// Cancel asks for a call to end as cancelled, whoever sent it, of which Pool, Resources and ID are
// enough. Once it returns nil the request is stored; the result tells what became of it.
func (d *Dispatcher) Cancel(ctx context.Context, call *protocol.Call) error {
	return d.of(call.Pool).publisher.Cancel(ctx, call)
}
