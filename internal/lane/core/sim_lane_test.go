package core_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// simLane is a lane while a worker holds it.
type simLane struct {
	wk       *worker
	life     *simLife
	lane     string
	ready    *message
	inline   bool // the ready message's call is not in the schedule yet
	claim    wire.Claim
	epoch    uint64
	claimed  time.Duration
	version  int // of the floor
	schedule *core.Schedule
	calls    map[protocol.CallID]*simCall
	asked    map[protocol.CallID]bool // calls in hand whose results were looked for: whether they have one
	garbage  map[uint64]bool
	settled  map[protocol.CallID]bool // in this hold
	allRead  bool
	paused   bool
	killed   bool // the worker drains, and what runs is killed
	running  int
	idle     func() // wakes the task that holds the lane
	work     *simWork
	limit    simLimit
}

// newLane begins to hold a lane; claims is the ready message that its claim names.
func (wk *worker) newLane(l *simLife, there *message, claims uint64) *simLane {
	w := wk.m.w
	w.order++
	_, inline := there.body.(callBody)
	sl := &simLane{
		wk: wk, life: l, lane: there.of, ready: there, inline: inline, schedule: core.NewSchedule(),
		claim: wire.Claim{Incarnation: l.id, Lane: protocol.Lane(there.of), Token: fmt.Sprint(l.id, w.order), Ready: claims},
		calls: map[protocol.CallID]*simCall{}, asked: map[protocol.CallID]bool{}, garbage: map[uint64]bool{},
		settled: map[protocol.CallID]bool{}, idle: func() {},
	}
	wk.held[sl.lane] = sl
	return sl
}

func (l *simLane) forget() {
	if l.wk.held[l.lane] == l {
		delete(l.wk.held, l.lane)
	}
}

func (l *simLane) broken(guard string) bool { return l.wk.broken(guard) }
func (l *simLane) alive() bool              { return !l.killed && l.wk.trusts(l.life) }
func (l *simLane) pinned() bool             { return l.inline || l.schedule.Pinned() }
func (l *simLane) unresolved() bool {
	return l.schedule.Unresolved(l.claim.Interrupted && !l.broken("what a release keeps in the claim"), l.allRead)
}

// tries does something until it succeeds. It reports false when the lane is lost before.
func (l *simLane) tries(t *task, do func() bool) bool {
	for l.alive() {
		if do() {
			return l.alive()
		}
		t.sleep(5 * time.Millisecond)
	}
	return false
}

// hold claims the lane and serves it.
func (l *simLane) hold(t *task) {
	if !l.take(t) {
		return
	}
	l.wk.later(l.ready.seq, parked)
	there, known := l.open(t)
	if !there {
		if known {
			l.letGo(t, false, false)
		}
		return
	}
	for l.alive() {
		if !l.feed(t) {
			t.sleep(5 * time.Millisecond)
			continue
		}
		l.lookAfter(t)
		l.refuse(t)
		if l.start() || l.running > 0 || len(l.schedule.Awaiting()) > 0 && !l.wk.draining ||
			l.limit.waits && !l.wk.draining || l.paused && l.schedule.Len() > 0 && !l.wk.draining {
			l.wait(t)
			continue
		}
		if l.leave(t) {
			return
		}
	}
	for l.running > 0 {
		l.wait(t)
	}
	if l.killed && l.wk.trusts(l.life) {
		l.letGo(t, true, true)
	}
}

// visit claims the lane without a slot, answers what needs none, and lets it go.
func (l *simLane) visit(t *task) {
	if !l.take(t) {
		return
	}
	there, known := l.open(t)
	if !there {
		if known {
			l.letGo(t, false, false)
		}
		return
	}
	if !l.feed(t) {
		l.letGo(t, false, true)
		return
	}
	l.refuse(t)
	if l.schedule.Len() > 0 || l.pinned() || !l.leave(t) {
		l.letGo(t, false, true)
	}
}

// start starts what may start, unless the lane makes way for others.
func (l *simLane) start() (started bool) {
	if l.paused || l.wk.draining || l.running == 0 && l.makesWay() {
		return false
	}
	l.limit.waits = false
	for _, e := range l.schedule.Startable() {
		if l.isLimited() {
			l.limit.waits = true
			break
		}
		e.Running = true
		l.reserve(e)
		l.running++
		l.wk.m.start(func(t *task) {
			defer func() {
				l.limit.core.Cancel(e)
				l.running--
				l.idle()
			}()
			if l.attempt(t, e) {
				l.conclude(e)
			}
			e.Running = false
		})
		started = true
	}
	return started
}

