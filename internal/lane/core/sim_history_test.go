package core_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// history is what really happened, and the laws held against it.
type history struct {
	w       *world
	calls   map[protocol.CallID]*simCall
	byLane  map[string][]*simCall
	running map[string]*attempt      // by lane
	paused  map[string]time.Duration // since when a lane is surely paused
	shared  []*attempt               // those of calls that conflict with no other
	started map[string][]simStart    // by lane
	tenants []string                 // whose calls started, each once
	seen    map[string]uint64        // the epoch of the last result, by lane
	faults  []string
	// stats tells what the run went through, so that a test can see that it was not idle.
	stats map[string]int
}

func newHistory(w *world) *history {
	return &history{
		w: w, calls: map[protocol.CallID]*simCall{}, byLane: map[string][]*simCall{}, running: map[string]*attempt{},
		paused: map[string]time.Duration{}, started: map[string][]simStart{}, seen: map[string]uint64{}, stats: map[string]int{},
	}
}

// simCall is a call as it really is.
type simCall struct {
	id        protocol.CallID
	lane      string
	once      bool
	shared    bool          // conflicts with no other call
	tenant    string        // "" uses no tickets
	after     []*simCall    // that have to end ok before it starts
	begun     time.Duration // when it was first executed
	reserved  time.Duration // when its last start began
	deadline  time.Duration // from when it is accepted; 0 is none
	patience  time.Duration // queue timeout; 0 is none
	accepted  uint64        // sequence
	since     time.Duration // when
	cancelled time.Duration // when the request to cancel it was acknowledged; 0 is never
	starts    int
	uncounted bool // a start could not be counted, as the stream was full
	results   int
	outcome   outcome // as the result says
}

// outcome is what the result of a call says.
type outcome uint8

const (
	ran outcome = iota
	notRun
	unknown
)

// attempt is one execution.
type attempt struct {
	call *simCall
	over bool
	lane *simLane
}

func (h *history) add(c *simCall) {
	h.calls[c.id] = c
	h.byLane[c.lane] = append(h.byLane[c.lane], c)
}

func (h *history) fault(law string, c *simCall) {
	h.faults = append(h.faults, fmt.Sprintf("%s: %s in %s at %s", law, c.id, c.lane, h.w.now))
}

// stored notes a message.
func (h *history) stored(m *message) {
	switch b := m.body.(type) {
	case callBody:
		if b.call.accepted == 0 {
			b.call.accepted, b.call.since = m.seq, h.w.now
			h.checkQuota(b.call)
		}
	case resultBody:
		c := b.call
		c.results++
		h.seen[c.lane] = b.epoch
		c.outcome = b.outcome
		h.stats[[]string{"ran", "not run", "unknown"}[b.outcome]]++
		if c.results > 1 {
			h.fault("L3 one result", c)
		}
		if b.outcome == notRun && c.starts > 0 {
			h.fault("L3 what was started is not told to have had no effect", c)
		}
	case checkpoint:
		h.commit(m.of, b.calls)
	}
}

// begin records the first effect of an attempt, with its number, in a held lane.
func (h *history) begin(c *simCall, number int, l *simLane) *attempt {
	claimed := l.claimed
	c.starts++
	switch {
	case number < c.starts && c.results == 0 && !c.uncounted:
		h.fault("starts are counted", c)
	case c.once && c.starts > 1:
		h.fault("L8 at most once", c)
	case c.results > 0:
		h.fault("L8 ran after its result", c)
	case c.cancelled > 0 && c.cancelled < claimed:
		h.fault("a call that was cancelled before the claim does not start", c)
	case h.paused[c.lane] > 0 && h.paused[c.lane] < claimed:
		h.fault("nothing starts in a lane that was paused before the claim", c)
	}
	h.stats["starts"]++
	h.beginTenant(c)
	if c.shared {
		return h.beginShared(c, l)
	}
	for _, other := range h.byLane[c.lane] {
		if other.accepted > 0 && other.accepted < c.accepted && other.results == 0 {
			h.fault("L2 order", c)
		}
	}
	if before := h.running[c.lane]; before != nil {
		before.over = true // it must have no effect from now on
	}
	a := &attempt{call: c}
	h.running[c.lane] = a
	return a
}

// effect is a further one.
func (h *history) effect(a *attempt) {
	if a.over {
		h.fault("L1 exclusive", a.call)
	}
}

func (h *history) end(a *attempt) {
	h.shared = slices.DeleteFunc(h.shared, func(other *attempt) bool { return other == a })
	if h.running[a.call.lane] == a {
		delete(h.running, a.call.lane)
	}
}

// commit holds a checkpoint of a workspace against the laws.
func (h *history) commit(lane string, calls []protocol.CallID) {
	h.stats["commits"]++
	accepted := uint64(0)
	for _, id := range calls {
		c := h.calls[id]
		if c.accepted <= accepted {
			h.fault("L10 changed once, in order", c)
		}
		accepted = c.accepted
	}
	for _, c := range h.byLane[lane] {
		if !c.shared && c.results > 0 && c.outcome == ran && !slices.Contains(calls, c.id) {
			h.fault("L10 a change is kept", c)
		}
	}
}

