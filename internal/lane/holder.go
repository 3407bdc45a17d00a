package lane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/system/recent"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Holder claims lanes of one pool and runs their calls. Make one with
// [NewHolder] and run it once.
type Holder struct {
	options  Options
	store    *store.Store
	host     Host
	peers    *peers
	reaper   *reaper
	lease    time.Duration
	retryLog retryLog
	limits   *limits.Watch
	awaited  *awaitedCalls
	copies   *copies
	intake
	monitored
	heldLanes
	counted
}

// counted counts the calls that a process has ended.
type counted struct {
	began         time.Time
	ended, failed atomic.Uint64
}

// count counts a call whose result is stored.
func (c *counted) count(status protocol.Status) {
	c.ended.Add(1)
	if status != protocol.StatusOK && status != protocol.StatusCancelled {
		c.failed.Add(1)
	}
}

// intake decides which lanes the holder claims next.
type intake struct {
	slots          *slots
	puller         *puller
	tickets        *tickets
	deliveredWaits atomic.Bool // a ready message that was delivered waits for a slot
	// taken is how often other workers took ready messages, by their sequences, that waited so.
	taken   *recent.Cache[uint64, int]
	backlog backlog
}

// monitored is what [Holder.monitor] keeps up to date.
type monitored struct {
	clock   store.Clock
	streams *natsio.Streams
}

// heldLanes is the lanes that a process holds. It is safe for concurrent use.
type heldLanes struct {
	mu          sync.Mutex
	incarnation *incarnation    // nil before the first one
	claiming    context.Context //nolint:containedctx // ends when no more lanes are claimed
	draining    bool
	held        map[wire.LaneHash]*heldLane
	recent      map[wire.LaneHash]released // lanes that were released; bounded by maxUsed
	group       sync.WaitGroup             // of held lanes
}

// released is when a lane was released here, and what it had run: a call that was accepted before
// that ended has waited for it.
type released struct {
	at    time.Time
	ended endedCalls
}

// NewHolder opens the streams of a fleet, which must exist, and makes or checks
// the pool's consumer.
func NewHolder(ctx context.Context, nc *nats.Conn, host Host, o Options) (*Holder, error) {
	o = o.withDefaults()
	s, err := store.Open(ctx, nc, o.Fleet)
	if err != nil {
		return nil, err
	}
	_, lease, err := natsio.EnsurePool(ctx, s.JS, o.Fleet, o.Pool, o.AckWait)
	if err != nil {
		return nil, err
	}
	reaping, err := natsio.EnsureReaper(ctx, s.JS, o.Fleet, o.Pool)
	if err != nil {
		return nil, err
	}
	h := &Holder{
		options: o, store: s, host: host, lease: lease,
		heldLanes: heldLanes{held: map[wire.LaneHash]*heldLane{}, recent: map[wire.LaneHash]released{}},
		counted:   counted{began: time.Now().UTC()},
		retryLog:  retryLog{logger: o.Logger}, monitored: monitored{streams: natsio.NewStreams(s.JS, s.Created())},
	}
	weight := func(tenant protocol.Tenant) float64 { return float64(h.limits.Rules().Weight(tenant)) }
	h.slots = &slots{size: o.Slots, wake: make(chan struct{}, 1), fair: core.Fair[protocol.Tenant]{Weight: weight}}
	h.tickets, h.taken, h.copies = newTickets(h), recent.New[uint64, int](takenReady, 0), newCopies(s.NC)
	h.awaited = &awaitedCalls{holder: h, wake: make(chan struct{}, 1), calls: map[protocol.CallRef]*awaitedCall{}}
	h.limits = limits.NewWatch(s.JS, o.Fleet, o.Logger, h.onLimitsChanged)
	h.peers = &peers{store: s, pool: o.Pool, replace: h.replaceReady, lost: host.OnWorkerLost, lease: lease, origin: o.Origin, byID: map[wire.IncarnationID]*peer{}}
	h.reaper = &reaper{holder: h, consumer: reaping, due: map[wire.LaneHash]dueLane{}}
	h.puller = &puller{holder: h, expires: lease / 3}
	return h, nil
}

// Lease is the length of the pool's leases.
func (h *Holder) Lease() time.Duration { return h.lease }

