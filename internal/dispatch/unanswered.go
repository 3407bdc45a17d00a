package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// whoWait bounds the question whether a pool has workers. That there is none is
// answered by the server, at once unless the machine is busy.
const whoWait = 2 * time.Second

// unanswered is why there is no result of a call that was cancelled. Of a call that
// another process sent before this one, it is not known what was seen.
func (b *batch) unanswered(ctx context.Context, f *followed) *protocol.Error {
	switch {
	case !f.cancelled:
		return protocol.Errorf(protocol.CodeOutcomeUnknown,
			"no worker answered in time, and the fleet did not take a request to cancel the call; it may have had effects, or run later")
	case f.state == loop.StateRunning:
		return protocol.Errorf(protocol.CodeOutcomeUnknown,
			"the worker that ran the call did not answer in time; a request to cancel it is stored, but it may have had effects")
	case f.call.Again:
		return protocol.Errorf(protocol.CodeOutcomeUnknown,
			"no worker answered in time; a request to cancel the call is stored, but it may have had effects")
	case b.dispatcher.deserted(ctx, f.call.Pool):
		return protocol.Errorf(protocol.CodeNoWorker,
			"no worker of pool %s is there, and none was seen to take the call; a request to cancel it is stored, so that whoever comes does not run it", f.call.Pool)
	default:
		return protocol.Errorf(protocol.CodeNoWorker,
			"no worker of pool %s was seen to take the call in time; a request to cancel it is stored", f.call.Pool)
	}
}

// deserted reports whether nobody takes calls of a pool: neither workers nor, of the pool of
// sessions, coordinators.
func (d *Dispatcher) deserted(ctx context.Context, pool protocol.Pool) bool {
	ctx, cancel := context.WithTimeout(ctx, whoWait)
	defer cancel()
	for _, subject := range []protocol.Subject{d.fleet.WhoSubject(pool), d.fleet.AskAllSubject(pool)} { // coordinators answer the second one only
		if _, err := d.nc.RequestWithContext(ctx, subject, nil); !errors.Is(err, nats.ErrNoResponders) {
			return false
		}
	}
	return true
}
