package core_test

import (
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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

// takeWork takes the lane's workspace, unless it has it.
func (l *simLane) takeWork(t *task) bool {
	for l.work == nil && l.wk.trusts(l.life) {
		answer, ok := t.ask(func() any { found, _ := l.wk.s.read("work." + l.lane); return found })
		if !ok {
			continue
		}
		var last checkpoint
		seq := uint64(0)
		for _, m := range answer.([]*message) {
			last, seq = m.body.(checkpoint), m.seq
		}
		if l.broken("the restore") {
			last.calls = l.wk.disk[l.lane]
		}
		l.putWork(t, seq, last.calls, last.open)
	}
	return l.work != nil
}

// putWork stores a checkpoint in the place of the one with a sequence, and reports whether it did.
// What has no answer is looked up.
func (l *simLane) putWork(t *task, expect uint64, calls, open []protocol.CallID) bool {
	w, s, subject := l.wk.m.w, l.wk.s, "work."+l.lane
	w.order++
	c := checkpoint{token: fmt.Sprint(l.life.id, w.order), calls: calls, open: open}
	for l.wk.trusts(l.life) {
		answer, ok := t.askLate(func() any {
			if m := s.messages[subject]; l.broken("the condition of a commit") && m != nil {
				expect = m.seq
			}
			if seq, stored := s.put(subject, c, expect); stored {
				w.history.commit(l.lane, calls)
				return seq
			}
			if m := s.messages[subject]; m != nil && m.body.(checkpoint).token == c.token { // an earlier try
				return m.seq
			}
			return uint64(0)
		})
		if ok && answer.(uint64) > 0 {
			l.work = &simWork{seq: answer.(uint64), calls: calls, open: open}
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
func (l *simLane) isKept(c *simCall) bool {
	kept := slices.Contains(l.work.open, c.id) && !l.broken("the result in a commit")
	if kept {
		l.wk.m.w.history.stats["kept"]++
	}
	return kept
}

// commit keeps what a call has changed. When that is refused another worker has the workspace, and
// this life is over.
func (l *simLane) commit(t *task, c *simCall) bool {
	with := func(calls []protocol.CallID) []protocol.CallID { return append(slices.Clone(calls), c.id) }
	if l.work != nil && l.putWork(t, l.work.seq, with(l.work.calls), with(l.work.open)) {
		return true
	}
	l.life.over = true
	return false
}

// keptIn are the calls whose changes the workspace of a lane has.
func (s *streams) keptIn(lane string) []protocol.CallID {
	if m := s.messages["work."+lane]; m != nil {
		return m.body.(checkpoint).calls
	}
	return nil
}

// settled notes that a result is stored: the next commit need not carry it.
func (w *simWork) settled(id protocol.CallID) {
	w.open = slices.DeleteFunc(slices.Clone(w.open), func(other protocol.CallID) bool { return other == id })
}

// commit holds a checkpoint against the laws when it is stored.
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
	for _, c := range h.calls {
		if c.lane == lane && c.ok && !slices.Contains(calls, c.id) {
			h.fault("L10 a change is kept", c)
		}
	}
}