func (h *history) isDone() bool {
	for _, c := range h.calls {
		if c.accepted > 0 && c.results == 0 {
			return false
		}
	}
	return h.w.marks() == 0
}

// check holds at the end what must hold then.
func (h *history) check() {
	if n := h.w.marks(); n > 0 {
		h.faults = append(h.faults, fmt.Sprintf("a quota is given back: %d marks are left", n))
	}
	for _, id := range sortedKeys(h.calls) {
		c := h.calls[id]
		if len(h.faults) > 0 {
			return
		}
		if c.accepted > 0 && c.results != 1 {
			h.fault("L3 no call lost", c)
		}
		if c.shared {
			continue
		}
		kept := slices.Contains(h.w.streams.keptIn(c.lane), c.id)
		if c.results > 0 && (c.outcome == ran && !kept || c.outcome == notRun && kept) {
			h.fault("L10 a result says what is kept", c)
		}
	}
}

// law is the name of the law of a fault.
func law(fault string) string {
	name, _, _ := strings.Cut(fault, ": ")
	return name
}

// Each lane has a workspace, whose last checkpoint is a record: the calls whose changes it has. A
// worker takes it, so that it is nobody else's any more, and makes its disk what the record says. A
// call ends with a commit on the condition that the record is still its worker's, and its result is
// stored after that.

// checkpoint is such a record.
type checkpoint struct {
	token string
	calls []protocol.CallID
	open  []protocol.CallID // of those, that may have no stored result
}

// simWork is a workspace that a lane has taken.
type simWork struct {
	seq   uint64
	calls []protocol.CallID // whose changes are on the disk
	open  []protocol.CallID
}

func (l *simLane) workSubject() subject { return subject{cell{work, l.lane}, ""} }

// takeWork takes the lane's workspace, unless it has it.
func (l *simLane) takeWork(t *task) bool {
	for l.work == nil && l.alive() {
		found, ok := t.get(l.workSubject())
		if !ok {
			continue
		}
		var last checkpoint
		seq := uint64(0)
		if found != nil {
			last, seq = found.body.(checkpoint), found.seq
		}
		if l.broken("the restore") {
			last.calls = l.wk.disk[l.lane]
		}
		l.putWork(t, seq, last.calls, last.open)
	}
	return l.work != nil
}

// putWork stores a checkpoint in the place of the one with a sequence, and reports whether it did.
// What has no answer, or is refused, is looked up; it may arrive however late.
func (l *simLane) putWork(t *task, expect uint64, calls, open []protocol.CallID) bool {
	w := l.wk.m.w
	w.order++
	c := checkpoint{token: fmt.Sprint(l.life.id, w.order), calls: calls, open: open}
	for l.alive() {
		late := time.Duration(0)
		if w.mishap(3) {
			late = w.between(0, 3*simLease)
		}
		if l.broken("the condition of a commit") {
			expect = whatever
		}
		answer, ok := t.putLate(late, l.workSubject(), c, expect)
		if ok && answer.refused {
			var found *message
			if found, ok = t.get(l.workSubject()); ok && found != nil && found.body.(checkpoint).token == c.token {
				answer.seq = found.seq // an earlier try
			} else if ok && (found == nil || found.seq <= expect && expect != whatever) {
				continue // of the past, or because of what is under way
			}
		}
		if ok && answer.seq > 0 {
			l.work = &simWork{seq: answer.seq, calls: calls, open: open}
			l.wk.disk[l.lane] = calls
			return true
		}
		if ok {
			return false
		}
	}
	return false
}

// isKept reports whether the workspace has what a call changed, which had no result then.
func (l *simLane) isKept(id protocol.CallID) bool {
	kept := slices.Contains(l.work.open, id) && !l.broken("the result in a commit")
	if kept {
		l.wk.m.w.history.stats["kept"]++
	}
	return kept
}

// commit keeps what a call has changed. When that is refused another worker has the workspace, and
// this life is over.
func (l *simLane) commit(t *task, id protocol.CallID) bool {
	with := func(calls []protocol.CallID) []protocol.CallID { return append(slices.Clone(calls), id) }
	if l.work != nil && l.putWork(t, l.work.seq, with(l.work.calls), with(l.work.open)) {
		return true
	}
	l.life.over = true
	return false
}

// keptIn are the calls whose changes the workspace of a lane has.
func (s *streams) keptIn(lane string) []protocol.CallID {
	if m := s.cells[cell{work, lane}]; len(m) > 0 {
		return m[0].body.(checkpoint).calls
	}
	return nil
}

// settled notes that a result is stored: the next commit need not carry it.
func (w *simWork) settled(id protocol.CallID) {
	w.open = slices.DeleteFunc(slices.Clone(w.open), func(other protocol.CallID) bool { return other == id })
}
