package checkpoint

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Lease is the time in which a run surely holds its lane. Changes are committed within it only.
type Lease struct {
	ctx    context.Context //nolint:containedctx // ends with the lease, not when the call is cancelled or out of time
	cancel context.CancelCauseFunc
	runs   context.Context //nolint:containedctx // of the run
	run    *lane.Run
	undos  int64 // of the lane, when the run began

	mu    sync.Mutex
	timer *time.Timer
}

// Watch returns the lease of a run that begins now, after so many undos of its lane. The lease ends
// with the lane, or once it has expired, even if it is renewed later. stop must be called.
func Watch(ctx context.Context, run *lane.Run, undos int64) (l *Lease, stop func()) {
	l = &Lease{run: run, runs: ctx, undos: undos}
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	l.mu.Lock() // check needs the timer, also when ctx has ended already
	defer l.mu.Unlock()
	lost := context.AfterFunc(ctx, l.check)
	l.timer = time.AfterFunc(time.Until(run.LeaseEnd()), l.check)
	return l, func() {
		lost()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.timer.Stop()
		l.cancel(nil)
	}
}

// check ends the lease when its lane is given up, or once it has expired. A killed call checks it
// first: the cancellation of its context may arrive later.
func (l *Lease) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cause := context.Cause(l.runs); errors.Is(cause, lane.ErrLost) || errors.Is(cause, lane.ErrDraining) {
		l.cancel(cause)
		return
	}
	left := time.Until(l.run.LeaseEnd())
	if left <= 0 {
		l.cancel(lane.ErrLost)
	} else if l.ctx.Err() == nil {
		l.timer.Reset(left)
	}
}

// Context ends with the lease.
func (l *Lease) Context() context.Context { return l.ctx }

// Valid reports whether the lane is still held.
func (l *Lease) Valid() bool {
	l.check()
	return l.ctx.Err() == nil
}

// Undone reports whether changes of the lane's calls were undone since the run began.
func (l *Lease) Undone(undos int64) bool { return l.undos != undos }

// Result is the result of a call whose changes were committed before its worker was lost; nil if
// the call must run.
func (d *Directory) Result(ctx context.Context, call protocol.CallID) (*protocol.Result, error) {
	d.saving.Lock()
	defer d.saving.Unlock()
	return d.claimed.Result(ctx, call)
}

// ErrUndone says that the changes of a call were undone with those of another call, which could not
// be stored.
var ErrUndone = errors.New("the changes were undone")

// ended is a call that has ended and waits for its commit.
type ended struct {
	only   []string // what it may have changed; nil is everything
	lease  *Lease
	result *protocol.Result
	done   chan error
}

// Commit stores what a call has changed: the paths of [Changes]. Calls that end meanwhile share the
// next commit.
func (d *Directory) Commit(only []string, l *Lease, r *protocol.Result) error {
	w := &ended{only: only, lease: l, result: r, done: make(chan error, 1)}
	d.mu.Lock()
	d.queue = append(d.queue, w)
	leads := !d.busy
	d.busy = true
	d.mu.Unlock()
	if leads {
		d.lead(l.ctx)
	}
	return <-w.done
}

// lead commits until no call waits.
func (d *Directory) lead(ctx context.Context) {
	for {
		d.mu.Lock()
		calls, settled := d.queue, d.settled
		d.queue, d.settled = nil, nil
		d.busy = len(calls) > 0
		d.mu.Unlock()
		if len(calls) == 0 {
			return
		}
		d.saving.Lock()
		calls = slices.DeleteFunc(calls, func(w *ended) bool {
			undone := w.lease.Undone(d.undos.Load())
			if undone {
				w.done <- ErrUndone
			}
			return undone
		})
		err := d.save(ctx, calls, settled)
		d.saving.Unlock()
		for _, w := range calls {
			w.done <- err
		}
	}
}

// save stores what calls have changed. The lock saving is held.
func (d *Directory) save(ctx context.Context, calls []*ended, settled []protocol.CallID) (err error) {
	for _, call := range settled {
		d.claimed.Settled(call)
	}
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	options := &snapshot.Options{Skip: outside, Only: state()}
	results := make([]*protocol.Result, 0, len(calls))
	for _, w := range calls {
		results = append(results, w.result)
		if w.only == nil || options.Only == nil {
			options.Only = nil
			continue
		}
		options.Only = append(options.Only, w.only...)
	}
	d.noted = false
	delta := d.pending
	if d.pending = nil; delta == nil {
		delta, err = snapshot.Save(ctx, root, d.claimed.Tree(), d.index, d.store, options)
	}
	if err != nil || delta.Empty() { // a call without changes may run again
		return err
	}
	return d.claimed.Commit(ctx, delta, results...)
}

// Undo restores the last checkpoint after a commit has failed, once kill has closed the sandbox.
// Calls that end at the same time are undone with it.
func (d *Directory) Undo(ctx context.Context, kill func() error) error {
	err := kill()
	d.saving.Lock()
	defer d.saving.Unlock()
	d.undos.Add(1)
	if err == nil {
		err = d.restore(ctx)
	}
	return err
}

// Settled records that the result of a call is stored: its checkpoint need not have it any more.
func (d *Directory) Settled(call protocol.CallID) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settled = append(d.settled, call)
}

// Changes are the paths that a call may have changed, relative to the sandbox's directory: nil is
// everything. ok is false when it changes nothing.
func Changes(call *protocol.Call) (only []string, ok bool) {
	lane := protocol.ResourceKey(call.Lane())
	for _, use := range call.Resources {
		if use.Access == protocol.Shared {
			continue
		}
		below, is := strings.CutPrefix(string(use.Key), string(lane)+"/")
		if !is || wire.IsStreamKey(use.Key) {
			return nil, true
		}
		only, ok = append(only, path.Join(WorkspaceDir, below)), true
	}
	return only, ok
}
