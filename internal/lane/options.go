package lane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Options of a [Holder]; zero values mean the documented default.
type Options struct {
	Fleet  protocol.Fleet // default tf
	Pool   protocol.Pool  // default "default"
	Worker protocol.WorkerID
	// Origin is NAME#INSTANCE: something that one process at a time can have, such as the directory
	// of an embedded server, and a name of this process that no earlier one had. Earlier lives of
	// the same name are taken over at once. Default none.
	Origin string
	// Disk names what this worker keeps when it is started again, such as its data directory;
	// default none.
	Disk string
	// Slots is how many calls run at once; default 1.
	Slots int
	// AckWait is the length of a lease, and how long a ready message may be on its way to a worker
	// until it is delivered again; it must match an existing pool. 0 takes what the pool has.
	AckWait time.Duration
	// Linger is how long an idle lane is kept; default 0. Only lanes for which Lingers (if set)
	// reports true are kept, and at most 1,024 more than Slots in all.
	Linger  time.Duration
	Lingers func(protocol.Lane) bool
	// Keeps, if set, names lanes that are held on however long they are idle, because
	// something lives there that must not end with the lane. It is asked often.
	Keeps func(protocol.Lane) bool
	// Prefers, if set, names the disk that has what a lane needs, such as its workspace; "" is
	// none, or this worker's. When the lane is given to this worker, the one with that disk is
	// asked to take it, and has a moment for it.
	Prefers func(ctx context.Context, lane protocol.Lane) (disk string)
	// Binds, if set, names the disk without which no call of a lane can be run; "" is none. While a
	// worker with that disk lives, no other one takes the lane.
	Binds func(ctx context.Context, lane protocol.Lane) (disk string)
	// Takes, if set, reports whether this worker can run a call; others are left in their lanes,
	// for a worker that can. It is asked often.
	Takes func(Need) bool
	// Keys, if set, are whose calls are run; others are rejected.
	Keys *signing.Keys
	// Settled, if set, is told of each call whose result this holder has stored; SettledBefore of
	// each whose result was there when its turn came, as a holder leaves it that is lost before its
	// Settled returns; and Lost of each lane that was lost while it was held: at once, also while
	// calls of it do not end. Many goroutines call them; the lane is not claimed again here before
	// they return.
	Settled       func(ctx context.Context, call *protocol.Call, result *protocol.Result)
	SettledBefore func(ctx context.Context, call *protocol.Call)
	Lost          func(ctx context.Context, lane protocol.Lane)
	// Covered, if set, returns the result of a call that had its effects before its worker was
	// lost, and that has no stored result; nil when there is none. It is asked before such a call
	// ends without another attempt.
	Covered func(ctx context.Context, run *Run) *protocol.Result
	// Enter, if set, waits until a call may run as far as that is not a matter of its lane. The run
	// timeout begins when it returns. leave is called after [Executor.Execute]. A result is that of
	// a call that may not run. When ctx ends, it returns one.
	Enter func(ctx context.Context, run *Run) (leave func(), refusal *protocol.Result)
	// Logger gets troubles at warn, those that last at most once a minute; nil discards.
	Logger *slog.Logger
}

// maxLingering bounds the lanes that are kept for Linger, beside as many as there are slots.
const maxLingering = 1024

func (o Options) withDefaults() Options {
	o.Fleet, o.Pool = cmp.Or(o.Fleet, protocol.DefaultFleet), cmp.Or(o.Pool, protocol.DefaultPool)
	o.Slots = max(o.Slots, 1)
	if o.Lingers == nil {
		o.Lingers = func(protocol.Lane) bool { return true }
	}
	if o.Keeps == nil {
		o.Keeps = func(protocol.Lane) bool { return false }
	}
	if o.Prefers == nil {
		o.Prefers = func(context.Context, protocol.Lane) string { return "" }
	}
	if o.Binds == nil {
		o.Binds = func(context.Context, protocol.Lane) string { return "" }
	}
	if o.Takes == nil {
		o.Takes = func(Need) bool { return true }
	}
	if o.Settled == nil {
		o.Settled = func(context.Context, *protocol.Call, *protocol.Result) {}
	}
	if o.SettledBefore == nil {
		o.SettledBefore = func(context.Context, *protocol.Call) {}
	}
	if o.Lost == nil {
		o.Lost = func(context.Context, protocol.Lane) {}
	}
	if o.Covered == nil {
		o.Covered = func(context.Context, *Run) *protocol.Result { return nil }
	}
	if o.Enter == nil {
		o.Enter = func(context.Context, *Run) (func(), *protocol.Result) { return func() {}, nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

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
