package lane

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// life is a time in which a holder renews one heartbeat, for all its claims at once. It ends when
// the lease is not trusted any more, and never comes back: its lanes are lost then, and the holder
// begins another life. It is safe for concurrent use.
type life struct {
	id wire.LifeID
	// ctx ends with the life; its cause is [ErrLost] when it was lost.
	ctx context.Context //nolint:containedctx // the life is the scope
	end context.CancelCauseFunc

	mu    sync.Mutex
	lease core.Lease
	limit *time.Timer // ends the life when the lease does
	seq   uint64      // of the record
	beat  uint64      // renewals that were sent
}

// begin stores the first heartbeat of a new life. It tries until that succeeds or ctx ends.
func (h *Holder) begin(ctx context.Context) (*life, error) {
	for {
		l := newLife(ctx, h.lease)
		if h.renew(ctx, l); l.trusted(time.Now()) {
			return l, nil
		}
		l.end(nil)
		l.limit.Stop()
		if !pause.For(ctx, faultPause) {
			return nil, context.Cause(ctx)
		}
	}
}

// newLife is a life that ends when its first heartbeat takes longer than a lease. It outlives ctx.
func newLife(ctx context.Context, lease time.Duration) *life {
	l := &life{id: wire.NewLifeID(), lease: core.Lease{Length: lease}}
	l.ctx, l.end = context.WithCancelCause(context.WithoutCancel(ctx))
	l.limit = time.AfterFunc(lease, l.check)
	return l
}

func (l *life) isLost() bool { return errors.Is(context.Cause(l.ctx), ErrLost) }

// trusted reports whether nobody else can hold what was claimed in this life. Once it is not, the
// life is over, for all of its lanes: a renewal that is acknowledged later renews nothing.
func (l *life) trusted(now time.Time) bool {
	l.mu.Lock()
	trusted := l.ctx.Err() == nil && l.lease.Trusted(now)
	l.mu.Unlock()
	if !trusted {
		l.end(ErrLost)
	}
	return trusted
}

// isFresh reports whether that will be so for one margin more.
func (l *life) isFresh(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lease.Trusted(now.Add(l.lease.Margin()))
}

// leaseEnd is until when that is so, unless the heartbeat is renewed.
func (l *life) leaseEnd() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lease.End()
}

// check ends the life when its lease is not trusted any more, and looks again when that may be.
func (l *life) check() {
	now := time.Now()
	if !l.trusted(now) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit.Reset(l.lease.End().Sub(now))
}

func (h *Holder) keep(l *life) {
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

// renew sends one renewal and waits for the answer. Whether one without an answer was stored is
// found out by the next one.
func (h *Holder) renew(ctx context.Context, l *life) {
	l.mu.Lock()
	l.beat++
	expect, beat, length := l.seq, l.beat, l.lease.Length
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, length/6)
	defer cancel()
	sent := time.Now()
	seq, answer, err := h.store.PutHeartbeat(ctx, h.options.Pool, l.id, &wire.Heartbeat{
		WorkerID: h.options.Worker, LeaseMS: length.Milliseconds(), Beat: beat, Origin: h.options.Origin,
		Disk: h.options.Disk,
	}, expect)
	switch {
	case err != nil || answer == store.Full:
		h.troubles.log(ctx, "heartbeat cannot be renewed", slog.Any("error", err))
	case answer == store.Occupied:
		h.resync(ctx, l)
	default:
		l.mu.Lock()
		l.seq = seq
		l.lease.Renew(sent)
		l.limit.Reset(time.Until(l.lease.End()))
		l.mu.Unlock()
	}
}

// resync reads the record after a renewal was refused: an earlier one, whose answer was lost, is
// stored, or somebody has expired it.
func (h *Holder) resync(ctx context.Context, l *life) {
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
	l.seq = max(l.seq, record.Seq) // when it was sent is not known, so it renews nothing
}

// bury ends the record of a life of this holder that is over. The record is set to expired, so that
// whatever it may have left is taken over at once, and goes when nothing of it is left. After a
// loss it is tried for as long as ctx lasts; without a connection others expire the record when a
// lease has passed.
func (h *Holder) bury(ctx context.Context, l *life, lost bool) {
	l.limit.Stop()
	if h.expireOwn(context.WithoutCancel(ctx), l) || !lost {
		return
	}
	for pause.For(ctx, faultPause) && !h.store.NC.IsClosed() {
		if h.expireOwn(ctx, l) {
			return
		}
	}
}

// expireOwn sets the record of a life of this holder to expired, and removes it when no claim is
// left.
func (h *Holder) expireOwn(ctx context.Context, l *life) bool {
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
		h.peers.forget(ctx, l.id)
	}
	return true
}