// wait waits until a call ends, or a while.
func (l *simLane) wait(t *task) {
	waits := t.waits + 1
	l.idle = func() { l.wk.m.w.after(0, func() { t.wake(waits, nil) }) }
	t.sleep(l.wk.m.w.between(20*time.Millisecond, 100*time.Millisecond))
	l.idle = func() {}
}

// makesWay reports whether the lane goes to the end of the line although calls wait.
func (l *simLane) makesWay() bool {
	w := l.wk.m.w
	return w.yields && l.schedule.Len() > 0 && !l.unresolved() && w.mishap(20)
}

// take claims the lane by the core's decisions.
func (l *simLane) take(t *task) bool {
	claiming := core.Claiming{Claim: &l.claim}
	for l.alive() {
		if l.broken("the condition of a claim") {
			claiming.Expect = whatever
		}
		answer, ok := t.put(claimOf(l.lane), l.claim, claiming.Expect)
		if ok && answer.seq > 0 {
			l.epoch, l.claimed = answer.seq, l.wk.m.w.now
			return true
		}
		found, ok := t.get(claimOf(l.lane))
		if !ok {
			continue
		}
		var other wire.Claim
		seq := uint64(0)
		if found != nil {
			other, seq = found.body.(wire.Claim), found.seq
		}
		switch claiming.Decide(&other, seq, l.wk.isExpired) {
		case core.StepStore:
			l.claim.Interrupted = l.claim.Interrupted && !l.broken("interrupted claims")
			if l.limit.age = 0; found != nil {
				l.limit.age = l.wk.m.w.now - found.at
			}
			if l.claim.Spent < 0 && l.broken("the empty bucket after a lost holder") {
				l.claim.Spent = 0
			}
		case core.StepHeld:
			l.epoch, l.claimed = seq, l.wk.m.w.now
			return true
		case core.StepWait:
			l.decline(5 * time.Millisecond)
			return false
		case core.StepDecline:
			l.decline(simLease)
			return false
		}
	}
	return false
}

// decline hands the ready message back.
func (l *simLane) decline(d time.Duration) {
	if l.claim.Ready == 0 {
		return
	}
	l.wk.later(l.ready.seq, d)
	if p := l.wk.s.pending[l.ready.seq]; p != nil && p.count > 2 {
		l.wk.askToLeave(l.lane)
	}
}

// surely reads until the answer knows the floor of this claim.
func (l *simLane) surely(t *task, of cell) (found []*message, ok bool) {
	for l.alive() {
		found, version, ok := t.read(of)
		if ok && (version >= l.version || l.broken("the floor")) {
			return found, true
		}
	}
	return nil, false
}

// open finds out whether the ready message is there; known is false when the lane was lost before.
func (l *simLane) open(t *task) (there, known bool) {
	w := l.wk.m.w
	for w.cluster && l.version == 0 { // the floor is stored behind the claim
		version, ok := t.floor(false)
		if l.version = version; !ok && !l.alive() {
			return false, false
		}
	}
	if l.broken("the look at the ready message") {
		return true, true
	}
	found, ok := l.surely(t, readyOf(l.lane).cell)
	return ok && sequenceOf(found, "") == l.ready.seq, ok
}

// feed reads the mailbox and the ready message's call.
func (l *simLane) feed(t *task) bool {
	found, ok := l.surely(t, mailbox(l.lane))
	if !ok {
		return false
	}
	if c, inline := l.ready.body.(callBody); inline && l.inline {
		found = append(slices.Clone(found), &message{seq: l.ready.seq, body: c})
		sortBySeq(found)
	}
	l.paused = false
	cancelled := map[protocol.CallID]bool{}
	for _, m := range found {
		if _, is := m.body.(cancelMark); is {
			cancelled[callIn(m)] = true
		}
	}
	for _, m := range found {
		if l.garbage[m.seq] {
			continue
		}
		e := l.schedule.Find(callIn(m))
		switch b := m.body.(type) {
		case callBody:
			if m.seq == l.ready.seq {
				l.inline = false
			}
			l.admit(b, m.seq, cancelled[b.call.id])
		case pauseMark:
			l.paused = true
		case startMark:
			switch {
			case e == nil:
				l.throwAway(m.seq)
			case b.epoch != l.epoch && !e.Running:
				e.Marked, e.Starts = true, max(e.Starts, startOf(m))
			}
		case cancelMark:
			if e == nil {
				l.throwAway(m.seq)
			} else if e.Cancelled = true; e.Stop != nil {
				e.Stop(nil)
			}
		}
	}
	l.allRead = true
	return true
}

