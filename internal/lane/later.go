package lane

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Calls that wait for calls
//
// A call with after waits in its lane until other calls, of any lane and session, have ended with
// status ok. Its lane is held without a slot if nothing else of it runs, so waiting calls never
// keep a worker from running what they wait for. The results stream says how the others ended. A
// holder looks there for all of its lanes together, at growing intervals, and at once after it
// stored a result that a lane of its own waits for.

const (
	// awaitedFirst and awaitedLast are the shortest and the longest time between two lookups of the
	// result of a call.
	awaitedFirst = 20 * time.Millisecond
	awaitedLast  = time.Second
	// awaitedBatch is how many results a holder looks up at the same time.
	awaitedBatch = 256
)

// awaitedCalls is the calls whose results lanes of a holder wait for.
type awaitedCalls struct {
	holder *Holder
	wake   chan struct{}

	mu    sync.Mutex
	calls map[protocol.CallRef]*awaitedCall
}

// awaitedCall is a call whose result lanes wait for.
type awaitedCall struct {
	lanes map[*heldLane]struct{}
	at    time.Time // of the next lookup
	pause time.Duration
}

// add has a lane notified of the ends of calls.
func (a *awaitedCalls) add(l *heldLane, refs []protocol.CallRef) {
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

func (a *awaitedCalls) notify() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// lookUp looks up the result of a call at once, if a lane waits for it.
func (a *awaitedCalls) lookUp(ref protocol.CallRef) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if call := a.calls[ref]; call != nil {
		call.at = time.Time{}
		a.notify()
	}
}

// removeLane forgets a lane that is held no more.
func (a *awaitedCalls) removeLane(l *heldLane) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ref, call := range a.calls {
		if delete(call.lanes, l); len(call.lanes) == 0 {
			delete(a.calls, ref)
		}
	}
}

