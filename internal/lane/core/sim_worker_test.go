package core_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// What the model's messages carry.
type (
	claimBody struct {
		life, lane, token string
		ready             uint64
		interrupted       bool
	}
	callBody struct{ call *simCall }
	mark     struct{ by string }
)

// worker is a worker as the engine makes it of the core's decisions.
type worker struct {
	m     *machine
	s     *streams
	name  string
	lives int
	life  *simLife
	held  map[string]*simLane
	slots int
	peers map[string]*core.Sighting
	saved map[string]bool // expired lives whose lanes are looked after
	disk  map[string][]protocol.CallID
}

// simLife is a life of a worker.
type simLife struct {
	id    string
	lease core.Lease
	seq   uint64
	over  bool
}

func (w *world) newWorker(name string, slots int) *worker {
	wk := &worker{
		m: w.newMachine(), s: w.streams, name: name, held: map[string]*simLane{}, slots: slots,
		peers: map[string]*core.Sighting{}, saved: map[string]bool{}, disk: map[string][]protocol.CallID{},
	}
	w.streams.watchers = append(w.streams.watchers, func(seq uint64, life string, expired bool) {
		wk.see(life, seq, expired)
	})
	wk.m.start(wk.live)
	wk.m.start(wk.watch)
	wk.m.start(wk.takeCare)
	return wk
}

func (wk *worker) trusts(l *simLife) bool {
	if wk.m.w.broken == "the lease's end" {
		return !l.over
	}
	trusted := !l.over && l.lease.Trusted(wk.m.clock())
	if !trusted && wk.m.w.broken != "the end of a life" {
		l.over = true // for good, for all of its lanes
	}
	return trusted
}

// live begins one life after the other, and pulls in each.
func (wk *worker) live(t *task) {
	for {
		wk.lives++
		l := &simLife{id: fmt.Sprintf("%s.%d", wk.name, wk.lives), lease: core.Lease{Length: simLease}}
		if !wk.renew(t, l) {
			t.sleep(50 * time.Millisecond)
			continue
		}
		wk.life = l
		wk.m.start(func(t *task) { wk.keep(t, l) })
		for wk.trusts(l) {
			wk.pull(t, l)
		}
		l.over = true
		for len(wk.held) > 0 {
			t.sleep(20 * time.Millisecond)
		}
	}
}

func (wk *worker) keep(t *task, l *simLife) {
	for {
		t.sleep(l.lease.Period())
		if !wk.trusts(l) {
			return
		}
		if l.lease.Due(wk.m.clock()) {
			wk.renew(t, l)
		}
	}
}

// renew writes the heartbeat, and reports whether that is known to be stored.
func (wk *worker) renew(t *task, l *simLife) bool {
	sent := wk.m.clock()
	expect := l.seq
	answer, ok := t.ask(func() any {
		seq, done := wk.s.put("beat."+l.id, beat{life: l.id}, expect)
		if !done {
			if m := wk.s.messages["beat."+l.id]; m != nil {
				b, _ := m.body.(beat)
				return renewal{seq: m.seq, expired: b.expired} // else an earlier one, whose answer was lost
			}
			return renewal{expired: true}
		}
		return renewal{seq: seq, stored: true}
	})
	if !ok {
		return false
	}
	r, _ := answer.(renewal)
	switch {
	case r.expired && l.seq > 0:
		l.over = true
	case r.stored:
		l.seq = r.seq
		l.lease.Renew(sent)
		return true
	default:
		l.seq = max(l.seq, r.seq)
	}
	return false
}

type renewal struct {
	seq             uint64
	stored, expired bool
}

// pull asks for one ready message.
func (wk *worker) pull(t *task, l *simLife) {
	if len(wk.held) >= wk.slots {
		t.sleep(5 * time.Millisecond)
		return
	}
	waits := t.waits + 1
	p := &pull{open: true}
	p.give = func(m *message) { t.wake(waits, m) }
	wk.s.pulls = append(wk.s.pulls, p)
	wk.m.w.after(0, wk.s.schedule)
	wk.m.w.after(wk.m.w.between(simLease/4, simLease/3), func() { t.wake(waits, nil) })
	m, ok := t.wait().(*message)
	p.open = false
	if !ok {
		return
	}
	lane := strings.TrimPrefix(m.subject, "ready.")
	if wk.held[lane] != nil {
		wk.later(m.seq, 3*time.Millisecond)
		return
	}
	sl := &simLane{wk: wk, life: l, lane: lane, ready: m, schedule: core.NewSchedule()}
	wk.held[lane] = sl
	wk.m.start(func(t *task) {
		defer func() { delete(wk.held, lane) }()
		sl.hold(t)
	})
}

