package lane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Holder claims lanes of one pool and runs their calls. Make one with
// [NewHolder] and run it once.
type Holder struct {
	options  Options
	store    *store.Store
	host     Host
	slots    *slots
	puller   *puller
	peers    *peers
	care     *caretaker
	clock    store.Clock
	lease    time.Duration
	troubles troubles
	streams  *natsio.Streams
	roster
}

// roster is the lanes that a process holds. It is safe for concurrent use.
type roster struct {
	mu       sync.Mutex
	life     *life // nil before the first one
	draining bool
	held     map[wire.LaneHash]*held
	recent   map[wire.LaneHash]time.Time // when lanes were let go; bounded by maxUsed
	group    sync.WaitGroup              // of held lanes
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
	care, err := natsio.EnsureCare(ctx, s.JS, o.Fleet, o.Pool)
	if err != nil {
		return nil, err
	}
	h := &Holder{
		options: o, store: s, host: host, lease: lease,
		roster:   roster{held: map[wire.LaneHash]*held{}, recent: map[wire.LaneHash]time.Time{}},
		troubles: troubles{logger: o.Logger}, streams: natsio.NewStreams(s.JS, s.Created()),
		slots: newSlots(o.Slots), peers: newPeers(s, o.Pool, lease, o.Origin),
	}
	h.peers.replace = h.replaceReady
	h.care = &caretaker{holder: h, consumer: care, due: map[wire.LaneHash]dueLane{}}
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
func (r *roster) Held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held)
}

// Load is how busy the holder is now: how many lanes it holds, idle ones included, and how many
// of its slots are in use, by calls and by lanes that are just taken or let go.
func (h *Holder) Load() (lanes, used, slots int) {
	return h.Held(), h.options.Slots - h.slots.available(), h.options.Slots
}

// Run claims and serves lanes until ctx ends; then it drains: it claims nothing
// more, lets what runs finish until drain ends, kills the rest, hands its lanes back,
// and returns. drain is a context that outlives ctx.
func (h *Holder) Run(ctx, drain context.Context) error {
	for {
		if err := h.clock.Sync(ctx, h.store.Calls); err == nil { // ages of calls are measured by it
			break
		}
		if !pause.For(ctx, faultPause) {
			return nil
		}
	}
	silence, err := h.answerQuestions()
	if err != nil {
		return err
	}
	defer silence()
	beside, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group errgroup.Group
	group.Go(func() error { return h.peers.run(beside) })
	group.Go(func() error { h.keepInformed(beside); return nil })
	group.Go(func() error { h.care.run(ctx); return nil })
	for ctx.Err() == nil {
		h.live(ctx, drain)
	}
	h.group.Wait() // of lanes that an earlier life has lost
	stop()
	_ = natsio.Flush(ctx, h.store.NC, store.OpTimeout) // what was sent last; without a connection leases end
	return group.Wait()
}

// live claims and serves lanes until ctx ends or this life is lost. Calls that do not end when
// their lanes are lost keep their slots, and no new life from beginning.
func (h *Holder) live(ctx, drain context.Context) {
	l, err := h.begin(ctx)
	if err != nil {
		h.drain(drain)
		return
	}
	h.mu.Lock()
	h.life = l
	h.mu.Unlock()
	var keeper sync.WaitGroup
	keeper.Go(func() { h.keep(l) })
	living, stop := context.WithCancel(ctx)
	lost := context.AfterFunc(l.ctx, stop) //nolint:contextcheck // the life is over before ctx, or with it
	h.pull(living)
	lost()
	stop()
	h.endure(ctx, l)
	if ctx.Err() != nil {
		h.drain(drain)
	}
	lostLease := l.isLost()
	l.end(nil)
	keeper.Wait()
	h.bury(ctx, l, lostLease)
}

// endure waits, after a life was lost, until what ran in it has been killed, or the margin of its
// lease is over: others must not take its lanes over before.
func (h *Holder) endure(ctx context.Context, l *life) {
	end := l.leaseEnd().Add(l.lease.Margin())
	for l.isLost() && time.Now().Before(end) && h.holds(l) {
		if !pause.For(ctx, leavePause) {
			return
		}
	}
}

const leavePause = 10 * time.Millisecond

func (r *roster) holds(life *life) bool {
	return slices.ContainsFunc(r.lanes(), func(l *held) bool { return l.life == life })
}