// notifyLanes notifies the lanes that wait for a call.
func (a *awaitedCalls) notifyLanes(ref protocol.CallRef, status protocol.Status) {
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
func (a *awaitedCalls) run(ctx context.Context) {
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
				a.notifyLanes(ref, status)
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
func (a *awaitedCalls) due(now time.Time) (due []protocol.CallRef, next time.Duration) {
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

// applyEnded passes to the schedule which calls have ended.
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

// awaited is what a lane waits for that is not of the lane.
type awaited struct {
	text string // "" is nothing
	wait report.Wait
}

// noteAwaiting notes which call or retry the lane waits for, for operators, and since when calls
// wait for other calls.
func (l *heldLane) noteAwaiting(now time.Time) {
	var a awaited
	for _, e := range l.schedule.Awaiting() {
		l.waits.Await(e, now)
		if first := e.Missing[0]; a.text == "" {
			a = awaited{"call " + first.String(), report.Wait{Reason: report.ReasonAfter, SessionID: first.SessionID, CallID: first.ID}}
		}
	}
	if a.text == "" && !l.retryAt.IsZero() {
		a = awaited{"its retry", report.Wait{Reason: report.ReasonRetry}}
	}
	if old := l.awaits.Load(); old == nil && a.text != "" || old != nil && *old != a {
		l.awaits.Store(&a)
	}
}

// Calls that wait for their time
//
// A call with not_before is stored outside of the mailboxes of its pool, so it delays no other call
// and no worker holds its lane. The reaper's consumer delivers it to one worker, which has it
// delivered again when its time has come. Then the worker copies it into its mailbox, and removes
// it from where it waited. Its sequence in the mailbox is its position in the order of the lane. If
// the worker crashes in between, another one copies it again. The call says that it may have been
// enqueued before, so its holder looks for its result first.
//
// A cancel request is stored next to the waiting call. A worker then moves the call with a header
// that says so, and its holder answers it.

// laterMax is the longest delay that is asked of the consumer: clocks are set.
const laterMax = 24 * time.Hour

// maxLate is the longest lateness for which a signature counts: without a bound, a copy of an old
// call would be as good as one. It is shorter than results are kept by default, so a copy is not
// run.
const maxLate = 24 * time.Hour

// lateness is how long after its time a call entered its lane, as the worker says that moved it.
func lateness(call *protocol.Call, header nats.Header) time.Duration {
	if call.Delay() == 0 {
		return 0
	}
	ms, err := strconv.ParseInt(header.Get(wire.HeaderLate), 10, 64)
	if err != nil {
		return 0
	}
	return max(protocol.Millis(ms).Duration(), 0)
}

// skippedEntries are entries of the pool for which nothing is fetched now, so that one call that
// waits for an hour costs each worker two reads a second. It belongs to one goroutine.
type skippedEntries struct {
	cursor uint64               // entries below it are no calls of mailboxes, or have been deleted
	later  map[uint64]laterCall // calls that wait for their time, and requests to cancel them, by sequence
}

// laterCall is when an entry has to be moved.
type laterCall struct {
	subject string
	at      time.Time
}

// maxSkipped bounds the remembered calls: with more of them, entries are fetched every second.
const maxSkipped = 10_000

// hasWork reports whether a call or a cancel request of the pool's mailboxes is older than
// reapAfter, or the time of a waiting call has come.
func (c *reaper) hasWork(ctx context.Context) (bool, error) {
	o, p := &c.holder.options, &c.passed
	if p.later == nil {
		p.later = map[uint64]laterCall{}
	}
	from := uint64(0)
	for n := range reapBatch {
		entry, err := c.holder.store.Next(ctx, wire.MailboxesFilter(o.Fleet, o.Pool), from)
		if err != nil || entry == nil {
			return c.isDue(ctx), err
		}
		what := wire.ParseMailboxSubject(o.Fleet, entry.Subject)
		switch what.Kind {
		case wire.EntryCall, wire.EntryCancel:
			return c.holder.clock.Age(entry.Time) >= reapAfter || c.isDue(ctx), nil
		case wire.EntryLater, wire.EntryLaterCancel:
			_, known := p.later[entry.Sequence]
			if n == 0 && !known { // the first of all, or of a stream that was created again
				*p = skippedEntries{later: map[uint64]laterCall{}}
			}
			if !known {
				p.later[entry.Sequence] = laterCall{entry.Subject, c.dueAt(entry)}
			}
		default: // marks need nothing
		}
		p.cursor = max(p.cursor, entry.Sequence+1)
		from = p.cursor
	}
	return true, nil // there may be more
}

// dueAt is when a call that waits for its time, or a request to cancel one, is moved.
func (c *reaper) dueAt(entry *message) time.Time {
	call, err := wire.DecodeCall(entry.Data)
	if err != nil { // a cancel request; or its holder answers it
		return time.Now()
	}
	return time.Now().Add(call.Delay() - c.holder.clock.Age(entry.Time))
}

// isDue reports whether the time of a stored call has come.
func (c *reaper) isDue(ctx context.Context) bool {
	if len(c.passed.later) >= maxSkipped {
		return true
	}
	for seq, call := range c.passed.later {
		if time.Now().Before(call.at) {
			continue
		}
		if entry, err := c.holder.store.Next(ctx, call.subject, 0); err != nil || entry != nil && entry.Sequence == seq {
			return true
		}
		delete(c.passed.later, seq)
	}
	return false
}

// move handles a delivered call that waits for its time, or a request to cancel one. After an error
// the message is delivered again.
func (c *reaper) move(ctx context.Context, delivered jetstream.Msg, what wire.MailboxEntry) {
	wait, err := c.moveDue(ctx, delivered, what)
	switch {
	case err != nil:
		c.holder.options.Logger.WarnContext(ctx, "a call that waits for its time cannot be moved into its lane",
			slog.String("subject", delivered.Subject()), slog.Any("error", err))
		_ = delivered.NakWithDelay(reaperRetry) // without a connection it is delivered again
	case wait > 0:
		_ = delivered.NakWithDelay(min(wait, laterMax))
	default:
		_ = delivered.Ack()
	}
}

// reaperRetry is the pause after a call could not be moved.
const reaperRetry = time.Second

// moveDue moves a call whose time has come or that is cancelled. It returns how long another call
// has to wait.
func (c *reaper) moveDue(ctx context.Context, delivered jetstream.Msg, what wire.MailboxEntry) (wait time.Duration, err error) {
	s, pool := c.holder.store, c.holder.options.Pool
	hash := wire.LaneOfSubject(s.Fleet, delivered.Subject())
	waiting, err := s.Next(ctx, wire.LaterSubject(s.Fleet, pool, hash, what.CallID), 0)
	if err != nil {
		return 0, err
	}
	request, err := s.Next(ctx, wire.LaterCancelSubject(s.Fleet, pool, hash, what.CallID), 0)
	if err != nil {
		return 0, err
	}
	if waiting == nil { // it is in the mailbox, or settled; a late cancel request follows it
		if request == nil {
			return 0, nil
		}
		if lane := wire.LaneOfHeader(request.Header.Get(wire.HeaderLane)); wire.HashLane(lane) == hash {
			if err := s.Cancel(ctx, pool, lane, what.CallID); err != nil {
				return 0, err
			}
		}
		return 0, s.Remove(ctx, request.Sequence)
	}
	call, err := wire.DecodeCall(waiting.Data)
	if err != nil { // its holder answers it
		call = &protocol.Call{}
	}
	late := c.holder.clock.Age(waiting.Time) - call.Delay()
	if request == nil && late < 0 {
		return -late, nil
	}
	if err := c.moveNow(ctx, waiting, what.CallID, late, request != nil); err != nil {
		return 0, err
	}
	done := []uint64{waiting.Sequence}
	if request != nil {
		done = append(done, request.Sequence)
	}
	if err := s.Remove(ctx, done...); err != nil { // which makes room for a ready message in a full stream
		return 0, err
	}
	if lane := wire.LaneOfHeader(waiting.Header.Get(wire.HeaderLane)); wire.HashLane(lane) == hash {
		_, err = s.MakeReady(ctx, pool, lane) // if it fails, the call's own delivery makes the lane ready
	}
	return 0, err
}

// moveNow puts a call into its mailbox.
func (c *reaper) moveNow(ctx context.Context, waiting *message, id protocol.CallID, late time.Duration, cancelled bool) error {
	s, pool := c.holder.store, c.holder.options.Pool
	lane, hash := wire.LaneOfHeader(waiting.Header.Get(wire.HeaderLane)), wire.LaneOfSubject(s.Fleet, waiting.Subject)
	if wire.HashLane(lane) != hash {
		c.holder.options.Logger.ErrorContext(ctx, "a call that waits for its time is malformed: it is removed",
			slog.String("subject", waiting.Subject), slog.String("header", wire.HeaderLane))
		return nil
	}
	msg := &nats.Msg{Subject: wire.CallSubject(s.Fleet, pool, hash, id), Header: nats.Header{}, Data: waiting.Data}
	for name, values := range waiting.Header {
		if !strings.HasPrefix(name, "Nats-") { // the server's own
			msg.Header[name] = values
		}
	}
	if late > 0 { // no worker was there
		msg.Header.Set(wire.HeaderLate, strconv.FormatInt(late.Milliseconds(), 10))
	}
	if cancelled {
		msg.Header.Set(wire.HeaderCancelled, "1")
	}
	_, answer, err := s.PublishOnce(ctx, wire.CallsStream(s.Fleet), msg)
	if err == nil && answer == store.Full {
		err = store.ErrFull
	}
	if err == nil && answer == store.Occupied && cancelled { // moved before, without the header
		err = s.Cancel(ctx, pool, lane, id)
	}
	return err
}
