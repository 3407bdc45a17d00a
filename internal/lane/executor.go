package lane

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Causes for which a call's context ends.
var (
	// ErrLost says that the lane may belong to another worker by now.
	ErrLost = errors.New("lease lost")
	// ErrCancelled says that somebody asked to cancel the call.
	ErrCancelled = errors.New("cancelled on request")
	// ErrRunTimeout says that the attempt took longer than the call allows.
	ErrRunTimeout = errors.New("run timeout")
	// ErrDeadline says that the call's result is of no more use.
	ErrDeadline = errors.New("deadline exceeded")
	// ErrDraining says that the holder is stopping.
	ErrDraining = errors.New("worker is draining")
)

// Executor executes calls of held lanes.
type Executor interface {
	// Execute runs one attempt of a call and returns its terminal result; identity
	// and times are filled in by the engine, but for the worker and the attempt of a result that
	// has them, as an earlier attempt has left it. When ctx ends it stops what runs, and
	// returns what there is; context.Cause tells why: [ErrLost], [ErrCancelled],
	// [ErrRunTimeout] or [ErrDeadline]. Calls that do not conflict run concurrently.
	Execute(ctx context.Context, run *Run) protocol.Result
	// Release tells that the lane is not held any more. Nothing of it runs. Whatever
	// was kept for it must do nothing, and be nobody's, when Release returns.
	Release(lane protocol.Lane)
}

// Run is one attempt of a call.
type Run struct {
	Call    *protocol.Call
	Header  nats.Header
	Attempt int // from 1
	// Sequence is the call's stream sequence: the order in which the calls of a lane were accepted.
	Sequence uint64
	// Queued is from the call's acceptance to this start, InLane the part of it
	// after this worker claimed the lane.
	Queued time.Duration
	InLane time.Duration
	// Fence is the epoch of the claim under which the attempt runs. It grows with each holder of
	// the lane, so whatever the call writes to can refuse a smaller one than it has seen.
	Fence uint64
	// LeaseEnd is until when the lane is surely held, as far as is known now; renewals move it on.
	LeaseEnd func() time.Time
	// Abandon gives the lane up as a drain does with what it kills: nothing of this attempt is
	// stored, and the call starts again as a further one, wherever the lane is held next.
	Abandon func()
}

// Interrupted translates the end of a call's context into its status and error;
// ok is false when the context has not ended.
func Interrupted(ctx context.Context) (status protocol.Status, fault *protocol.Error, ok bool) {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return "", nil, false
	case errors.Is(cause, ErrRunTimeout):
		return protocol.StatusTimeout, protocol.Errorf(protocol.CodeRunTimeout,
			"the call ran out of its time and was killed; give it a longer timeout or less to do"), true
	case errors.Is(cause, ErrDeadline):
		return protocol.StatusTimeout, protocol.Errorf(protocol.CodeDeadline, "the deadline of the call passed; it was killed"), true
	default:
		return protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "the call was cancelled while it ran; it was killed"), true
	}
}