// drain hands back what is on its way, lets what runs end until the context does, and returns when
// no lane is held.
func (h *Holder) drain(drain context.Context) {
	h.mu.Lock()
	h.draining = true // what is still on its way is given back
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

// pull keeps as many requests at the server as there are free slots.
func (h *Holder) pull(ctx context.Context) {
	changed := h.store.NC.StatusChanged(nats.CONNECTED, nats.RECONNECTING)
	defer h.store.NC.RemoveStatusListener(changed)
	again := time.NewTicker(h.Lease() / 12)
	defer again.Stop()
	healthy := false
	for ctx.Err() == nil {
		if !healthy {
			healthy = h.puller.reset() == nil //nolint:contextcheck // what it is told outlives the loop
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
	defer h.slots.nudge() // the request that it came by is used up
	ready, err := readReady(msg)
	if err != nil {
		h.options.Logger.Error("ready message is malformed", slog.String("subject", msg.Subject), slog.Any("error", err))
		_ = msg.Term() // else it would come back for ever
		if meta, err := msg.Metadata(); err == nil {
			h.store.ThrowAway(meta.Sequence.Stream) // else it would stand in the way of every other one
		}
		return
	}
	if !h.slots.tryAcquire() {
		h.store.Nack(ready.ack, 0)
		return
	}
	h.enter(ready)
}

// nackLeases is for how many leases the consumer does not deliver the ready message of a held lane
// once more; that costs a look at the claim.
const nackLeases = 60

// enter begins to hold a lane, with a slot, unless it is held here.
func (h *Holder) enter(ready *readyMessage) {
	h.mu.Lock()
	before := h.held[ready.hash]
	if !h.draining && before == nil {
		l := newHeld(h, h.life, ready)
		if time.Since(h.recent[l.hash]) < frequent {
			l.use.served = 1 // it is used again and again
		}
		h.held[l.hash] = l
		h.group.Add(1)
		h.mu.Unlock()
		go func() {
			defer h.group.Done()
			h.hold(l)
		}()
		return
	}
	draining := h.draining
	visited := !draining && before.claim.Ready == 0
	if !draining && !visited && before.ready.seq == ready.seq {
		h.store.Nack(ready.ack, nackLeases*h.lease) // under the lock: whoever lets go of the lane has it delivered after that
	}
	h.mu.Unlock()
	h.slots.release()
	switch {
	case draining:
		h.decline(ready, ErrDraining)
	case visited, before.ready.seq < ready.seq:
		h.decline(ready, errLeaving)
	case before.ready.seq > ready.seq: // an old delivery
		h.decline(ready, errHeld)
	}
}

// hold claims a lane and serves it.
func (h *Holder) hold(l *held) {
	defer h.forget(l)
	var err error
	switch {
	case h.bound(l):
		err = errElsewhere
	case h.leaves(l):
		err = errHeld
	default:
		err = h.take(l.ctx, l.claim)
	}
	if err != nil || !l.alive() {
		l.cancel(nil)
		h.slots.release()
		h.forget(l)
		h.disownAfter(l, err)
		h.decline(l.ready, cmp.Or(err, ErrLost))
		return
	}
	h.tellTaken(l.ready)
	untold := h.tellLoss(l)
	defer untold()
	if !l.serve() {
		h.host.Release(l.lane)
	}
}

// forget ends the bookkeeping of a lane: it may be claimed again here.
func (r *roster) forget(l *held) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[l.hash] != l {
		return
	}
	delete(r.held, l.hash)
	if len(r.recent) >= maxUsed {
		clear(r.recent)
	}
	r.recent[l.hash] = time.Now()
}

// keepInformed finds out whether the streams are there, and measures the server's time now and
// then, until ctx ends.
func (h *Holder) keepInformed(ctx context.Context) {
	gone := false
	for synced := time.Now(); pause.For(ctx, natsio.StreamsPeriod); {
		gone = h.tellStreams(ctx, gone)
		if time.Since(synced) < clockPeriod {
			continue
		}
		if err := h.clock.Sync(ctx, h.store.Calls); err == nil { // else the old offset is good enough
			synced = time.Now()
		}
	}
}

// tellStreams logs when a stream is gone, and when all are there again. It takes and returns
// whether one was, and is.
func (h *Holder) tellStreams(ctx context.Context, before bool) bool {
	err := h.streams.Check(ctx)
	switch {
	case err != nil && !before:
		h.options.Logger.ErrorContext(ctx, "a stream of the fleet was deleted: no call runs, or ends, without it", slog.Any("error", err))
	case err == nil && before:
		h.options.Logger.WarnContext(ctx, "the streams of the fleet are there again")
	}
	return err != nil
}

const clockPeriod = 30 * time.Second

// tellLoss tells of the lane's loss when that happens, until the function that it returns does.
func (h *Holder) tellLoss(l *held) (stop func()) {
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
func (r *roster) lanes() []*held {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.held))
}