func (wk *worker) later(seq uint64, d time.Duration) {
	wk.m.w.after(wk.m.w.delay(), func() { wk.s.park(seq, d) })
}

func (wk *worker) see(life string, seq uint64, expired bool) {
	s := wk.peers[life]
	if s == nil {
		s = &core.Sighting{}
		wk.peers[life] = s
	}
	s.See(seq, simLease, expired, wk.m.clock())
}

// watch expires the heartbeats that stand still, and has their lanes delivered again.
func (wk *worker) watch(t *task) {
	for {
		if answer, ok := t.ask(func() any { found, _ := wk.s.read("beat."); return found }); ok {
			for _, m := range answer.([]*message) {
				b := m.body.(beat)
				wk.see(b.life, m.seq, b.expired)
			}
		}
		for _, life := range sortedKeys(wk.peers) {
			s := wk.peers[life]
			if s.MayExpire(wk.m.clock()) || wk.m.w.broken == "waiting for a lease" && !s.Expired {
				wk.expire(t, life, s.Seq)
			}
			if s.Expired && !wk.saved[life] {
				wk.saved[life] = true
				wk.m.start(func(t *task) { wk.rescue(t, life) })
			}
		}
		t.sleep(simLease / 12)
	}
}

func (wk *worker) expire(t *task, life string, seen uint64) {
	answer, ok := t.ask(func() any {
		expect := seen
		if m := wk.s.messages["beat."+life]; wk.m.w.broken == "the condition of expiry" && m != nil {
			expect = m.seq
		}
		seq, _ := wk.s.put("beat."+life, beat{life: life, expired: true}, expect)
		return seq
	})
	if ok && answer.(uint64) > 0 {
		wk.see(life, answer.(uint64), true)
	}
}

func (wk *worker) rescue(t *task, life string) {
	for range 200 {
		answer, ok := t.ask(func() any { found, _ := wk.s.read("claim."); return found })
		left := 0
		if ok {
			for _, m := range answer.([]*message) {
				if c := m.body.(claimBody); c.life == life {
					left++
					t.ask(func() any {
						wk.s.put("ready."+c.lane, nil, 0)
						wk.s.redeliver(c.ready)
						return nil
					})
				}
			}
			if left == 0 {
				return
			}
		}
		t.sleep(50 * time.Millisecond)
	}
}

// takeCare makes lanes ready in which something waits.
func (wk *worker) takeCare(t *task) {
	for {
		t.sleep(simLease / 2)
		if wk.m.w.broken == "the caretaker" {
			return
		}
		answer, ok := t.ask(func() any { found, _ := wk.s.read("call."); return found })
		if !ok {
			continue
		}
		for _, m := range answer.([]*message) {
			lane := strings.Split(m.subject, ".")[1]
			if wk.s.cared[m.seq] { // the consumer tells each entry once, to one worker
				continue
			}
			if _, ok := t.ask(func() any { seq, _ := wk.s.put("ready."+lane, nil, 0); return seq }); !ok {
				break
			}
			wk.s.cared[m.seq] = true
		}
	}
}

// simLane is a lane while a worker holds it.
type simLane struct {
	wk       *worker
	life     *simLife
	lane     string
	ready    *message
	claim    claimBody
	epoch    uint64
	version  int // of the floor
	schedule *core.Schedule
	entries  map[protocol.CallID]*simCall
	seqs     map[protocol.CallID]uint64
	asked    map[protocol.CallID]bool // calls in hand whose results were looked for: whether they have one
	garbage  []uint64
	settled  map[protocol.CallID]bool // in this hold
	caughtUp bool
	work     *simWork // nil while it is not taken
}

func (l *simLane) broken(guard string) bool { return l.wk.m.w.broken == guard }