// Result returns the stored result of a call; nil when there is none.
func (h *Holder) Result(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	return h.store.Result(ctx, session, call)
}

// Held is how many lanes are held now.
func (r *heldLanes) Held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held)
}

// Load is how busy the holder is: the number of lanes it holds, idle ones included, and of its
// slots that are in use, also by lanes that are being claimed or released.
func (h *Holder) Load() (lanes, used, slots int) {
	return h.Held(), h.options.Slots - h.slots.available(), h.options.Slots
}

// Describe adds to the report of a worker how busy it is, and what it has done.
func (h *Holder) Describe(w *wire.WorkerInfo) {
	w.HeldLanes, w.Running, w.Slots = h.Load()
	w.Failed, w.Ended, w.StartedAt = h.failed.Load(), h.ended.Load(), h.began // failed first: it is never more than ended
}

// Run claims and serves lanes until ctx ends. Then it drains: it claims no more lanes, lets running
// calls finish until drain ends, kills the rest, hands its lanes over, and returns. drain must
// outlive ctx.
func (h *Holder) Run(ctx, drain context.Context) error {
	synced := func() bool { return h.clock.Sync(ctx, h.store.Calls) == nil } // the ages of calls depend on it
	if !pause.Until(ctx, pause.Retry, synced) || !h.limits.LoadUntil(ctx) {
		return nil
	}
	silence, err := h.serveQueries()
	if err != nil {
		return err
	}
	defer silence()
	tasks, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group errgroup.Group
	group.Go(func() error { return h.peers.run(tasks) })
	group.Go(func() error { h.monitor(tasks); return nil })
	group.Go(func() error { h.limits.Run(tasks); return nil })
	group.Go(func() error { h.removeSpent(tasks); return nil })
	group.Go(func() error { h.awaited.run(tasks); return nil })
	group.Go(func() error { h.copies.run(tasks); return nil })
	group.Go(func() error { h.removeMarks(tasks); return nil })
	group.Go(func() error { h.reaper.run(ctx); return nil })
	for ctx.Err() == nil {
		h.serveIncarnation(ctx, drain)
	}
	h.group.Wait() // of lanes that an earlier incarnation lost
	stop()
	_ = natsio.Flush(ctx, h.store.NC, store.OpTimeout) // without a connection the leases end by themselves
	return group.Wait()
}

// serveIncarnation claims and serves lanes until ctx ends or the incarnation is lost. Calls that do
// not end after the loss keep their slots, but do not delay the next incarnation.
func (h *Holder) serveIncarnation(ctx, drain context.Context) {
	l, err := h.beginIncarnation(ctx)
	if err != nil {
		h.drain(drain)
		return
	}
	claiming, stop := context.WithCancel(ctx)
	h.mu.Lock()
	h.incarnation, h.claiming = l, claiming
	h.mu.Unlock()
	var renewal, ticketing sync.WaitGroup
	renewal.Go(func() { h.renewHeartbeat(l) })
	lost := context.AfterFunc(l.ctx, stop) //nolint:contextcheck // the incarnation is over before ctx, or with it
	if len(h.options.Settles) > 0 {
		<-claiming.Done() // the reaper does all that there is to do
	} else {
		ticketing.Go(func() { h.tickets.run(claiming) })
		h.pull(claiming)
	}
	lost()
	stop()
	ticketing.Wait()
	h.awaitKilled(ctx, l)
	if ctx.Err() != nil {
		h.drain(drain)
	}
	lostLease := l.isLost()
	l.end(nil)
	renewal.Wait()
	h.retire(ctx, l, lostLease)
}

// awaitKilled waits, after the loss of an incarnation, until its calls are killed or the margin of
// its lease has passed: other workers must not take its lanes over earlier.
func (h *Holder) awaitKilled(ctx context.Context, l *incarnation) {
	end := l.leaseEnd().Add(l.lease.Margin())
	for l.isLost() && time.Now().Before(end) && h.holdsLanesOf(l) {
		if !pause.For(ctx, killedPause) {
			return
		}
	}
}

const killedPause = 10 * time.Millisecond

func (r *heldLanes) holdsLanesOf(incarnation *incarnation) bool {
	return slices.ContainsFunc(r.lanes(), func(l *heldLane) bool { return l.incarnation == incarnation })
}

