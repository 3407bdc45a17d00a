package lane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Holder claims lanes of one pool and runs their calls. Make one with
// [NewHolder] and run it once.
type Holder struct {
	options  Options
	store    *store.Store
	executor Executor
	slots    *slots
	puller   *puller
	alarms   *alarms
	lookups  lookups
	care     *caretaker
	clock    store.Clock
	lease    atomic.Int64  // AckWait, in nanoseconds: as the pool has it, which may be edited
	wake     chan struct{} // there may be room for another lane

	repairing atomic.Bool
	crowd     crowd
	contact   contact // with the other servers of a cluster
	books     books
	pace      pace
	troubles  troubles
	streams   streams

	mu        sync.Mutex
	draining  bool
	held      map[protocol.LaneHash]*held
	recent    map[protocol.LaneHash]time.Time // when lanes were let go; bounded by maxIdle
	lingering int
	group     sync.WaitGroup // of held lanes
}

// NewHolder opens the streams of a fleet, which must exist, and makes or checks
// the pool's consumer.
func NewHolder(ctx context.Context, nc *nats.Conn, executor Executor, o Options) (*Holder, error) {
	o = o.withDefaults()
	server := nc.ConnectedServerId()
	s, err := store.Open(ctx, nc, o.Fleet)
	if err != nil {
		return nil, err
	}
	_, lease, err := natsio.EnsurePool(ctx, s.JS, o.Fleet, o.Pool, o.AckWait)
	if err != nil {
		return nil, err
	}
	care, err := newCaretaker(ctx, s, o)
	if err != nil {
		return nil, err
	}
	h := &Holder{
		options: o, store: s, executor: executor, care: care,
		wake: make(chan struct{}, 1), held: map[protocol.LaneHash]*held{},
		recent: map[protocol.LaneHash]time.Time{}, alarms: newAlarms(s, o.Pool), troubles: troubles{logger: o.Logger}, streams: newStreams(s),
	}
	h.lookups.store = s
	h.lease.Store(int64(lease))
	h.books.meet(server, s.Calls.CachedInfo().TimeStamp)
	h.slots = newSlots(o.Slots, h.room)
	h.puller = newPuller(nc, o.Fleet, o.Pool, lease/3, h.claim, h.pullEnded, h.pullFault)
	return h, nil
}

// Lease is the length of the pool's leases.
func (h *Holder) Lease() time.Duration { return time.Duration(h.lease.Load()) }

// Result returns the stored result of a call; nil when there is none.
func (h *Holder) Result(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	return h.store.Result(ctx, session, call)
}

// Held is how many lanes are held now.
func (h *Holder) Held() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.held)
}

// Load is how busy the holder is now: how many lanes it holds, idle ones included, and how many
// of its slots are in use, by calls and by lanes that are just taken or let go.
func (h *Holder) Load() (lanes, used, slots int) {
	return h.Held(), h.options.Slots - h.slots.available(), h.options.Slots
}

// room wakes the pull loop.
func (h *Holder) room() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Run claims and serves lanes until ctx ends; then it drains: it claims nothing
// more, lets what runs finish until drain ends, kills the rest, hands its lanes back,
// and returns. drain is a context that outlives ctx.
func (h *Holder) Run(ctx, drain context.Context) error {
	for h.books.sync(ctx, h.store, &h.clock) != nil { // ages of calls are measured by it
		if !pause.For(ctx, faultPause) {
			return nil
		}
	}
	defer h.store.Replies.Close()
	defer h.alarms.close()
	if err := h.alarms.tend(ctx); err != nil {
		h.options.Logger.DebugContext(ctx, "every call is looked for", slog.Any("error", err)) // until the next try
	}
	silence, err := h.answerQuestions()
	if err != nil {
		return err
	}
	defer silence()
	var keeper sync.WaitGroup
	keeping, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	keeper.Go(func() { h.keepLeases(keeping) })
	keeper.Go(func() { h.keepInformed(keeping) })
	keeper.Go(func() { h.answerOverdue(keeping) })
	keeper.Go(func() { h.care.Run(ctx) })
	h.pull(ctx)
	h.mu.Lock()
	h.draining = true // what is still on its way is handed back
	h.mu.Unlock()
	h.puller.close()
	h.each(func(l *held) { l.drain() })
	stop := context.AfterFunc(drain, func() { h.each(func(l *held) { l.abort(ErrDraining) }) })
	h.group.Wait()
	stop()
	stopKeeping()
	keeper.Wait()
	_ = natsio.Flush(ctx, h.store.NC, store.OpTimeout) // lanes handed back last; without a connection their leases end
	return nil
}

