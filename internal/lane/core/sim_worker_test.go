package core_test

import (
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// What the model's messages carry, beside claims.
type (
	callBody struct {
		call  *simCall
		again bool
		seen  uint64 // the epoch of a result that its caller saw before it first sent the call
	}
	resultBody struct {
		call    *simCall
		outcome outcome
		epoch   uint64
	}
	startMark  struct{ epoch uint64 }
	cancelMark struct{}
	pauseMark  struct{}
)

// worker is a worker as the engine makes it of the core's decisions.
type worker struct {
	m        *machine
	s        *streams
	name     string
	lives    int
	life     *simLife
	held     map[string]*simLane
	slots    int
	draining bool
	peers    map[wire.IncarnationID]*core.Sighting
	saved    map[wire.IncarnationID]bool // expired lives whose lanes are looked after
	disk     map[string][]protocol.CallID
	nacked   time.Duration // when the last nack arrives
	rule     int           // of the world's, that it knows
	fair     core.Fair[string]
}

// simLife is a life of a worker.
type simLife struct {
	id    wire.IncarnationID
	lease core.Lease
	seq   uint64
	over  bool
}

func (w *world) newWorker(name string, slots int) *worker {
	wk := &worker{
		m: w.newMachine(), s: w.streams, name: name, held: map[string]*simLane{}, slots: slots,
		peers: map[wire.IncarnationID]*core.Sighting{}, saved: map[wire.IncarnationID]bool{}, disk: map[string][]protocol.CallID{},
	}
	wk.rule = len(w.rules) - 1
	w.streams.watchers = append(w.streams.watchers, &watcher{wk.m, func(seq uint64, life wire.IncarnationID, expired bool) {
		wk.see(life, seq, expired)
	}})
	wk.m.start(wk.live)
	wk.m.start(wk.watch)
	wk.m.start(wk.takeCare)
	if w.weights != nil {
		wk.fair.Weight = func(tenant string) float64 { return w.weights[tenant] }
		wk.m.start(wk.takeTickets)
		wk.m.start(wk.sweepMarks)
	}
	return wk
}

func (wk *worker) broken(guard string) bool { return wk.m.w.broken == guard }

func (wk *worker) trusts(l *simLife) bool {
	if wk.broken("the lease's end") {
		return !l.over
	}
	trusted := !l.over && l.lease.Trusted(wk.m.clock())
	if !trusted && !wk.broken("the end of a life") {
		l.over = true // for good, for all of its lanes
	}
	return trusted
}

// isFresh reports whether a life is trusted for one margin more.
func (wk *worker) isFresh(l *simLife) bool {
	return wk.trusts(l) && l.lease.Trusted(wk.m.clock().Add(l.lease.Margin()))
}

// live begins one life after the other, and pulls in each, until the worker drains.
func (wk *worker) live(t *task) {
	for {
		wk.lives++
		l := &simLife{id: wire.IncarnationID(fmt.Sprintf("%s.%d", wk.name, wk.lives)), lease: core.Lease{Length: simLease}}
		if !wk.renew(t, l) {
			t.sleep(50 * time.Millisecond)
			continue
		}
		wk.life = l
		wk.m.start(func(t *task) { wk.keep(t, l) })
		for wk.trusts(l) && !wk.draining {
			wk.pull(t, l)
		}
		for len(wk.held) > 0 {
			t.sleep(20 * time.Millisecond)
		}
		l.over = true
		if wk.draining {
			wk.expire(t, l.id, l.seq)
			wk.m.w.after(0, func() { wk.m.w.crash(wk) })
			t.sleep(time.Hour)
		}
	}
}

func (wk *worker) keep(t *task, l *simLife) {
	for {
		t.sleep(simLease / 8)
		if !wk.trusts(l) {
			return
		}
		if l.lease.Due(wk.m.clock()) {
			wk.renew(t, l)
		}
	}
}

func beatOf(life wire.IncarnationID) subject { return subject{cell{beat, string(life)}, ""} }

// renew writes the heartbeat, and reports whether that is known to be stored.
func (wk *worker) renew(t *task, l *simLife) bool {
	sent := wk.m.clock()
	answer, ok := t.put(beatOf(l.id), beatBody{life: l.id}, l.seq)
	switch {
	case !ok:
		return false
	case answer.seq > 0:
		l.seq = answer.seq
		l.lease.Renew(sent)
		return true
	}
	found, ok := t.get(beatOf(l.id)) // an earlier one, whose answer was lost, or somebody has expired it
	switch {
	case !ok || found == nil && l.seq == 0:
	case found == nil || found.body.(beatBody).expired:
		l.over = true
	default:
		l.seq = max(l.seq, found.seq)
	}
	return false
}

// pull asks for one ready message.
func (wk *worker) pull(t *task, l *simLife) {
	if len(wk.held) >= wk.slots {
		t.sleep(5 * time.Millisecond)
		return
	}
	waits := t.waits + 1
	p := &pull{m: wk.m, open: true}
	p.give = func(m *message) { t.wake(waits, m) }
	wk.s.pulls = append(wk.s.pulls, p)
	wk.m.w.after(0, wk.s.schedule)
	wk.m.w.after(wk.m.w.between(simLease/4, simLease/3), func() { t.wake(waits, nil) })
	m, ok := t.wait().(*message)
	p.open = false
	if !ok {
		return
	}
	if wk.held[m.of] != nil {
		wk.later(m.seq, 3*time.Millisecond)
		return
	}
	sl := wk.newLane(l, m, m.seq)
	wk.m.start(func(t *task) {
		defer sl.forget()
		sl.hold(t)
	})
}

// later has the consumer wait before it delivers a ready message again. It is not answered.
func (wk *worker) later(seq uint64, d time.Duration) { wk.nack(seq, d, func() {}) }

// nack is what later sends: it may get lost, and does not overtake another one of this worker.
func (wk *worker) nack(seq uint64, d time.Duration, known func()) {
	w := wk.m.w
	if w.mishap(2) {
		return
	}
	wk.nacked = max(w.now+w.delay(), wk.nacked)
	w.after(wk.nacked-w.now, func() {
		if wk.m.cut <= w.now {
			wk.s.park(seq, d)
			known()
		}
	})
}

// surelyLater is later with an answer. It reports whether the consumer knows.
func (wk *worker) surelyLater(t *task, seq uint64, d time.Duration) bool {
	if wk.broken("the answer to a redelivery") {
		wk.later(seq, d)
		return true
	}
	w, waits := wk.m.w, t.waits+1
	wk.nack(seq, d, func() {
		if !w.mishap(2) {
			w.after(w.delay(), func() { t.wake(waits, reply[bool]{true}) })
		}
	})
	w.after(patience, func() { t.wake(waits, nil) })
	_, ok := t.wait().(reply[bool])
	return ok
}

func (wk *worker) see(life wire.IncarnationID, seq uint64, expired bool) {
	s := wk.peers[life]
	if s == nil {
		s = &core.Sighting{}
		wk.peers[life] = s
	}
	s.Observe(seq, simLease, expired, wk.m.clock())
}

func (wk *worker) isExpired(life wire.IncarnationID) bool {
	if wk.peers[life] == nil {
		wk.see(life, 0, false)
	}
	return wk.peers[life].Expired
}

// watch expires the heartbeats that stand still, and has their lanes delivered again.
func (wk *worker) watch(t *task) {
	for {
		if found, ok := t.readKind(beat); ok {
			for _, m := range found {
				b := m.body.(beatBody)
				wk.see(b.life, m.seq, b.expired)
			}
		}
		for range 4 { // what was republished may have got lost, so all are read now and then
			for _, life := range sortedKeys(wk.peers) {
				s := wk.peers[life]
				if s.MayExpire(wk.m.clock()) || wk.broken("waiting for a lease") && !s.Expired {
					wk.expire(t, life, s.Seq)
				}
				if s.Expired && !wk.saved[life] {
					wk.saved[life] = true
					wk.m.start(func(t *task) { wk.rescue(t, life) })
				}
			}
			t.sleep(simLease / 10)
		}
	}
}

func (wk *worker) expire(t *task, life wire.IncarnationID, seen uint64) {
	if wk.broken("the condition of expiry") {
		seen = whatever
	}
	late := time.Duration(0)
	if wk.m.w.mishap(10) { // longer than it takes to renew
		late = wk.m.w.between(0, simLease/2)
	}
	answer, ok := t.putLate(late, beatOf(life), beatBody{life: life, expired: true}, seen)
	switch {
	case !ok:
	case answer.seq > 0:
		wk.see(life, answer.seq, true)
	default:
		if found, ok := t.get(beatOf(life)); ok && found != nil {
			wk.see(life, found.seq, found.body.(beatBody).expired)
		}
	}
}

// rescue has the lanes of an expired life taken over until none of its claims is left. In a cluster
// it looks once more a lease later: an answer may be old.
func (wk *worker) rescue(t *task, life wire.IncarnationID) {
	once, before := !wk.m.w.cluster || wk.broken("the second look at claims"), false
	for wait := 50 * time.Millisecond; ; {
		found, ok := t.readKind(claim)
		left := 0
		for _, m := range found {
			if c := m.body.(wire.Claim); c.Incarnation == life {
				left++
				t.put(readyOf(string(c.Lane)), nil, 0)
				seq := c.Ready
				if seq == 0 { // of a visit: the engine replaces the message after a while
					if there, ok := t.get(readyOf(string(c.Lane))); ok && there != nil {
						seq = there.seq
					}
				}
				wk.later(seq, 0)
			}
		}
		none, next := ok && left == 0, simLease
		if none && (once || before) {
			return
		}
		if !none {
			next, wait = wait, min(2*wait, 2*simLease)
		}
		before = none
		t.sleep(next)
	}
}

func readyOf(lane string) subject                    { return subject{cell{ready, lane}, ""} }
func claimOf(lane string) subject                    { return subject{cell{claim, lane}, ""} }
func mailbox(lane string) cell                       { return cell{call, lane} }
func resultOf(id protocol.CallID) subject            { return subject{cell{result, string(id)}, ""} }
func callOf(lane string, id protocol.CallID) subject { return subject{mailbox(lane), string(id)} }

// takeCare makes lanes ready in which something waits, and answers calls that are due while all
// slots are taken.
func (wk *worker) takeCare(t *task) {
	for {
		t.sleep(simLease / 2)
		found, ok := t.readKind(call)
		if !ok {
			continue
		}
		for _, m := range found {
			_, isCall := m.body.(callBody)
			_, isCancel := m.body.(cancelMark)
			if !isCall && !isCancel || wk.s.cared[m.seq] || wk.broken("the caretaker") {
				continue // the consumer tells each entry once, to one worker
			}
			if wk.lookAfter(t, m) && wk.m.cut <= wk.m.w.now {
				wk.s.cared[m.seq] = true
			}
		}
		if len(wk.held) >= wk.slots && !wk.draining {
			wk.answerDue(t, found)
		}
	}
}

// lookAfter makes the lane of an entry ready, or looks after the ready message that is there. It
// reports whether nobody has to come back to it.
func (wk *worker) lookAfter(t *task, entry *message) bool {
	lane := entry.of
	if b, is := entry.body.(callBody); is && b.call.tenant != "" {
		if has, ok := wk.replaceTicket(t, b.call); has || !ok {
			return ok
		}
	}
	answer, ok := t.putOnce(readyOf(lane), nil)
	if !ok || answer.full {
		return false
	}
	if answer.seq > 0 {
		return true
	}
	found, version, ok := t.read(readyOf(lane).cell)
	switch {
	case !ok:
		return false
	case wk.m.w.cluster && !wk.broken("the floor of the caretaker") && (version < entry.from || len(found) == 0):
		return false // whoever refused may not know that it is gone
	case len(found) == 0:
		return true // it was there, so its holder looks into the mailbox
	}
	there := found[0]
	found, _, ok = t.read(claimOf(lane).cell)
	if !ok {
		return false
	}
	if len(found) == 0 || found[0].body.(wire.Claim).Incarnation == "" {
		return wk.s.pending[there.seq] == nil // else it is on its way to a worker
	}
	c := found[0].body.(wire.Claim)
	if c.Ready == there.seq && (wk.isExpired(c.Incarnation) || wk.isHeld(c)) {
		return true
	}
	wk.askToLeave(lane)
	return false
}

// isHeld asks the life of a claim whether it holds the lane.
func (wk *worker) isHeld(c wire.Claim) bool {
	for _, other := range wk.m.w.workers {
		if other.life != nil && other.life.id == c.Incarnation {
			return !other.m.dead && other.m.until <= wk.m.w.now && other.held[string(c.Lane)] != nil && other.m.cut == wk.m.cut
		}
	}
	return false
}

// askToLeave has whoever owns the claim of a lane, and does not hold it, let go of it.
func (wk *worker) askToLeave(lane string) {
	w := wk.m.w
	for _, other := range w.workers {
		if !w.mishap(5) {
			w.after(w.delay(), func() {
				if !other.m.dead && other.held[lane] == nil && other.m.until <= w.now {
					other.m.start(func(t *task) { other.disown(t, lane) })
				}
			})
		}
	}
}

// disown lets go of a claim of this life on a lane that is not held here: its removal was lost.
func (wk *worker) disown(t *task, lane string) {
	found, ok := t.get(claimOf(lane))
	if !ok || found == nil {
		return
	}
	c := found.body.(wire.Claim)
	if wk.life != nil && c.Incarnation == wk.life.id && wk.held[lane] == nil && wk.trusts(wk.life) &&
		wk.surelyLater(t, c.Ready, simLease) && wk.endClaim(t, c, found.seq) {
		wk.later(c.Ready, 0)
	}
}

// endClaim removes a claim, or leaves it without an owner where calls were interrupted.
func (wk *worker) endClaim(t *task, c wire.Claim, epoch uint64) bool {
	if !c.Interrupted && (c.Spent == 0 || wk.broken("what a release keeps of the rate")) {
		return t.remove(claimOf(string(c.Lane)).cell, epoch)
	}
	c.Incarnation = ""
	answer, ok := t.put(claimOf(string(c.Lane)), c, epoch)
	if !ok || !answer.refused {
		return ok
	}
	found, ok := t.get(claimOf(string(c.Lane)))
	return ok && (found == nil || found.seq > epoch) // an earlier try is stored, whose answer was lost
}

// answerDue visits lanes with calls whose time is over, or that are cancelled.
func (wk *worker) answerDue(t *task, found []*message) {
	due := map[string]bool{}
	for _, m := range found {
		switch b := m.body.(type) {
		case cancelMark:
			due[m.of] = true
		case callBody:
			e := entryOf(b.call, m.seq)
			after, bounded := e.DueAfter()
			due[m.of] = due[m.of] || bounded && wk.m.w.now-b.call.since >= after
		}
	}
	for _, lane := range sortedKeys(due) {
		if !due[lane] || wk.held[lane] != nil || wk.life == nil || !wk.trusts(wk.life) {
			continue
		}
		there, ok := t.get(readyOf(lane))
		if !ok || there == nil || wk.held[lane] != nil || wk.draining {
			continue
		}
		wk.m.w.history.stats["visits"]++
		l := wk.newLane(wk.life, there, 0)
		l.visit(t)
		l.forget()
	}
}
