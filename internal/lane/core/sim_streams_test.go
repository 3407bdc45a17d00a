package core_test

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// streams is a model of what the servers keep, and of a pool's consumer. Every change has a
// version, and in a cluster a reader may be shown an earlier one.
type streams struct {
	w        *world
	seq      uint64
	version  int
	messages map[string]*message // by subject: one message each
	gone     []*message          // removed, for readers of the past; bounded
	pending  map[uint64]*delivery
	cared    map[uint64]bool // mailbox entries that a caretaker has acknowledged
	pulls    []*pull
	watchers []func(seq uint64, life string, expired bool)
}

type message struct {
	seq      uint64
	subject  string
	body     any
	from, to int // versions; to is 0 while it is there
}

// delivery is what the consumer knows of a ready message that it has delivered.
type delivery struct{ again time.Duration }

// pull is a request for a ready message.
type pull struct {
	give func(*message)
	open bool
}

// memory is how many versions back an old answer can be.
const memory = 12

func newStreams(w *world) *streams {
	return &streams{w: w, messages: map[string]*message{}, pending: map[uint64]*delivery{}, cared: map[uint64]bool{}}
}

// put stores a message if the subject has the expected sequence; 0 is none.
func (s *streams) put(subject string, body any, expect uint64) (seq uint64, ok bool) {
	before := s.messages[subject]
	if before == nil && expect != 0 || before != nil && before.seq != expect {
		return 0, false
	}
	if before != nil {
		s.bury(before)
	}
	s.seq++
	s.version++
	m := &message{seq: s.seq, subject: subject, body: body, from: s.version}
	s.messages[subject] = m
	if strings.HasPrefix(subject, "ready.") {
		s.schedule()
	}
	if b, isBeat := body.(beat); isBeat {
		s.republish(m, b)
	}
	return m.seq, true
}

func (s *streams) bury(m *message) {
	s.version++
	m.to = s.version
	s.gone = append(s.gone, m)
	s.gone = slices.DeleteFunc(s.gone, func(m *message) bool { return m.to < s.version-memory })
}

// remove removes the message with a sequence.
func (s *streams) remove(seq uint64) {
	for subject, m := range s.messages {
		if m.seq == seq {
			delete(s.messages, subject)
			s.bury(m)
			return
		}
	}
}

// read returns what matches a prefix, in order, and up to which version it is true. In a cluster it
// may be of the past.
func (s *streams) read(prefix string) (found []*message, version int) {
	version = s.version
	if s.w.cluster && !s.w.calm && s.w.chance(15) {
		version -= s.w.rng.IntN(memory)
	}
	for _, m := range s.messages {
		if strings.HasPrefix(m.subject, prefix) && m.from <= version {
			found = append(found, m)
		}
	}
	for _, m := range s.gone {
		if strings.HasPrefix(m.subject, prefix) && m.from <= version && m.to > version {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, func(a, b *message) int { return int(a.seq) - int(b.seq) })
	return found, version
}

// beat is a heartbeat record.
type beat struct {
	life    string
	expired bool
}

func (s *streams) republish(m *message, b beat) {
	for _, watcher := range s.watchers {
		if s.w.calm || !s.w.chance(5) {
			s.w.after(s.w.delay(), func() { watcher(m.seq, b.life, b.expired) })
		}
	}
}

const (
	simLease = time.Second
	// parked is how long the consumer does not deliver what a holder keeps.
	parked = 20 * simLease
)

// schedule gives ready messages to whoever asks for one.
func (s *streams) schedule() {
	var due []*message
	for _, subject := range slices.Sorted(maps.Keys(s.messages)) {
		m := s.messages[subject]
		if d := s.pending[m.seq]; strings.HasPrefix(subject, "ready.") && (d == nil || d.again <= s.w.now) {
			due = append(due, m)
		}
	}
	slices.SortFunc(due, func(a, b *message) int { return int(a.seq) - int(b.seq) })
	for _, m := range due {
		s.pulls = slices.DeleteFunc(s.pulls, func(p *pull) bool { return !p.open })
		if len(s.pulls) == 0 {
			return
		}
		p := s.pulls[0]
		p.open = false
		s.park(m.seq, simLease) // its AckWait
		if s.w.calm || !s.w.chance(2) {
			s.w.after(s.w.delay(), func() { p.give(m) })
		}
	}
}

// park has a ready message delivered again after a time.
func (s *streams) park(seq uint64, d time.Duration) {
	s.pending[seq] = &delivery{again: s.w.now + d}
	s.w.after(d, s.schedule)
}

// redeliver has a ready message delivered again at once.
func (s *streams) redeliver(seq uint64) {
	if s.pending[seq] != nil {
		s.park(seq, 0)
	}
}

// history is what really happened, and the laws held against it.
type history struct {
	w       *world
	calls   map[protocol.CallID]*simCall
	running map[string]*attempt // by lane
	faults  []string
	// stats tells what the run went through, so that a test can see that it was not idle.
	stats map[string]int
}

// simCall is a call as it really is.
type simCall struct {
	id       protocol.CallID
	lane     string
	once     bool
	accepted uint64 // sequence
	starts   int
	results  int
	ok       bool // as the result says
}

// attempt is one execution.
type attempt struct {
	call *simCall
	over bool
}

func (h *history) fault(law string, c *simCall) {
	h.faults = append(h.faults, law+": "+string(c.id)+" in "+c.lane+" at "+h.w.now.String())
}

// begin is the first effect of an attempt, with the number that it is told.
func (h *history) begin(c *simCall, number int) *attempt {
	c.starts++
	if number < c.starts && c.results == 0 {
		h.fault("starts are counted", c)
	}
	h.stats["starts"]++
	if c.once && c.starts > 1 {
		h.fault("L8 at most once", c)
	}
	if c.results > 0 {
		h.fault("L8 ran after its result", c)
	}
	for _, other := range h.calls {
		if other.lane == c.lane && other.accepted > 0 && other.accepted < c.accepted && other.results == 0 {
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
	if h.running[a.call.lane] == a {
		delete(h.running, a.call.lane)
	}
}