// pull keeps as many requests at the server as there are free slots.
func (h *Holder) pull(ctx context.Context) {
	changed := h.store.NC.StatusChanged(nats.CONNECTED, nats.RECONNECTING)
	defer h.store.NC.RemoveStatusListener(changed)
	again := time.NewTicker(h.Lease() / 12)
	defer again.Stop()
	healthy := false
	for ctx.Err() == nil {
		if !healthy {
			healthy = h.puller.reset() == nil
		}
		if healthy {
			var n int
			if n, healthy = h.puller.outstanding(time.Now()); healthy {
				if want := min(h.slots.available(), maxRequests) - n; want > 0 {
					_ = h.puller.request(want) // no connection: tried again in a moment
				}
			} else {
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-h.wake:
		case <-again.C:
		case status, open := <-changed:
			healthy = false
			switch {
			case !open: // the connection is closed for good
				changed = nil
			case status == nats.RECONNECTING:
				h.doubtRecent()
			}
		}
	}
}

// forgetful is how long a server on its own may take to write down a delivery. When
// it is killed before, it delivers the lane once more after its restart, at once.
const forgetful = time.Second

// doubtRecent gives up the lanes that a server which may have died need not remember, and
// takes back the renewals.
func (h *Holder) doubtRecent() {
	if h.store.Clustered() {
		return
	}
	after := time.Now().Add(-forgetful)
	h.each(func(l *held) {
		if l.lease.doubt(after); l.claimed.After(after) {
			l.abort(ErrLost)
		}
	})
}

// claim takes a lane: msg is its ready message, and since the earliest time at
// which the server can have delivered it.
func (h *Holder) claim(msg *nats.Msg, since time.Time) {
	h.pullAnswered()
	l, err := newHeld(h, msg, since)
	if err != nil {
		h.options.Logger.Error("ready message is malformed", slog.String("subject", msg.Subject), slog.Any("error", err))
		_ = msg.Term() // else it would come back for ever
		if meta, err := msg.Metadata(); err == nil {
			h.store.ThrowAway(meta.Sequence.Stream) // else it would stand in the way of every other one
		}
		return
	}
	if !l.lease.trusted(time.Now()) {
		l.cancel(nil)
		return // delivered while this process slept; it belongs to somebody else by now
	}
	h.mu.Lock()
	if h.draining {
		h.mu.Unlock()
		l.handback()
		l.cancel(nil)
		return
	}
	l.frequent = time.Since(h.recent[l.hash]) < frequent
	before := h.held[l.hash]
	h.held[l.hash] = l
	h.group.Add(1)
	h.mu.Unlock()
	l.hasSlot = h.slots.tryAcquire()
	h.room() // the request that it came by is used up
	go func() {
		defer h.group.Done()
		if before != nil {
			before.succeed(l.ready)
			<-before.gone
			if before.ready == l.ready {
				l.former = cmp.Or(before.claim.subject, before.former)
			}
		}
		l.untold = h.tellLoss(l)
		if l.assure() {
			l.serve()
		} else if l.hasSlot {
			h.slots.release()
		}
		if !l.forgotten { // else it is released, and may be claimed again by now
			h.executor.Release(l.lane)
			h.forget(l)
		}
		l.dropClaim()
	}()
}

// forget ends the bookkeeping of a lane.
func (h *Holder) forget(l *held) {
	l.forgotten = true
	l.untold()
	h.mu.Lock()
	if h.held[l.hash] == l {
		delete(h.held, l.hash)
	}
	if len(h.recent) >= maxIdle {
		clear(h.recent)
	}
	h.recent[l.hash] = time.Now()
	h.mu.Unlock()
	close(l.gone)
}

// tellLoss tells of the lane's loss when that happens, until the function that it returns does.
func (h *Holder) tellLoss(l *held) (stop func()) {
	told := make(chan struct{})
	stopped := context.AfterFunc(l.ctx, func() {
		defer close(told)
		if errors.Is(context.Cause(l.ctx), ErrLost) {
			h.options.Lost(l.ctx, l.lane)
		}
	})
	return func() {
		if !stopped() {
			<-told
		}
	}
}

// each calls f for every held lane.
func (h *Holder) each(f func(*held)) {
	h.mu.Lock()
	lanes := make([]*held, 0, len(h.held))
	for _, l := range h.held {
		lanes = append(lanes, l)
	}
	h.mu.Unlock()
	for _, l := range lanes {
		f(l)
	}
}

// mayLinger books one more idle lane, if there is room.
func (h *Holder) mayLinger(lane protocol.Lane) bool {
	if h.options.Linger <= 0 || !h.options.Lingers(lane) {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lingering >= h.options.MaxLingering {
		return false
	}
	h.lingering++
	return true
}

func (h *Holder) lingered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lingering--
}
