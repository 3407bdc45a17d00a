package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// incarnation is the time in which a holder renews one heartbeat, for all its claims. It ends when
// its lease is no longer trusted, and never returns: its lanes are lost, and the holder starts a
// new incarnation. It is safe for concurrent use.
type incarnation struct {
	id wire.IncarnationID
	// ctx ends with the incarnation; the cause is [ErrLost] if the lease was lost.
	ctx context.Context //nolint:containedctx // the incarnation is the scope
	end context.CancelCauseFunc

	mu    sync.Mutex
	lease core.Lease
	timer *time.Timer // ends the incarnation when the lease does
	over  time.Time   // when the lease was first found to be no longer trusted; zero before
	seq   uint64      // of the record
	beat  uint64      // renewals that were sent
}

// beginIncarnation stores the first heartbeat of a new incarnation. It retries until that succeeds
// or ctx ends.
func (h *Holder) beginIncarnation(ctx context.Context) (*incarnation, error) {
	for {
		l := newIncarnation(ctx, h.lease)
		if h.renew(ctx, l); l.isTrusted(time.Now()) {
			return l, nil
		}
		l.end(nil)
		l.timer.Stop()
		if !pause.For(ctx, pause.Retry) {
			return nil, context.Cause(ctx)
		}
	}
}

// newIncarnation starts an incarnation that ends if its first heartbeat takes longer than a lease.
// It outlives ctx.
func newIncarnation(ctx context.Context, lease time.Duration) *incarnation {
	l := &incarnation{id: wire.NewIncarnationID(), lease: core.Lease{Length: lease}}
	l.ctx, l.end = context.WithCancelCause(context.WithoutCancel(ctx))
	l.timer = time.AfterFunc(lease, l.check)
	return l
}

func (l *incarnation) isLost() bool { return errors.Is(context.Cause(l.ctx), ErrLost) }

// isTrusted reports whether no other worker can have replaced this incarnation's claims. Once it is
// false, the incarnation is over for all its lanes: a renewal that is acknowledged later renews
// nothing.
func (l *incarnation) isTrusted(now time.Time) bool {
	l.mu.Lock()
	trusted := l.ctx.Err() == nil && l.lease.Trusted(now)
	if !trusted && l.over.IsZero() {
		l.over = now
	}
	l.mu.Unlock()
	if !trusted {
		l.end(ErrLost)
	}
	return trusted
}

// isFresh reports whether the lease stays trusted for one more margin.
func (l *incarnation) isFresh(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lease.Trusted(now.Add(l.lease.Margin()))
}

// leaseEnd is until when the lease is trusted unless it is renewed.
func (l *incarnation) leaseEnd() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lease.End()
}

// heldUntil is [incarnation.leaseEnd] for those who act under the lease. It looks at the clock: if
// the lease is no longer trusted, it ends the incarnation before it returns a time that has passed.
func (l *incarnation) heldUntil() time.Time {
	trusted := l.isTrusted(time.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	if end := l.lease.End(); trusted || end.Before(l.over) {
		return end
	}
	return l.over
}

// check ends the incarnation when its lease is no longer trusted, and otherwise sets the timer to
// that time.
func (l *incarnation) check() {
	now := time.Now()
	if !l.isTrusted(now) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Reset(l.lease.End().Sub(now))
}

func (h *Holder) renewHeartbeat(l *incarnation) {
	ticker := time.NewTicker(l.lease.Period())
	defer ticker.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-ticker.C:
		}
		l.check()
		l.mu.Lock()
		due := l.lease.Due(time.Now())
		l.mu.Unlock()
		if due {
			h.renew(l.ctx, l)
		}
	}
}

// renew sends one renewal and waits for the answer. After a missing answer the next renewal finds
// out whether it was stored.
func (h *Holder) renew(ctx context.Context, l *incarnation) {
	l.mu.Lock()
	l.beat++
	expect, beat, length := l.seq, l.beat, l.lease.Length
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, length/6)
	defer cancel()
	sent := time.Now()
	seq, answer, err := h.store.StoreHeartbeat(ctx, h.options.Pool, l.id, &wire.Heartbeat{
		WorkerID: h.options.Worker, LeaseMS: length.Milliseconds(), Beat: beat, Origin: h.options.Origin,
		Disk: h.options.Disk,
	}, expect)
	switch {
	case err != nil || answer == store.Full:
		h.retryLog.log(ctx, "heartbeat cannot be renewed", slog.Any("error", err))
	case answer == store.Occupied:
		h.resync(ctx, l)
	default:
		l.mu.Lock()
		l.seq = seq
		l.lease.Renew(sent)
		l.timer.Reset(time.Until(l.lease.End()))
		l.mu.Unlock()
	}
}