func (l *simLane) hold(t *task) {
	if !l.take(t) {
		return
	}
	l.wk.later(l.ready.seq, parked)
	if !l.checkReady(t) {
		if l.wk.trusts(l.life) {
			l.remove(t, l.epoch)
		}
		return
	}
	for l.wk.trusts(l.life) {
		if !l.feed(t) {
			t.sleep(5 * time.Millisecond)
			continue
		}
		if l.makesWay() {
			l.release(t)
			return
		}
		started := false
		for _, e := range l.schedule.Startable() {
			started = true
			l.attempt(t, e)
		}
		if started {
			continue
		}
		if l.schedule.Len() == 0 {
			l.release(t)
			return
		}
	}
}

// makesWay reports whether the lane goes to the end of the line although calls wait.
func (l *simLane) makesWay() bool {
	w := l.wk.m.w
	_, inline := l.ready.body.(callBody)
	return w.yields && !inline && !l.claim.interrupted && l.schedule.Len() > 0 && !w.calm && w.chance(20)
}

// take claims the lane by the core's decisions.
func (l *simLane) take(t *task) bool {
	w := l.wk.m.w
	w.order++
	l.claim = claimBody{life: l.life.id, lane: l.lane, token: fmt.Sprint(l.life.id, w.order), ready: l.ready.seq}
	expect := uint64(0)
	for l.wk.trusts(l.life) {
		answer, ok := t.ask(func() any {
			if l.broken("the condition of a claim") {
				if m := l.wk.s.messages["claim."+l.lane]; m != nil {
					expect = m.seq
				}
			}
			seq, _ := l.wk.s.put("claim."+l.lane, l.claim, expect)
			return seq
		})
		if ok && answer.(uint64) > 0 {
			l.epoch = answer.(uint64)
			return true
		}
		answer, ok = t.ask(func() any { return l.wk.s.messages["claim."+l.lane] })
		if !ok {
			continue
		}
		found := answer.(*message)
		if found == nil {
			l.claim.interrupted, expect = false, 0
			continue
		}
		other := found.body.(claimBody)
		if other.token == l.claim.token {
			l.epoch = found.seq
			return true
		}
		refusal := core.Refusal{Owner: l.owner(other.life), Ready: other.ready}
		switch core.Refused(refusal, l.ready.seq) {
		case core.StepReplace:
			l.claim.interrupted = (other.interrupted || refusal.Interrupts()) && !l.broken("interrupted claims")
			expect = found.seq
		case core.StepWait:
			l.wk.later(l.ready.seq, 5*time.Millisecond)
			return false
		default:
			l.wk.later(l.ready.seq, simLease)
			return false
		}
	}
	return false
}

func (l *simLane) owner(life string) core.Owner {
	switch s := l.wk.peers[life]; {
	case life == "":
		return core.OwnerNone
	case life == l.life.id:
		return core.OwnerSelf
	case s == nil:
		l.wk.see(life, 0, false)
		return core.OwnerAlive
	case s.Expired:
		return core.OwnerExpired
	}
	return core.OwnerAlive
}

// surely reads until the answer knows the floor of this claim.
func (l *simLane) surely(t *task, prefix string) ([]*message, bool) {
	type answer struct {
		found   []*message
		version int
	}
	for l.wk.trusts(l.life) {
		got, ok := t.ask(func() any { found, version := l.wk.s.read(prefix); return answer{found, version} })
		if a, isAnswer := got.(answer); ok && isAnswer && (a.version >= l.version || l.broken("the floor")) {
			return a.found, true
		}
	}
	return nil, false
}

func (l *simLane) checkReady(t *task) bool {
	for l.wk.m.w.cluster && l.version == 0 { // the floor is stored behind the claim
		if version, ok := t.ask(func() any { l.wk.s.version++; return l.wk.s.version }); ok {
			l.version = version.(int)
		} else if !l.wk.trusts(l.life) {
			return false
		}
	}
	if l.broken("the look at the ready message") {
		return true
	}
	found, ok := l.surely(t, "ready."+l.lane)
	return ok && len(found) == 1 && found[0].seq == l.ready.seq && found[0].subject == l.ready.subject
}