// callIn is the call that a message of a mailbox is about.
func callIn(m *message) protocol.CallID {
	id, _, _ := strings.Cut(m.name, ".")
	return protocol.CallID(id)
}

func startOf(m *message) (n int) {
	_, _ = fmt.Sscanf(m.name[strings.IndexByte(m.name, '.'):], ".start%d", &n)
	return n
}

func entryOf(c *simCall, seq uint64) *core.Entry {
	delivery := protocol.Idempotent
	if c.once {
		delivery = protocol.AtMostOnce
	}
	made := time.Unix(0, 0)
	e := &core.Entry{Seq: seq, Accepted: made.Add(c.since), Call: &protocol.Call{
		ID: c.id, Delivery: delivery, MaxAttempts: 1000, IssuedAt: made, QueueTimeout: protocol.MillisOf(c.patience),
		Resources: []protocol.Use{{Key: protocol.ResourceKey("x/" + c.lane), Access: protocol.Exclusive}},
	}}
	if c.shared {
		e.Call.Resources[0].Access = protocol.Shared
	}
	for _, other := range c.after {
		e.Call.After = append(e.Call.After, protocol.CallRef{ID: other.id})
	}
	if c.deadline > 0 {
		e.Call.Deadline = made.Add(c.deadline)
	}
	return e
}

func (l *simLane) admit(b callBody, seq uint64, cancelled bool) {
	c := b.call
	if l.settled[c.id] && !l.broken("what was settled in this hold") {
		l.throwAway(seq)
		return
	}
	e := entryOf(c, seq)
	e.Inline, e.Cancelled, e.Call.Again = seq == l.ready.seq, cancelled, b.again
	e.MayHaveStarted = !l.allRead && l.claim.Interrupted
	if e.NoResult = b.seen > 0 && (b.seen == l.epoch || l.broken("the epoch that a caller saw")); e.NoResult {
		l.wk.m.w.history.stats["new to their holder"]++
	}
	if l.broken("the wait for the calls of after") {
		e.Call.After = nil
	}
	if l.schedule.Add(e) {
		l.calls[c.id] = c
	} else if other := l.schedule.Find(c.id); other.Seq != seq {
		l.throwAway(seq)
	}
}

// refuse answers the calls that are not to be started, wherever they stand.
func (l *simLane) refuse(t *task) {
	for _, e := range slices.Clone(l.schedule.Entries()) {
		if !l.schedule.MayRefuse(e) {
			continue
		}
		s := &starter{l, t, nil}
		r := s.Refusal(e)
		if r == nil {
			continue
		}
		known := false
		if !l.tries(t, func() (ok bool) { known, ok = s.isSettled(e); return ok }) {
			return
		}
		if e.SettledBefore = known; !known && !l.settle(t, e, outcomeOf(r)) {
			return
		}
		l.conclude(e)
	}
}

func outcomeOf(r *protocol.Result) outcome {
	switch r.Status {
	case protocol.StatusOutcomeUnknown, protocol.StatusFailed:
		return unknown
	}
	return notRun
}

// starter makes an attempt of a call.
type starter struct {
	*simLane

	t *task
	c *simCall
}

var errNoAnswer = errors.New("no answer")

func (s *starter) isSettled(e *core.Entry) (known, ok bool) {
	known, err := e.IsSettled(s)
	return known, err == nil
}

// HasResult implements [core.Starter].
func (s *starter) HasResult(e *core.Entry) (bool, error) {
	if s.broken("the look for a result") {
		return false, nil
	}
	if s.settled[e.Call.ID] && !s.broken("what was settled in this hold") {
		return true, nil
	}
	if !s.wk.m.w.cluster && !e.MayHaveResult() && e.Call.Delivery != protocol.AtMostOnce {
		return s.lookAhead(s.t, e)
	}
	found, ok := s.t.get(resultOf(e.Call.ID)) // it may be an old answer
	if !ok {
		return false, errNoAnswer
	}
	return found != nil, nil
}

// lookAhead looks for the results of all calls in hand together with that of the one that starts.
func (l *simLane) lookAhead(t *task, e *core.Entry) (bool, error) {
	if _, asked := l.asked[e.Call.ID]; !asked {
		entries := slices.Clone(l.schedule.Entries())
		known, ok := request(t, 0, func(answer func(map[protocol.CallID]bool)) {
			known := map[protocol.CallID]bool{}
			for _, other := range entries {
				known[other.Call.ID] = len(l.wk.s.cells[resultOf(other.Call.ID).cell]) > 0
			}
			answer(known)
		})
		if !ok {
			return false, errNoAnswer
		}
		maps.Copy(l.asked, known)
	}
	known := l.asked[e.Call.ID]
	delete(l.asked, e.Call.ID)
	return known, nil
}