// drain gives back undelivered lanes, lets running calls end until the context does, and returns
// when no lane is held.
func (h *Holder) drain(drain context.Context) {
	h.mu.Lock()
	h.draining = true // later deliveries are declined
	h.mu.Unlock()
	h.puller.close()
	for _, l := range h.lanes() {
		l.stop()
	}
	late := context.AfterFunc(drain, func() {
		for _, l := range h.lanes() {
			l.cancel(ErrDraining)
		}
	})
	h.group.Wait()
	late()
}

// pull keeps as many pull requests at the server as there are free slots.
func (h *Holder) pull(ctx context.Context) {
	changed := h.store.NC.StatusChanged(nats.CONNECTED, nats.RECONNECTING)
	defer h.store.NC.RemoveStatusListener(changed)
	again := time.NewTicker(h.Lease() / 12)
	defer again.Stop()
	healthy := false
	for ctx.Err() == nil {
		if !healthy {
			healthy = h.puller.reset() == nil //nolint:contextcheck // deliveries outlive the loop
		}
		if healthy {
			var n int
			if n, healthy = h.puller.outstanding(time.Now()); healthy {
				want := min(h.slots.available(), maxRequests) - n
				if want <= 0 && n == 0 && h.tickets.shared() && !h.deliveredWaits.Load() {
					want = 1 // it waits in line with the tickets
				}
				if want > 0 {
					_ = h.puller.request(want) // without a connection it is retried in a moment
				}
			} else {
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-h.slots.wake:
		case <-again.C:
		case _, open := <-changed:
			if healthy = false; !open { // the connection is closed for good
				changed = nil
			}
		}
	}
}

func (h *Holder) deliver(msg *nats.Msg) {
	defer h.slots.signal() // its pull request is used up
	ready, err := readReady(msg)
	if err != nil {
		h.options.Logger.Error("ready message is malformed", slog.String("subject", msg.Subject), slog.Any("error", err))
		_ = msg.Term() // else it is delivered for ever
		if meta, err := msg.Metadata(); err == nil {
			h.store.DeleteAsync(meta.Sequence.Stream) // else no other ready message of the lane can be stored
		}
		return
	}
	h.claimDelivered(ready)
}

// claimDelivered begins to hold a lane that was delivered, if there is a slot.
func (h *Holder) claimDelivered(ready *readyMessage) {
	switch {
	case h.tickets.holdBack(ready):
		// A ticket of the lane is being taken, and its end places the message.
	case h.isHeldBy(ready):
		h.store.Nack(ready.ack, h.lease)
	case h.slots.tryAcquire():
		h.beginHold(ready)
	case h.tickets.shared() && h.deliveredWaits.CompareAndSwap(false, true):
		h.group.Go(func() {
			defer h.slots.signal()
			defer h.deliveredWaits.Store(false)
			h.awaitSlot(ready)
		})
	default:
		h.store.Nack(ready.ack, 0)
	}
}

// isHeldBy reports whether the lane is held here by the ready message, as after a ticket was taken.
func (r *heldLanes) isHeldBy(ready *readyMessage) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held[ready.hash]
	return held != nil && held.ready.seq == ready.seq && held.ready.ack == ""
}

// nackLeases is for how many leases the consumer does not deliver the ready message of a held lane
// again; each delivery costs a read of the claim.
const nackLeases = 60

// beginHold begins to hold a lane, with a slot, unless it is held here already.
func (h *Holder) beginHold(ready *readyMessage) {
	h.mu.Lock()
	before := h.held[ready.hash]
	if !h.draining && before == nil {
		l := newHeldLane(h, h.incarnation, ready)
		if time.Since(h.recent[l.hash].at) < frequent {
			l.usage.served = 1 // it is used frequently
		}
		h.held[l.hash] = l
		h.group.Add(1)
		h.mu.Unlock()
		go h.hold(l)
		return
	}
	draining := h.draining
	visited := !draining && before.claim.Ready == 0
	if !draining && !visited && before.ready.seq == ready.seq {
		h.store.Nack(ready.ack, nackLeases*h.lease) // under the lock, so that the redelivery of a release comes later
	}
	h.mu.Unlock()
	h.slots.release()
	switch {
	case draining:
		h.decline(ready, ErrDraining)
	case visited, before.ready.seq < ready.seq:
		h.decline(ready, errReleasing)
	case before.ready.seq > ready.seq: // an old delivery
		h.decline(ready, errHeld)
	}
}

