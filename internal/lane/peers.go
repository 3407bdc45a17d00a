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
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// peers is what a holder knows of the heartbeats of its pool. It sets to expired what stands still
// for a lease, and has the lanes of those that are expired delivered again. Every worker does so:
// the conditions of the writes let one of them succeed, and it does not matter which. It is safe
// for concurrent use.
type peers struct {
	store *store.Store
	pool  protocol.Pool
	// replace replaces a lane's ready message that is never delivered, see [Holder.replaceReady].
	replace func(ctx context.Context, lane protocol.Lane)
	lease   time.Duration // of incarnations whose record is missing
	origin  string

	mu   sync.Mutex
	byID map[wire.LifeID]*peer
}

// peer is one incarnation as it was seen last.
type peer struct {
	core.Sighting

	beat         wire.Heartbeat
	redelivering bool // its lanes are looked after
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
		if time.Since(read) >= p.lease/2 { // what was republished may have got lost
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

// onHeartbeat takes a heartbeat that the server republishes when it is stored.
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

// isExpired reports whether an incarnation is set to expired. One without a record is taken for one
// whose record stands still since it was missed first.
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

// hasOthers reports whether any other worker lives, as far as is known.
func (p *peers) hasOthers(self protocol.WorkerID) bool {
	return p.any(func(beat *wire.Heartbeat) bool { return beat.WorkerID != "" && beat.WorkerID != self })
}

// hasDisk reports whether a worker with a disk lives, as far as is known.
func (p *peers) hasDisk(disk string) bool {
	return p.any(func(beat *wire.Heartbeat) bool { return beat.Disk == disk })
}

// mayHaveDisk reports whether a worker with a disk lives, or may.
func (p *peers) mayHaveDisk(ctx context.Context, disk string) bool {
	return p.hasDisk(disk) || p.store.EachHeartbeat(ctx, p.pool, p.observe) != nil || p.hasDisk(disk)
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

// expireDue sets to expired what has stood still for long enough, and returns the incarnations
// whose lanes nobody here looks after yet.
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

// isPredecessor reports whether an incarnation is known to be over because this process has what
// its worker had: that was there before this process began, which renews under the same origin
// itself.
func (p *peers) isPredecessor(one *peer) bool {
	return p.origin != "" && one.beat.Origin != "" && one.beat.Origin != p.origin &&
		originName(one.beat.Origin) == originName(p.origin)
}

func originName(origin string) string {
	name, _, _ := strings.Cut(origin, "#")
	return name
}

// expire sets a heartbeat to expired, if it still is the record that was seen.
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
	case record != nil: // it was renewed, or another worker was faster
		p.observe(record)
	case seen.Seq > 0: // its worker has stopped, and left nothing
		p.mu.Lock()
		delete(p.byID, seen.Life)
		p.mu.Unlock()
	}
	return false
}

// redeliverClaims has the lanes of an expired incarnation taken over until none of its claims is
// left; then the record goes. In a cluster it looks once more a lease later: who led it before a
// claim was stored may have answered.
func (p *peers) redeliverClaims(ctx context.Context, incarnation wire.LifeID) {
	before := false // none was left
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

// removeRecord removes the record of an expired incarnation of which nothing is left.
func (p *peers) removeRecord(ctx context.Context, incarnation wire.LifeID) {
	p.mu.Lock()
	one := p.byID[incarnation]
	delete(p.byID, incarnation)
	p.mu.Unlock()
	if one != nil {
		_ = p.store.RemoveRecord(ctx, one.Seq) // else whoever reads it again does so
	}
}

// redeliver has the ready messages of claims delivered again, and makes those that are gone. Where
// that does not help for long, the ready message may be one that is never delivered, and is
// replaced.
func (p *peers) redeliver(ctx context.Context, claims []*store.StoredClaim, replace bool) {
	var seqs []uint64
	for _, c := range claims {
		seqs = append(seqs, c.Ready)
		made, err := p.store.MakeReady(ctx, p.pool, c.Lane)
		if replace && !made && err == nil {
			p.replace(ctx, c.Lane)
		}
	}
	_ = p.store.Redeliver(ctx, p.pool, seqs...) // it is tried again
}

const (
	redeliverFirst = 50 * time.Millisecond
	redeliverLast  = 2 * time.Second
)