// feed reads the mailbox and the ready message's call.
func (l *simLane) feed(t *task) bool {
	found, ok := l.surely(t, "call."+l.lane+".")
	if !ok {
		return false
	}
	if c, inline := l.ready.body.(callBody); inline && !l.caughtUp {
		found = append(found, &message{seq: l.ready.seq, body: c})
		slices.SortFunc(found, func(a, b *message) int { return int(a.seq) - int(b.seq) })
	}
	for _, m := range found {
		if slices.Contains(l.garbage, m.seq) {
			continue
		}
		if c, isCall := m.body.(callBody); isCall {
			l.admit(c.call, m.seq)
		} else if sm, isMark := m.body.(mark); isMark {
			if e := l.schedule.Find(protocol.CallID(strings.Split(m.subject, ".")[2])); e != nil && sm.by != l.claim.token {
				e.Marked, e.Starts = true, max(e.Starts, 1)
			}
		}
	}
	l.caughtUp = true
	return true
}

func (l *simLane) admit(c *simCall, seq uint64) {
	delivery := protocol.Idempotent
	if c.once {
		delivery = protocol.AtMostOnce
	}
	e := &core.Entry{Seq: seq, Call: &protocol.Call{
		ID: c.id, Delivery: delivery, MaxAttempts: 1000,
		Resources: []protocol.Use{{Key: protocol.ResourceKey("x/" + l.lane), Access: protocol.Exclusive}},
	}, MayHaveStarted: !l.caughtUp && l.claim.interrupted}
	if l.schedule.Add(e) {
		if l.entries == nil {
			l.entries, l.seqs = map[protocol.CallID]*simCall{}, map[protocol.CallID]uint64{}
		}
		l.entries[c.id], l.seqs[c.id] = c, seq
	}
}

// attempt takes a call to its settled end.
func (l *simLane) attempt(t *task, e *core.Entry) {
	c := l.entries[e.Call.ID]
	known, ok := l.isSettled(t, e)
	if !ok {
		return
	}
	if !known {
		n, refused := e.NextStart()
		if n > 0 && !l.broken("start marks") {
			first, ok := l.mark(t, e, n)
			if !ok {
				return
			}
			if !first {
				e.Starts = n
				if n, refused = e.NextStart(); n > 0 {
					return // tried again
				}
			}
		}
		if !l.takeWork(t) || !l.wk.trusts(l.life) {
			return
		}
		kept := l.isKept(c)
		if refused == nil && !kept && !l.run(t, c, max(e.Starts, 1)) {
			return
		}
		if !l.settle(t, c, refused == nil || kept) {
			return
		}
		l.work.settled(c.id)
	}
	e.SettledBefore = known
	if l.settled == nil {
		l.settled = map[protocol.CallID]bool{}
	}
	l.settled[c.id] = true
	l.schedule.Finish(e)
	l.garbage = append(l.garbage, l.seqs[c.id])
	if l.seqs[c.id] != l.ready.seq {
		l.throwAway(l.seqs[c.id])
	}
}

func (l *simLane) isSettled(t *task, e *core.Entry) (known, ok bool) {
	if l.broken("the look for a result") {
		return false, true
	}
	if l.settled[e.Call.ID] && !l.broken("what was settled in this hold") {
		return true, true
	}
	subject := "result." + string(e.Call.ID) + "."
	if e.MayHaveResult() || e.Call.Delivery == protocol.AtMostOnce { // by a condition, which no old answer passes
		answer, ok := t.ask(func() any { return l.wk.s.messages[subject] != nil })
		return ok && answer.(bool), ok
	}
	if !l.wk.m.w.cluster {
		return l.lookAhead(t, e)
	}
	found, ok := l.surely(t, subject)
	return len(found) > 0, ok
}

// lookAhead looks for the results of all calls in hand together with that of the one that starts.
func (l *simLane) lookAhead(t *task, e *core.Entry) (known, ok bool) {
	if _, asked := l.asked[e.Call.ID]; !asked {
		entries := slices.Clone(l.schedule.Entries())
		answer, ok := t.ask(func() any {
			known := map[protocol.CallID]bool{}
			for _, other := range entries {
				known[other.Call.ID] = l.wk.s.messages["result."+string(other.Call.ID)+"."] != nil
			}
			return known
		})
		if !ok {
			return false, false
		}
		if l.asked == nil {
			l.asked = map[protocol.CallID]bool{}
		}
		maps.Copy(l.asked, answer.(map[protocol.CallID]bool))
	}
	return l.asked[e.Call.ID], true
}