// ConfirmNoResult implements [core.Starter]: by a condition, which no old answer passes.
func (s *starter) ConfirmNoResult(e *core.Entry) error {
	if !s.wk.m.w.cluster || s.broken("the proof that there is no result") {
		return nil
	}
	of := resultOf(e.Call.ID)
	none, ok := request(s.t, 0, func(answer func(bool)) {
		if s.wk.m.cut <= s.wk.m.w.now && !s.wk.s.underWay[of] {
			s.wk.s.agree(func(lost, told bool) {
				if !lost && told {
					answer(len(s.wk.s.cells[of.cell]) == 0)
				}
			})
		}
	})
	if !ok || !none {
		return errNoAnswer
	}
	return nil
}

// Refusal implements [core.Starter].
func (s *starter) Refusal(e *core.Entry) *protocol.Result {
	return e.Refuse(s.wk.m.w.now - e.Accepted.Sub(time.Unix(0, 0)))
}

// Mark implements [core.Starter].
func (s *starter) Mark(e *core.Entry, n int) (core.Marking, error) {
	if s.broken("start marks") {
		return core.MarkStored, nil
	}
	of := callOf(s.lane, e.Call.ID)
	of.name += fmt.Sprintf(".start%d", n)
	answer, ok := s.t.put(of, startMark{s.epoch}, 0)
	switch {
	case !ok:
		return 0, errNoAnswer
	case answer.full:
		s.wk.m.w.history.stats["no room for a mark"]++
		s.calls[e.Call.ID].uncounted = true
		return core.MarkNoRoom, nil
	case answer.refused:
		there, ok := s.t.get(of)
		if !ok || there == nil {
			return 0, errNoAnswer
		}
		if there.body.(startMark).epoch != s.epoch {
			return core.MarkOfOther, nil
		}
		answer.seq = there.seq
	}
	e.OwnMarks = append(e.OwnMarks, answer.seq)
	return core.MarkStored, nil
}

// attempt takes a call to its settled end.
func (l *simLane) attempt(t *task, e *core.Entry) bool {
	c := l.calls[e.Call.ID]
	var refused *protocol.Result
	var err error
	known := false
	if !l.tries(t, func() bool {
		refused, known, err = e.Begin(&starter{l, t, c})
		return err == nil
	}) {
		return false
	}
	if e.SettledBefore = known; known {
		return true
	}
	if refused != nil && !e.MayHaveRun() && e.Starts == 0 {
		return l.settle(t, e, outcomeOf(refused))
	}
	if !c.shared && !l.takeWork(t) || !l.alive() {
		return false
	}
	end := ran
	switch {
	case !c.shared && l.isKept(c.id):
	case refused != nil:
		end = outcomeOf(refused)
	default:
		e.Unsettled.Store(true)
		if !l.run(t, c, e) {
			return false
		}
	}
	if !l.settle(t, e, end) {
		return false
	}
	l.unmark(t, c)
	if !c.shared {
		l.work.settled(c.id)
	}
	return true
}

// run executes a call: it has effects until it ends or the lease does. Then what it changed is
// kept.
func (l *simLane) run(t *task, c *simCall, e *core.Entry) bool {
	h := l.wk.m.w.history
	l.begin(e)
	if l.broken("the mark until the result") {
		l.unmark(t, c)
	}
	a := h.begin(c, max(e.Starts, 1), l)
	defer h.end(a)
	stopped := false
	e.Stop = func(error) { stopped = true }
	if !c.shared {
		l.wk.disk[l.lane] = append(slices.Clone(l.work.calls), c.id)
	}
	for range l.wk.m.w.rng.IntN(4) {
		t.sleep(l.wk.m.w.between(0, 150*time.Millisecond))
		if !l.alive() {
			return false
		}
		if h.effect(a); stopped {
			break
		}
	}
	return c.shared || l.broken("the commit before the result") || l.commit(t, c.id)
}

func (l *simLane) settle(t *task, e *core.Entry, end outcome) bool {
	c := l.calls[e.Call.ID]
	return l.tries(t, func() bool {
		answer, ok := t.putOnce(resultOf(c.id), resultBody{c, end, l.epoch})
		return ok && !answer.full
	}) && (!l.broken("the commit before the result") || end != ran || l.commit(t, c.id))
}

