package lane

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Calls that wait for calls
//
// A call with after waits in its lane until other calls, of any lane and session, have ended with
// status ok. Its lane is held without a slot if nothing else of it runs, so waiting calls never
// keep a worker from running what they wait for. The results stream says how the others ended. A
// holder looks there for all of its lanes together, at growing intervals, and at once after it
// stored a result that one of them waits for.

const (
	// awaitedFirst and awaitedLast are the shortest and the longest time between two looks for the
	// result of a call.
	awaitedFirst = 20 * time.Millisecond
	awaitedLast  = time.Second
	// awaitedBatch is for how many calls a holder looks at the same time.
	awaitedBatch = 256
)

// awaited is the calls whose results lanes of a holder wait for.
type awaited struct {
	holder *Holder
	wake   chan struct{}

	mu    sync.Mutex
	calls map[protocol.CallRef]*awaitedCall
}

// awaitedCall is one of them.
type awaitedCall struct {
	lanes map[*heldLane]struct{}
	at    time.Time // of the next look
	pause time.Duration
}

func newAwaited(h *Holder) *awaited {
	return &awaited{holder: h, wake: make(chan struct{}, 1), calls: map[protocol.CallRef]*awaitedCall{}}
}

// add has a lane notified of the ends of calls.
func (a *awaited) add(l *heldLane, refs []protocol.CallRef) {
	if len(refs) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ref := range refs {
		if a.calls[ref] == nil {
			a.calls[ref] = &awaitedCall{lanes: map[*heldLane]struct{}{}, pause: awaitedFirst}
		}
		a.calls[ref].lanes[l] = struct{}{}
	}
	a.notify()
}

func (a *awaited) notify() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// look looks at once for the result of a call, if a lane waits for it.
func (a *awaited) look(ref protocol.CallRef) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if call := a.calls[ref]; call != nil {
		call.at = time.Time{}
		a.notify()
	}
}

// drop forgets a lane that is held no more.
func (a *awaited) drop(l *heldLane) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ref, call := range a.calls {
		if delete(call.lanes, l); len(call.lanes) == 0 {
			delete(a.calls, ref)
		}
	}
}

// ended notifies the lanes that wait for a call.
func (a *awaited) ended(ref protocol.CallRef, status protocol.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	call := a.calls[ref]
	if call == nil {
		return
	}
	delete(a.calls, ref)
	for l := range call.lanes {
		l.after.ended(ref, status)
		l.mail.notify()
	}
}

// run looks for results until ctx ends.
func (a *awaited) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, next := a.due(time.Now())
		if len(due) > 0 {
			found, err := a.holder.store.Ended(ctx, due)
			if err != nil {
				a.holder.retryLog.log(ctx, "results of calls that others wait for cannot be read", slog.Any("error", err))
			}
			for ref, status := range found {
				a.ended(ref, status)
			}
		}
		timer.Reset(next)
		select {
		case <-a.wake:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// due returns calls to look for now, and how long to wait until the next ones are due.
func (a *awaited) due(now time.Time) (due []protocol.CallRef, next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next = time.Hour
	for ref, call := range a.calls {
		if !now.Before(call.at) && len(due) < awaitedBatch {
			due = append(due, ref)
			call.at = now.Add(call.pause)
			call.pause = min(2*call.pause, awaitedLast)
		}
		next = min(next, max(call.at.Sub(now), 0))
	}
	return due, next
}

// laneAfter is the ends of calls that a lane waits for. Any goroutine adds some; the lane's applies
// them.
type laneAfter struct {
	mu  sync.Mutex
	new map[protocol.CallRef]protocol.Status
}

func (a *laneAfter) ended(ref protocol.CallRef, status protocol.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.new == nil {
		a.new = map[protocol.CallRef]protocol.Status{}
	}
	a.new[ref] = status
}

// applyEnded tells the schedule which calls have ended.
func (l *heldLane) applyEnded() {
	l.after.mu.Lock()
	ended := l.after.new
	l.after.new = nil
	l.after.mu.Unlock()
	for ref, status := range ended {
		if len(l.schedule.Ended(ref, status)) > 0 {
			l.control.hasCancels = true
		}
	}
}

// noteAwaiting notes which call or retry the lane waits for, for operators, and since when calls
// wait for other calls.
func (l *heldLane) noteAwaiting(now time.Time) {
	text := ""
	for _, e := range l.schedule.Awaiting() {
		l.waits.Await(e, now)
		if text == "" {
			text = "call " + e.Missing[0].String()
		}
	}
	if text == "" && !l.retryAt.IsZero() {
		text = "its retry"
	}
	if old := l.awaits.Load(); old == nil && text != "" || old != nil && *old != text {
		l.awaits.Store(&text)
	}
}
