package core_test

import (
	"maps"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// streams is a model of what the servers keep, and of a pool's consumer.
//
// A server on its own applies each message when it comes. In a cluster a write is under way for a
// moment: others on its subject are refused because of it. When the leader fails, what is under way
// is stored or lost, and nobody is answered; for a while after that the old leader answers too, as
// if nothing had happened since, and refuses by what it knows. Machines that are cut off together
// with it reach nobody else. And any reader may be shown what was true a moment ago.
type streams struct {
	w        *world
	seq      uint64
	version  int // of every change
	cells    map[cell][]*message
	gone     map[cell][]*message // removed, for readers of the past; bounded
	underWay map[subject]bool
	stalled  []func(lost bool) // what a leader has under way that fails; nil while none does
	past     *past             // nil while nobody answers from it
	full     time.Duration     // the calls stream takes nothing until then

	pending  map[uint64]*delivery
	cared    map[uint64]bool // mailbox entries that a caretaker has acknowledged
	pulls    []*pull
	watchers []*watcher
}

// cell is the subjects of one kind of a lane, life or call.
type cell struct {
	kind kind
	of   string
}

type kind uint8

const (
	ready  kind = iota // of a lane
	call               // and what is about it: the mailbox of a lane
	ticket             // of a lane, by tenants
	mark               // of a tenant, by calls
	claim              // of a lane
	beat               // of a life
	result             // of a call
	work               // of a lane
)

type subject struct {
	cell

	name string
}

type message struct {
	subject

	seq      uint64
	body     any
	from, to int // versions; to is 0 while it is there
	at       time.Duration
}

// past is what a leader of before answers from.
type past struct {
	version int
	mixed   time.Duration // others than those that are cut off reach it, too, until then
	taken   map[subject]bool
}

// delivery is what the consumer knows of a ready message that it has delivered.
type delivery struct {
	again time.Duration
	count int
}

// pull is a request for a ready message.
type pull struct {
	m    *machine
	give func(*message)
	open bool
}

type watcher struct {
	m    *machine
	hear func(seq uint64, life wire.IncarnationID, expired bool)
}

// memory is how many versions back an old answer can be while no leader fails.
const memory = 12

func newStreams(w *world) *streams {
	return &streams{
		w: w, cells: map[cell][]*message{}, gone: map[cell][]*message{}, underWay: map[subject]bool{},
		pending: map[uint64]*delivery{}, cared: map[uint64]bool{},
	}
}

// whatever is the expected sequence of a write without a condition.
const whatever = ^uint64(0)

// stored is the answer to a write.
type stored struct {
	seq           uint64 // of what was stored
	refused, full bool
}

// put asks to store a message if the subject has the expected sequence; 0 is none.
func (t *task) put(to subject, body any, expect uint64) (stored, bool) {
	return t.putLate(0, to, body, expect)
}

func (t *task) putLate(late time.Duration, to subject, body any, expect uint64) (stored, bool) {
	return request(t, late, func(answer func(stored)) { t.m.w.streams.put(t.m, to, body, expect, answer) })
}

// putOnce is put for whom a refusal has to mean that something is stored: ok is false otherwise.
func (t *task) putOnce(to subject, body any) (stored, bool) {
	answer, ok := t.put(to, body, 0)
	if ok && answer.refused && t.m.w.cluster && t.m.w.broken != "the look for the occupant" {
		var there *message
		if there, ok = t.get(to); there == nil {
			return answer, false
		}
	}
	return answer, ok
}

// floor asks to store a mark, for which there may be no room: an answer that knows it knows all
// that came before.
func (t *task) floor(needsRoom bool) (version int, ok bool) {
	return request(t, 0, func(answer func(int)) {
		if s := t.m.w.streams; t.m.cut <= s.w.now && s.stalled == nil && (!needsRoom || s.full <= s.w.now) {
			s.version++
			answer(s.version)
		}
	})
}

// remove asks to remove the message with a sequence.
func (t *task) remove(of cell, seq uint64) bool {
	_, ok := request(t, 0, func(answer func(bool)) { t.m.w.streams.remove(t.m, of, seq, func() { answer(true) }) })
	return ok
}

// get reads what a subject has.
func (t *task) get(of subject) (*message, bool) {
	found, _, ok := t.read(of.cell)
	i := slices.IndexFunc(found, func(m *message) bool { return m.name == of.name })
	if i < 0 {
		return nil, ok
	}
	return found[i], ok
}

// read returns what a cell has, in order, and up to which version it is true.
func (t *task) read(of cell) (found []*message, version int, ok bool) {
	type view struct {
		found   []*message
		version int
	}
	v, ok := request(t, 0, func(answer func(view)) {
		s := t.m.w.streams
		version := s.seenBy(t.m)
		answer(view{s.at(of, version), version})
	})
	return v.found, v.version, ok
}

// readKind is read for all cells of a kind.
func (t *task) readKind(k kind) ([]*message, bool) {
	return request(t, 0, func(answer func([]*message)) {
		s := t.m.w.streams
		version, found := s.seenBy(t.m), []*message(nil)
		for of := range s.cells {
			if of.kind == k {
				found = append(found, s.at(of, version)...)
			}
		}
		sortBySeq(found)
		answer(found)
	})
}

func sortBySeq(found []*message) {
	slices.SortFunc(found, func(a, b *message) int { return int(a.seq) - int(b.seq) })
}

// seenBy is the version that a reader is shown.
func (s *streams) seenBy(m *machine) int {
	switch w := s.w; {
	case m.cut > w.now:
		return s.past.version
	case !w.cluster || w.calm:
		return s.version
	case s.past != nil && s.past.mixed > w.now && w.chance(50):
		return s.past.version
	case w.chance(15):
		return s.version - w.rng.IntN(memory)
	}
	return s.version
}

// at is what a cell had at a version.
func (s *streams) at(of cell, version int) (found []*message) {
	for _, m := range s.cells[of] {
		if m.from <= version {
			found = append(found, m)
		}
	}
	for _, m := range s.gone[of] {
		if m.from <= version && m.to > version {
			found = append(found, m)
		}
	}
	sortBySeq(found)
	return found
}

func sequenceOf(found []*message, name string) uint64 {
	for _, m := range found {
		if m.name == name {
			return m.seq
		}
	}
	return 0
}

func (s *streams) put(m *machine, to subject, body any, expect uint64, answer func(stored)) {
	w := s.w
	cut := m.cut > w.now
	if p := s.past; p != nil && (cut || p.mixed > w.now && w.chance(50)) {
		if p.taken[to] || sequenceOf(s.at(to.cell, p.version), to.name) != expect {
			answer(stored{refused: true})
		} else {
			p.taken[to] = true // it is never stored, so nobody is answered
		}
	}
	switch {
	case cut:
		return
	case s.underWay[to], expect != whatever && sequenceOf(s.cells[to.cell], to.name) != expect:
		answer(stored{refused: true})
		return
	case s.full > w.now && to.kind <= mark:
		answer(stored{full: true})
		return
	case !w.cluster:
		answer(stored{seq: s.store(to, body)})
		return
	}
	s.underWay[to] = true
	s.agree(func(lost, told bool) {
		delete(s.underWay, to)
		if lost {
			w.history.stats["lost with a leader"]++
			return
		}
		if seq := s.store(to, body); told {
			answer(stored{seq: seq})
		}
	})
}

// agree has something done when the majority has it, or not at all.
func (s *streams) agree(do func(lost, told bool)) {
	switch {
	case s.stalled != nil:
		s.stalled = append(s.stalled, func(lost bool) { do(lost, false) })
	case s.w.mishap(20):
		s.w.after(s.w.between(0, 10*time.Millisecond), func() { do(false, true) })
	default:
		do(false, true)
	}
}

func (s *streams) store(to subject, body any) uint64 {
	if seq := sequenceOf(s.cells[to.cell], to.name); seq > 0 {
		s.bury(to.cell, seq)
	}
	s.seq++
	s.version++
	m := &message{seq: s.seq, subject: to, body: body, from: s.version, at: s.w.now}
	s.cells[to.cell] = append(s.cells[to.cell], m)
	s.w.history.stored(m)
	switch b := body.(type) {
	case beatBody:
		s.republish(m, b)
	default:
		if to.kind == ready {
			s.schedule()
		}
	}
	return m.seq
}

// bury removes the message with a sequence from a cell.
func (s *streams) bury(of cell, seq uint64) {
	i := slices.IndexFunc(s.cells[of], func(m *message) bool { return m.seq == seq })
	if i < 0 {
		return
	}
	s.version++
	m := s.cells[of][i]
	m.to = s.version
	s.cells[of] = slices.Delete(s.cells[of], i, i+1)
	if !s.w.cluster {
		return
	}
	oldest := s.version - memory
	if s.past != nil {
		oldest = min(oldest, s.past.version)
	}
	s.gone[of] = append(slices.DeleteFunc(s.gone[of], func(m *message) bool { return m.to < oldest }), m)
}

func (s *streams) remove(m *machine, of cell, seq uint64, answer func()) {
	switch {
	case m.cut > s.w.now:
	case !s.w.cluster:
		s.bury(of, seq)
		answer()
	default:
		s.agree(func(lost, told bool) {
			if !lost {
				s.bury(of, seq)
			}
			if told {
				answer()
			}
		})
	}
}

// failOver has the leader fail: what it has under way is stored or lost, and for a while it still
// answers. Machines that are cut off reach only it.
func (s *streams) failOver(cut []*machine) {
	w := s.w
	if !w.cluster || s.past != nil {
		return
	}
	w.history.stats["failovers"]++
	s.past = &past{version: s.version, taken: map[subject]bool{}}
	s.stalled = []func(bool){}
	comesBack := func() {
		s.past.mixed = w.now + w.between(0, simLease/2)
		w.after(s.past.mixed-w.now, func() { s.past = nil })
	}
	w.after(w.between(0, patience), func() {
		waiting := s.stalled
		s.stalled = nil
		for _, do := range waiting {
			do(w.chance(50))
		}
		if len(cut) == 0 {
			comesBack()
		}
	})
	if len(cut) == 0 {
		return
	}
	end := w.between(patience, 2*simLease)
	for _, m := range cut {
		m.cut = w.now + end
		w.history.stats["cut off"]++
	}
	w.after(end, comesBack)
}

type beatBody struct {
	life    wire.IncarnationID
	expired bool
}

func (s *streams) republish(m *message, b beatBody) {
	for _, one := range s.watchers {
		if !one.m.dead && one.m.cut <= s.w.now && !s.w.mishap(5) {
			s.w.after(s.w.delay(), func() { one.hear(m.seq, b.life, b.expired) })
		}
	}
}

const (
	simLease = time.Second
	// parked is how long the consumer does not deliver what a holder keeps: longer than anything is
	// waited for, as nothing may depend on it.
	parked = 120 * simLease
)

// schedule gives ready messages to whoever asks for one.
func (s *streams) schedule() {
	var due []*message
	for of, found := range s.cells {
		if of.kind != ready || len(found) == 0 {
			continue
		}
		if d := s.pending[found[0].seq]; d == nil || d.again <= s.w.now {
			due = append(due, found[0])
		}
	}
	sortBySeq(due)
	for _, m := range due {
		s.pulls = slices.DeleteFunc(s.pulls, func(p *pull) bool { return !p.open })
		at := slices.IndexFunc(s.pulls, func(p *pull) bool { return p.m.cut <= s.w.now })
		if at < 0 {
			return
		}
		p := s.pulls[at]
		p.open = false
		s.park(m.seq, simLease) // its AckWait
		s.pending[m.seq].count++
		if !s.w.mishap(2) {
			s.w.after(s.w.delay(), func() { p.give(m) })
		}
	}
}

// park has a ready message delivered again after a time.
func (s *streams) park(seq uint64, d time.Duration) {
	if s.pending[seq] == nil {
		s.pending[seq] = &delivery{}
	}
	s.pending[seq].again = s.w.now + d
	s.w.after(d, s.schedule)
}

// redeliver has a ready message delivered again at once.
func (s *streams) redeliver(seq uint64) {
	if s.pending[seq] != nil {
		s.park(seq, 0)
	}
}

// readies are the ready messages that are there, in order.
func (s *streams) readies() (found []*message) {
	for of, there := range s.cells {
		if of.kind == ready {
			found = append(found, there...)
		}
	}
	sortBySeq(found)
	return found
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