// hold claims a lane and serves it.
func (h *Holder) hold(l *heldLane) {
	err := errHeld
	if !h.leavesToPreferred(l) {
		err = h.acquire(l.ctx, l.claim)
	}
	if err != nil || !l.isAlive() {
		l.cancel(nil)
		h.slots.release()
		h.remove(l)
		h.removeStaleClaimAfter(l, err)
		h.decline(l.ready, cmp.Or(err, ErrLost))
		h.group.Done()
		return
	}
	h.notifyClaimed(l.ready)
	l.stopLossNotice = h.notifyLoss(l)
	l.decodeReady()
	h.serve(l)
}

// serve serves a claimed lane until it is held no more, or parked: then it runs again later.
func (h *Holder) serve(l *heldLane) {
	left, parked := l.serve()
	if parked {
		return
	}
	l.close()
	if !left {
		h.host.Release(l.lane)
	}
	l.stopLossNotice()
	h.remove(l)
	h.group.Done()
}

// remove ends the bookkeeping of a lane, so that it may be claimed here again.
func (r *heldLanes) remove(l *heldLane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[l.hash] != l {
		return
	}
	delete(r.held, l.hash)
	if len(r.recent) >= maxUsed {
		clear(r.recent)
	}
	r.recent[l.hash] = released{time.Now(), l.ended}
}

// monitor checks the streams and measures the server's clock offset, until ctx ends.
func (h *Holder) monitor(ctx context.Context) {
	gone := false
	for synced := time.Now(); pause.For(ctx, natsio.StreamsPeriod); {
		gone = h.checkStreams(ctx, gone)
		if time.Since(synced) < clockPeriod {
			continue
		}
		if err := h.clock.Sync(ctx, h.store.Calls); err == nil { // else the old offset is good enough
			synced = time.Now()
		}
		h.checkPauses(ctx)
	}
}

// checkStreams logs when a stream is missing, and when all are back. It takes and returns whether
// one was, and is, missing.
func (h *Holder) checkStreams(ctx context.Context, before bool) bool {
	err := h.streams.Check(ctx)
	switch {
	case err != nil && !before:
		h.options.Logger.ErrorContext(ctx, "a stream of the fleet was deleted: no call runs or ends without it", slog.Any("error", err))
	case err == nil && before:
		h.options.Logger.WarnContext(ctx, "all streams of the fleet exist again")
	}
	return err != nil
}

const clockPeriod = 30 * time.Second

// notifyLoss calls [Host.OnLost] when the lane is lost. The returned function ends that, after a
// call of OnLost that runs.
func (h *Holder) notifyLoss(l *heldLane) (stop func()) {
	told := make(chan struct{})
	stopped := context.AfterFunc(l.ctx, func() {
		defer close(told)
		if errors.Is(context.Cause(l.ctx), ErrLost) {
			h.host.OnLost(l.ctx, l.lane)
		}
	})
	return func() {
		if !stopped() {
			<-told
		}
	}
}

// lanes returns the lanes that are held now.
func (r *heldLanes) lanes() []*heldLane {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.held))
}

// logEvery is the least time between two lines with the same message.
const logEvery = time.Minute

// retryLog logs operations that are retried until they succeed, as while the server is away: each
// message at most once a minute, for all lanes and calls together. An operation that was cancelled,
// as when the worker stops, is no trouble. It is safe for concurrent use.
type retryLog struct {
	logger *slog.Logger

	mu   sync.Mutex
	last map[string]time.Time // when each message was logged; messages are constants
}

func (t *retryLog) log(ctx context.Context, msg string, attrs ...slog.Attr) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, known := t.last[msg]; known && time.Since(last) < logEvery {
		return
	}
	if t.last == nil {
		t.last = map[string]time.Time{}
	}
	t.last[msg] = time.Now()
	t.logger.LogAttrs(ctx, slog.LevelWarn, msg, attrs...) //nolint:sloglint // messages are constants of the callers
}