func (l *simLane) conclude(e *core.Entry) {
	l.settled[e.Call.ID] = true
	l.schedule.Finish(e)
	for _, seq := range e.OwnMarks {
		l.throwAway(seq)
	}
	if !e.Inline {
		l.throwAway(e.Seq)
	}
}

// throwAway removes a message of the mailbox; nobody answers.
func (l *simLane) throwAway(seq uint64) {
	w := l.wk.m.w
	l.garbage[seq] = true
	if !w.mishap(2) {
		w.after(w.delay(), func() { l.wk.s.remove(l.wk.m, mailbox(l.lane), seq, func() {}) })
	}
}

// sweep removes for sure what was thrown away.
func (l *simLane) sweep(t *task) bool {
	found, ok := l.surely(t, mailbox(l.lane))
	for _, m := range found {
		if l.garbage[m.seq] && !t.remove(mailbox(l.lane), m.seq) {
			return false
		}
	}
	return ok
}

// leave gives the lane up when nothing of it runs. It reports false when it is still held.
func (l *simLane) leave(t *task) bool {
	if !l.tries(t, func() bool { return l.sweep(t) }) {
		return false
	}
	if l.pinned() || l.unresolved() {
		l.letGo(t, false, true)
		return true
	}
	for !l.wk.isFresh(l.life) {
		if t.sleep(20 * time.Millisecond); !l.alive() {
			return false
		}
	}
	core.Release(&leaver{l, t})
	return true
}

// letGo removes the claim and then has the lane delivered to somebody.
func (l *simLane) letGo(t *task, killed, deliver bool) {
	left := l.claim
	left.Interrupted = (killed || l.unresolved()) && !l.broken("what a release keeps in the claim")
	left.Spent = l.spent()
	tries := func(do func() bool) bool {
		for l.wk.trusts(l.life) {
			if do() {
				return true
			}
			t.sleep(5 * time.Millisecond)
		}
		return false
	}
	if tries(func() bool { return l.wk.surelyLater(t, l.ready.seq, simLease) }) &&
		tries(func() bool { return l.wk.endClaim(t, left, l.epoch) }) && deliver {
		l.forget()
		tries(func() bool { return l.wk.surelyLater(t, l.ready.seq, 0) })
	}
}

// leaver lets a lane go.
type leaver struct {
	*simLane

	t *task
}

// RemoveReady implements [core.Releaser].
func (l *leaver) RemoveReady() bool {
	if !l.tries(l.t, func() bool { return l.wk.isFresh(l.life) && l.t.remove(readyOf(l.lane).cell, l.ready.seq) }) {
		return false
	}
	if l.broken("the claim until the last look") && !l.t.remove(claimOf(l.lane).cell, l.epoch) {
		return false
	}
	if w := l.wk.m.w; w.yields && w.mishap(10) { // the worst moment
		w.after(0, func() { w.crash(l.wk) })
		l.t.sleep(time.Second)
	}
	return true
}

// Look implements [core.Releaser].
func (l *leaver) Look() (found, ok bool) {
	if l.broken("the last look") {
		return false, true
	}
	ok = l.tries(l.t, func() bool {
		version := 0
		if l.wk.m.w.cluster && !l.broken("the floor of the last look") { // a mark that is stored behind the removal
			var stored bool
			if version, stored = l.t.floor(true); !stored {
				return false
			}
		}
		there, at, ok := l.t.read(mailbox(l.lane))
		ok = ok && at >= version
		found = slices.ContainsFunc(there, func(m *message) bool { _, is := m.body.(pauseMark); return !is })
		return ok
	})
	return found, ok
}

// MakeReady implements [core.Releaser].
func (l *leaver) MakeReady() bool {
	return l.tries(l.t, func() bool {
		for _, e := range l.schedule.Entries() {
			if c := l.calls[e.Call.ID]; c.tenant != "" {
				if made, _ := l.t.putTicket(c); made {
					return true
				}
			}
		}
		answer, ok := l.t.put(readyOf(l.lane), nil, 0)
		return ok && !answer.full
	})
}

// RemoveClaim implements [core.Releaser]. It waits for an answer only if the next holder needs the
// spent rate.
func (l *leaver) RemoveClaim() {
	w := l.wk.m.w
	if left := l.claim; l.spent() > 0 {
		left.Interrupted, left.Spent = false, l.spent()
		l.tries(l.t, func() bool { return l.wk.endClaim(l.t, left, l.epoch) })
		return
	}
	if !w.mishap(4) {
		w.after(w.delay(), func() { l.wk.s.remove(l.wk.m, claimOf(l.lane).cell, l.epoch, func() {}) })
	}
}