func (l *simLane) mark(t *task, e *core.Entry, n int) (first, ok bool) {
	subject := fmt.Sprintf("call.%s.%s.start%d", l.lane, e.Call.ID, n)
	answer, ok := t.ask(func() any {
		if _, stored := l.wk.s.put(subject, mark{l.claim.token}, 0); stored {
			return true
		}
		return l.wk.s.messages[subject].body.(mark).by == l.claim.token
	})
	if !ok {
		return false, false
	}
	e.Starts = n
	return answer.(bool), true
}

// run executes a call: it has effects until it ends or the lease does. Then what it changed is
// kept.
func (l *simLane) run(t *task, c *simCall, number int) bool {
	h := l.wk.m.w.history
	a := h.begin(c, number)
	defer h.end(a)
	l.wk.disk[l.lane] = append(slices.Clone(l.work.calls), c.id)
	for range l.wk.m.w.rng.IntN(4) {
		t.sleep(l.wk.m.w.between(0, 150*time.Millisecond))
		if !l.wk.trusts(l.life) {
			return false
		}
		h.effect(a)
	}
	return l.broken("the commit before the result") || l.commit(t, c)
}

func (l *simLane) settle(t *task, c *simCall, done bool) bool {
	for l.wk.trusts(l.life) {
		_, ok := t.ask(func() any {
			if _, stored := l.wk.s.put("result."+string(c.id)+".", nil, 0); stored {
				c.results++
				c.ok = done
			}
			return nil
		})
		if ok {
			return !l.broken("the commit before the result") || !done || l.commit(t, c)
		}
	}
	return false
}

func (l *simLane) throwAway(seq uint64) {
	w := l.wk.m.w
	if w.calm || !w.chance(2) {
		w.after(w.delay(), func() { l.wk.s.remove(seq) })
	}
}

func (l *simLane) remove(t *task, seq uint64) bool {
	for l.wk.trusts(l.life) {
		if _, ok := t.ask(func() any { l.wk.s.remove(seq); return nil }); ok {
			return true
		}
	}
	return false
}

// release removes the ready message, then the claim, and looks once more.
func (l *simLane) release(t *task) {
	for _, seq := range l.garbage {
		if seq != l.ready.seq && !l.remove(t, seq) {
			return
		}
	}
	found, ok := l.surely(t, "call."+l.lane+".")
	if !ok {
		return
	}
	for _, m := range found { // marks of what is settled
		if _, isMark := m.body.(mark); isMark && !l.remove(t, m.seq) {
			return
		}
	}
	now := l.wk.m.clock()
	if !l.life.lease.Trusted(now.Add(l.life.lease.Margin())) {
		return // too near its end: the claim expires
	}
	if !l.remove(t, l.ready.seq) || l.broken("the claim until the last look") && !l.remove(t, l.epoch) {
		return
	}
	if w := l.wk.m.w; w.yields && !w.calm && w.chance(10) { // the worst moment
		w.after(0, func() { w.crash(l.wk) })
		t.sleep(time.Second)
	}
	if l.lookLast(t) {
		l.remove(t, l.epoch)
	}
}

// lookLast makes the lane ready if anything is in its mailbox. Whoever does not come to that leaves
// the claim, and with it the lane to those who expire this life.
func (l *simLane) lookLast(t *task) bool {
	for !l.broken("the last look") {
		if !l.wk.trusts(l.life) {
			return false
		}
		answer, ok := t.ask(func() any { return l.wk.s.anything("call." + l.lane + ".") })
		if ok && !answer.(bool) {
			break
		}
		if _, made := t.ask(func() any { l.wk.s.put("ready."+l.lane, nil, 0); return nil }); ok && made {
			break
		}
	}
	return true
}

// anything reports whether something with a prefix is there now.
func (s *streams) anything(prefix string) bool {
	for subject := range s.messages {
		if strings.HasPrefix(subject, prefix) {
			return true
		}
	}
	return false
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
