package lane

import (
	"context"
	"fmt"
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
	lease   time.Duration // of incarnations whose record is missing
	origin  string

	mu   sync.Mutex
	byID map[wire.LifeID]*peer
}

// peer is the last observed state of one incarnation.
type peer struct {
	core.Sighting

	beat         wire.Heartbeat
	redelivering bool // redeliverClaims runs for it
}

func newPeers(s *store.Store, pool protocol.Pool, lease time.Duration, origin string) *peers {
	return &peers{store: s, pool: pool, lease: lease, origin: origin, byID: map[wire.LifeID]*peer{}}
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
	one := p.byID[beat.Life]
	if one == nil {
		one = &peer{}
		p.byID[beat.Life] = one
	}
	if beat.Seq > one.Seq {
		one.beat = beat.Heartbeat
	}
	one.Observe(beat.Seq, beat.Lease(), beat.Expired, time.Now())
}

// isExpired reports whether an incarnation is expired. A missing record counts as one that has not
// changed since it was first missed.
func (p *peers) isExpired(incarnation wire.LifeID) bool {
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
func (p *peers) expireDue(ctx context.Context) []wire.LifeID {
	now := time.Now()
	var due []*store.StoredHeartbeat
	p.mu.Lock()
	for id, one := range p.byID {
		if !one.Expired && (one.MayExpire(now) || p.isPredecessor(one)) {
			due = append(due, &store.StoredHeartbeat{Heartbeat: one.beat, Life: id, Seq: one.Seq})
		}
	}
	p.mu.Unlock()
	for _, beat := range due {
		p.expire(ctx, beat)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []wire.LifeID
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
	seq, answer, err := p.store.StoreHeartbeat(ctx, p.pool, seen.Life, &beat, seen.Seq)
	if err == nil && answer == store.Accepted {
		p.observe(&store.StoredHeartbeat{Heartbeat: beat, Life: seen.Life, Seq: seq})
		return true
	}
	record, err := p.store.Heartbeat(ctx, p.pool, seen.Life)
	switch {
	case err != nil:
	case record != nil: // renewed, or expired by another worker
		p.observe(record)
	case seen.Seq > 0: // its worker has deleted it: it stopped without claims
		p.mu.Lock()
		delete(p.byID, seen.Life)
		p.mu.Unlock()
	}
	return false
}

// redeliverClaims has the ready messages of an expired incarnation's claims delivered until no
// claim is left, and then deletes its record. In a cluster it checks once more a lease later,
// because a former leader may have answered without the latest claims.
func (p *peers) redeliverClaims(ctx context.Context, incarnation wire.LifeID) {
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

func (p *peers) claimsOf(ctx context.Context, incarnation wire.LifeID) (claims []*store.StoredClaim, err error) {
	err = p.store.EachClaim(ctx, p.pool, func(c *store.StoredClaim) {
		if c.Life == incarnation {
			claims = append(claims, c)
		}
	})
	return claims, err
}

// removeRecord deletes the record of an expired incarnation without claims.
func (p *peers) removeRecord(ctx context.Context, incarnation wire.LifeID) {
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