// resync reads the record after a refused renewal: either an earlier renewal, whose answer was
// lost, is stored, or another worker has expired the record.
func (h *Holder) resync(ctx context.Context, l *incarnation) {
	record, err := h.store.Heartbeat(ctx, h.options.Pool, l.id)
	if err != nil || record == nil && l.seq == 0 {
		return // tried again
	}
	if record == nil || record.Expired {
		l.end(ErrLost)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq = max(l.seq, record.Seq) // its send time is unknown, so it renews nothing
}

// retire expires the record of an ended incarnation, so that other workers take over its remaining
// claims at once; without claims it deletes the record. After a loss it retries while ctx lasts.
// Without a connection others expire the record after a lease.
func (h *Holder) retire(ctx context.Context, l *incarnation, lost bool) {
	l.timer.Stop()
	if h.expireOwn(context.WithoutCancel(ctx), l) || !lost {
		return
	}
	for pause.For(ctx, pause.Retry) && !h.store.NC.IsClosed() {
		if h.expireOwn(ctx, l) {
			return
		}
	}
}

// expireOwn expires the record of an incarnation of this holder, and deletes it when no claim is
// left.
func (h *Holder) expireOwn(ctx context.Context, l *incarnation) bool {
	ctx, cancel := context.WithTimeout(ctx, store.ShortTimeout)
	defer cancel()
	record, err := h.store.Heartbeat(ctx, h.options.Pool, l.id)
	if err != nil || record == nil {
		return err == nil
	}
	if !record.Expired && !h.peers.expire(ctx, record) {
		return false
	}
	left, err := h.peers.claimsOf(ctx, l.id)
	if err == nil && len(left) == 0 {
		h.peers.removeRecord(ctx, l.id)
	}
	return true
}

// peers is what a holder knows about the heartbeats of its pool. It expires heartbeats that have
// not changed for a lease, and has the ready messages of expired incarnations' claims delivered
// again. Every worker does so; the conditions of the writes let one of them succeed, no matter
// which. It is safe for concurrent use.
type peers struct {
	store *store.Store
	pool  protocol.Pool
	// replace replaces a lane's ready message that the consumer never delivers, see
	// [Holder.replaceReady].
	replace func(ctx context.Context, lane protocol.Lane)
	lost    func(ctx context.Context, worker protocol.WorkerID) // see [Host]
	lease   time.Duration                                       // of incarnations whose record is missing
	origin  string

	mu   sync.Mutex
	byID map[wire.IncarnationID]*peer
}

// peer is the last observed state of one incarnation.
type peer struct {
	core.Sighting

	beat         wire.Heartbeat
	redelivering bool // redeliverClaims runs for it
}

func (p *peers) run(ctx context.Context) error {
	subscription, err := p.store.NC.Subscribe(wire.BeatFilter(p.store.Fleet, p.pool), p.onHeartbeat)
	if err != nil {
		return fmt.Errorf("listen to heartbeats: %w", err)
	}
	defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	var rescues sync.WaitGroup
	defer rescues.Wait()
	look := core.Lease{Length: p.lease}
	for read := (time.Time{}); ; {
		if time.Since(read) >= p.lease/2 { // republished heartbeats may be lost
			if p.store.EachHeartbeat(ctx, p.pool, p.observe) == nil {
				read = time.Now()
			}
		}
		for _, incarnation := range p.expireDue(ctx) {
			rescues.Go(func() { p.redeliverClaims(ctx, incarnation) })
		}
		if !pause.For(ctx, look.Period()) {
			return nil
		}
	}
}

// onHeartbeat receives heartbeats that the server republishes.
func (p *peers) onHeartbeat(msg *nats.Msg) {
	seq, err := strconv.ParseUint(msg.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return
	}
	if beat, err := store.ReadHeartbeat(wire.LifeOfSubject(p.store.Fleet, msg.Subject), msg.Data, seq); err == nil {
		p.observe(beat)
	}
}

func (p *peers) observe(beat *store.StoredHeartbeat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.byID[beat.Incarnation]
	if one == nil {
		one = &peer{}
		p.byID[beat.Incarnation] = one
	}
	if beat.Seq > one.Seq {
		one.beat = beat.Heartbeat
	}
	one.Observe(beat.Seq, beat.Lease(), beat.Expired, time.Now())
}

// isExpired reports whether an incarnation is expired. A missing record counts as one that has not
// changed since it was first missed.
func (p *peers) isExpired(incarnation wire.IncarnationID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.byID[incarnation]
	if one == nil {
		one = &peer{}
		one.Observe(0, p.lease, false, time.Now())
		p.byID[incarnation] = one
	}
	return one.Expired
}

// hasOthers reports whether another worker is alive, as far as is known.
func (p *peers) hasOthers(self protocol.WorkerID) bool {
	return p.any(func(beat *wire.Heartbeat) bool { return beat.WorkerID != "" && beat.WorkerID != self })
}

// hasDisk reports whether a worker with a disk is alive, as far as is known.
func (p *peers) hasDisk(disk string) bool {
	return p.any(func(beat *wire.Heartbeat) bool { return beat.Disk == disk })
}

func (p *peers) any(is func(*wire.Heartbeat) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.byID {
		if !one.Expired && is(&one.beat) {
			return true
		}
	}
	return false
}

// expireDue expires the heartbeats that have not changed for a lease, and returns the expired
// incarnations whose claims this holder does not look after yet.
func (p *peers) expireDue(ctx context.Context) []wire.IncarnationID {
	now := time.Now()
	var due []*store.StoredHeartbeat
	p.mu.Lock()
	for id, one := range p.byID {
		if !one.Expired && (one.MayExpire(now) || p.isPredecessor(one)) {
			due = append(due, &store.StoredHeartbeat{Heartbeat: one.beat, Incarnation: id, Seq: one.Seq})
		}
	}
	p.mu.Unlock()
	for _, beat := range due {
		if p.expire(ctx, beat) && beat.WorkerID != "" {
			p.lost(ctx, beat.WorkerID)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []wire.IncarnationID
	for id, one := range p.byID {
		if one.Expired && !one.redelivering {
			one.redelivering = true
			found = append(found, id)
		}
	}
	return found
}

// isPredecessor reports whether an incarnation is over because this process has its origin, which
// one process at a time can have.
func (p *peers) isPredecessor(one *peer) bool {
	return p.origin != "" && one.beat.Origin != "" && one.beat.Origin != p.origin &&
		originName(one.beat.Origin) == originName(p.origin)
}

func originName(origin string) string {
	name, _, _ := strings.Cut(origin, "#")
	return name
}

// expire expires a heartbeat if its record is still the one that was observed.
func (p *peers) expire(ctx context.Context, seen *store.StoredHeartbeat) bool {
	beat := seen.Heartbeat
	beat.Expired, beat.LeaseMS = true, max(beat.LeaseMS, 1)
	ctx, cancel := context.WithTimeout(ctx, store.ShortTimeout)
	defer cancel()
	seq, answer, err := p.store.StoreHeartbeat(ctx, p.pool, seen.Incarnation, &beat, seen.Seq)
	if err == nil && answer == store.Accepted {
		p.observe(&store.StoredHeartbeat{Heartbeat: beat, Incarnation: seen.Incarnation, Seq: seq})
		return true
	}
	record, err := p.store.Heartbeat(ctx, p.pool, seen.Incarnation)
	switch {
	case err != nil:
	case record != nil: // renewed, or expired by another worker
		p.observe(record)
	case seen.Seq > 0: // its worker has deleted it: it stopped without claims
		p.mu.Lock()
		delete(p.byID, seen.Incarnation)
		p.mu.Unlock()
	}
	return false
}

// redeliverClaims has the ready messages of an expired incarnation's claims delivered until no
// claim is left, and then deletes its record. In a cluster it checks once more a lease later,
// because a former leader may have answered without the latest claims.
func (p *peers) redeliverClaims(ctx context.Context, incarnation wire.IncarnationID) {
	before := false // the previous round found no claim
	for wait := redeliverFirst; ; {
		left, err := p.claimsOf(ctx, incarnation)
		none := err == nil && len(left) == 0
		if none && (before || p.store.Consistency().ReadsDirect()) {
			break
		}
		next := p.lease
		if !none {
			p.redeliver(ctx, left, wait == redeliverLast)
			next, wait = wait, min(2*wait, redeliverLast)
		}
		if before = none; !pause.For(ctx, next) {
			return
		}
	}
	p.removeRecord(ctx, incarnation)
}

func (p *peers) claimsOf(ctx context.Context, incarnation wire.IncarnationID) (claims []*store.StoredClaim, err error) {
	err = p.store.EachClaim(ctx, p.pool, func(c *store.StoredClaim) {
		if c.Incarnation == incarnation {
			claims = append(claims, c)
		}
	})
	return claims, err
}

// removeRecord deletes the record of an expired incarnation without claims.
func (p *peers) removeRecord(ctx context.Context, incarnation wire.IncarnationID) {
	p.mu.Lock()
	one := p.byID[incarnation]
	delete(p.byID, incarnation)
	p.mu.Unlock()
	if one != nil {
		_ = p.store.RemoveRecord(ctx, one.Seq) // on failure the next worker that reads it deletes it
	}
}

// redeliver has the ready messages of claims delivered again, and publishes missing ones. If that
// has not helped for long, the consumer may never deliver the ready message, and it is replaced.
func (p *peers) redeliver(ctx context.Context, claims []*store.StoredClaim, replace bool) {
	var seqs []uint64
	for _, c := range claims {
		seqs = append(seqs, c.Ready)
		made, err := p.store.MakeReady(ctx, p.pool, c.Lane)
		if replace && !made && err == nil {
			p.replace(ctx, c.Lane)
		}
	}
	_ = p.store.Redeliver(ctx, p.pool, seqs...) // retried by the caller
}

const (
	redeliverFirst = 50 * time.Millisecond
	redeliverLast  = 2 * time.Second
)
