package lane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Host is the program around a [Holder]: it runs the calls of held lanes, chooses lanes, and is
// notified of the ends of calls and lanes. Embed [DefaultHost] to implement only what you need.
//
// Each method names the goroutine that calls it. "The lane's goroutine" is one for each held lane:
// while it waits in such a method, no other call of that lane starts or ends; calls of other lanes
// do. "The call's goroutine" is one for each call that runs. All methods are called concurrently
// for different lanes.
type Host interface {
	Executor

	// CanRun reports whether this worker meets the requirements of a call. A lane whose next call
	// it cannot run goes to a worker that can. Called by the lane's goroutine before each start,
	// and by a NATS callback when another worker offers a lane: it must be quick.
	CanRun(Requirements) bool
	// Admit waits until a call may run for reasons outside its lane, such as other processes that
	// use the same directory. The run timeout begins when Admit returns; leave is called after
	// [Executor.Execute]. A refusal is the call's result, and the call does not run. When ctx ends,
	// Admit returns a refusal. Called by the call's goroutine. After a crash here the call counts
	// as started.
	Admit(ctx context.Context, run *Run) (leave func(), refusal *protocol.Result)
	// CommittedResult returns the result of a call whose effects were committed before its worker
	// was lost, but whose result was not stored; nil when there is none. Called by the call's
	// goroutine, before such a call ends without another attempt.
	CommittedResult(ctx context.Context, run *Run) *protocol.Result

	// PreferredDisk names the disk that has what the lane needs, such as its workspace; "" is none.
	// The worker with that disk is asked first, and has a moment to claim the lane. Called by the
	// lane's goroutine before the claim.
	PreferredDisk(ctx context.Context, lane protocol.Lane) (disk string)

	// MayLinger reports whether an idle lane stays held for [Options.Linger]. MustHold reports
	// whether the lane must not be released however long it is idle, because a program lives there
	// that outlives its call. Called by the lane's goroutine, often.
	MayLinger(protocol.Lane) bool
	MustHold(protocol.Lane) bool

	// OnSettled is called after this holder has stored the result of a call, and before the call
	// leaves the mailbox. Called by the call's goroutine, or by the lane's for calls that never
	// started. After a crash before it returns, the lane's next holder calls OnAlreadySettled.
	OnSettled(ctx context.Context, call *protocol.Call, result *protocol.Result)
	// OnAlreadySettled is called for a call in the mailbox that already has a result: its holder
	// died before OnSettled returned, or the call was sent once more. It may be called repeatedly,
	// by the same goroutines as OnSettled.
	OnAlreadySettled(ctx context.Context, call *protocol.Call)
	// OnLost is called once for a held lane whose lease is lost, at once, while its calls may still
	// be ending. Called by a goroutine of its own; this holder claims the lane again only after it
	// has returned. After a crash it is not called: the process is gone.
	OnLost(ctx context.Context, lane protocol.Lane)
	// OnWorkerLost is called when this holder has found another worker of its pool to be lost: its
	// heartbeat has stood still for a lease. Of the workers that look after that, one is called.
	// Called by the goroutine that looks after heartbeats: it must be quick. After a crash it may
	// not be called.
	OnWorkerLost(ctx context.Context, worker protocol.WorkerID)
}

// Executor executes calls of held lanes.
type Executor interface {
	// Execute runs one attempt of a call and returns its terminal result. The engine fills in
	// identity and times, and the worker and attempt unless the result has them. When ctx ends,
	// Execute stops what runs and returns what there is; context.Cause gives the reason: [ErrLost],
	// [ErrCancelled], [ErrRunTimeout], [ErrDeadline] or [ErrDraining]. Called by the call's
	// goroutine; calls of a lane that do not conflict run concurrently. After a crash the next
	// holder starts the call again, as a further attempt, or answers outcome_unknown if it must not
	// start twice.
	Execute(ctx context.Context, run *Run) protocol.Result
	// Release ends all that the host still runs or holds open for a lane: when it returns, another
	// worker may claim the lane. No call of the lane runs. Called by the lane's goroutine; calls of
	// the lane may follow if the claim cannot be given up.
	Release(lane protocol.Lane)
}

// DefaultHost has every method of [Host] but those of [Executor]: it runs all calls, has no disk,
// lets idle lanes linger, and ignores notifications.
type DefaultHost struct{}

// CanRun returns true.
func (DefaultHost) CanRun(Requirements) bool { return true }

// Admit admits at once.
func (DefaultHost) Admit(context.Context, *Run) (leave func(), refusal *protocol.Result) {
	return func() {}, nil
}

// CommittedResult returns nil.
func (DefaultHost) CommittedResult(context.Context, *Run) *protocol.Result { return nil }

// PreferredDisk returns "".
func (DefaultHost) PreferredDisk(context.Context, protocol.Lane) string { return "" }

// MayLinger returns true.
func (DefaultHost) MayLinger(protocol.Lane) bool { return true }

// MustHold returns false.
func (DefaultHost) MustHold(protocol.Lane) bool { return false }

// OnSettled does nothing.
func (DefaultHost) OnSettled(context.Context, *protocol.Call, *protocol.Result) {}

