package lane

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// incarnation is the time in which a holder renews one heartbeat, for all its claims. It ends when
// its lease is no longer trusted, and never returns: its lanes are lost, and the holder starts a
// new incarnation. It is safe for concurrent use.
type incarnation struct {
	id wire.LifeID
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
	l := &incarnation{id: wire.NewLifeID(), lease: core.Lease{Length: lease}}
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

func (h *Holder) keepRenewing(l *incarnation) {
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
