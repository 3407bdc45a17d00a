package core_test

import (
	"fmt"
	"slices"
	"time"

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