// OnAlreadySettled does nothing.
func (DefaultHost) OnAlreadySettled(context.Context, *protocol.Call) {}

// OnLost does nothing.
func (DefaultHost) OnLost(context.Context, protocol.Lane) {}

// OnWorkerLost does nothing.
func (DefaultHost) OnWorkerLost(context.Context, protocol.WorkerID) {}

// Options of a [Holder]; zero values mean the documented default.
type Options struct {
	Fleet  protocol.Fleet // default tf
	Pool   protocol.Pool  // default "default"
	Worker protocol.WorkerID
	// Origin is NAME#INSTANCE. NAME is something that one process at a time can have, such as the
	// directory of an embedded server; INSTANCE names this process. A holder takes over at once
	// from other instances of its NAME. Default none.
	Origin string
	// Disk names the storage that a restarted worker finds again, such as its data directory;
	// default none.
	Disk string
	// Slots is the maximum number of concurrent calls; default 1.
	Slots int
	// Settles, if set, are the only lanes that the holder looks after, and it runs no call: while
	// no worker holds such a lane, it answers the calls that are cancelled or whose time is over,
	// and removes those that have a result.
	Settles []protocol.Lane
	// AckWait is the length of a lease, and the time after which an unanswered ready message is
	// delivered again; it must match an existing pool. 0 takes the pool's.
	AckWait time.Duration
	// Linger is how long an idle lane stays held if [Host] says that it may; default 0. At most
	// 1,024 lanes more than Slots linger.
	Linger time.Duration
	// Keys, if set, are the trusted signers: calls of others are rejected.
	Keys *signing.Keys
	// Logger gets errors that are retried, at warn, each kind at most once a minute; nil discards.
	Logger *slog.Logger
}

// maxLingering bounds the lanes that linger, in addition to one for each slot.
const maxLingering = 1024

func (o Options) withDefaults() Options {
	o.Fleet, o.Pool = cmp.Or(o.Fleet, protocol.DefaultFleet), cmp.Or(o.Pool, protocol.DefaultPool)
	if o.Slots = max(o.Slots, 1); len(o.Settles) > 0 {
		o.Slots = 0
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
	// ErrCancelled means that a cancel of the call was requested.
	ErrCancelled = errors.New("cancelled on request")
	// ErrRunTimeout says that the attempt took longer than the call allows.
	ErrRunTimeout = errors.New("run timeout")
	// ErrDeadline says that the call's result is of no more use.
	ErrDeadline = errors.New("deadline exceeded")
	// ErrDraining says that the holder is stopping.
	ErrDraining = errors.New("worker is draining")
)

// Run is one attempt of a call.
type Run struct {
	Call    *protocol.Call
	Header  nats.Header
	Attempt int // from 1
	// Signer is the principal that has signed the call: the call may touch only what this principal
	// may. nil is any: signatures are not checked.
	Signer *judge.Principal
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
	// When it has passed, the context of the attempt has ended.
	LeaseEnd func() time.Time
	// Abandon gives the lane up as a drain does with what it kills: nothing of this attempt is
	// stored, and the call starts again as a further one, wherever the lane is held next.
	Abandon func()
	// WillRetry reports whether a result is not the last word on the call, because its Retry has
	// the call started again. Then the host keeps nothing of the attempt: neither its result nor a
	// checkpoint with it. The answer of its first use counts; the engine asks if the host does not.
	WillRetry func(*protocol.Result) bool
}

// leased is a context that looks at the clock, so that it has ended when the lease has.
type leased struct {
	context.Context //nolint:containedctx // it is a context

	leaseEnd func() time.Time
}

// Leased returns ctx for a function in this process, which nothing kills when the lease ends. The
// timers of a process that was stopped fire a moment after it is resumed; until then only a look at
// the clock shows that the lease has ended. Err and Done of the context look.
func (r *Run) Leased(ctx context.Context) context.Context { return leased{ctx, r.LeaseEnd} }

// Err implements [context.Context].
func (c leased) Err() error {
	end := c.leaseEnd() // ends the context if it has passed
	if err := c.Context.Err(); err != nil || time.Now().Before(end) {
		return err
	}
	return context.Canceled // a context of a longer life, whose end is on its way
}

// Done implements [context.Context].
func (c leased) Done() <-chan struct{} {
	_ = c.leaseEnd() // as above
	return c.Context.Done()
}

// Owner is the owner of the call: its tenant, and the principal for whom it was made.
func (r *Run) Owner() judge.Owner {
	owner := judge.Owner{Tenant: cmp.Or(r.Call.Tenant, judge.DefaultTenant), By: r.Call.By}
	if owner.By == "" && r.Signer != nil {
		owner.By = r.Signer.By()
	}
	return owner
}

// May refuses a call that does to an object what its signer may not.
func (r *Run) May(act judge.Act, on judge.Object) *protocol.Error {
	if r.Signer == nil {
		return nil
	}
	if err := judge.May(*r.Signer, act, on); err != nil {
		return protocol.Errorf(codes.NotSigned, "%v; the call is signed, and was not run", err)
	}
	return nil
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
