package lane

import (
	"slices"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Nobody answers the removal of what is settled: that would cost the server more than the removal.
// So one may get lost. Before the lane is let go it is found out which are left, and these are
// removed for sure: on several servers whoever claims the lane next believes what is there.

// garbage is the messages of a lane's mailbox that nobody needs any more, or will not need when
// their call is settled.
type garbage struct {
	settled settledCalls
	thrown  map[uint64]protocol.CallID   // whose removal nobody answers; "" is of no call
	marks   map[protocol.CallID][]uint64 // of calls in hand
}

func newGarbage() garbage {
	return garbage{thrown: map[uint64]protocol.CallID{}, marks: map[protocol.CallID][]uint64{}}
}

// settledCalls are the calls that were settled in this hold, the last few thousand of them: one
// that is sent again does not run again, also where an old answer hides its result.
type settledCalls struct {
	last, before map[protocol.CallID]struct{}
}

// maxSettled bounds each half of them.
const maxSettled = 4096

func (s *settledCalls) add(call protocol.CallID) {
	if s.last == nil || len(s.last) >= maxSettled {
		s.last, s.before = map[protocol.CallID]struct{}{}, s.last
	}
	s.last[call] = struct{}{}
}

func (s *settledCalls) has(call protocol.CallID) bool {
	_, last := s.last[call]
	_, before := s.before[call]
	return last || before
}

const sweepTrouble = "what is settled cannot be removed"

// maxThrown bounds the removals of which it is not known whether they were applied.
const maxThrown = 1024

func (g *garbage) isMuch() bool { return len(g.thrown) >= maxThrown }

func (l *held) discard(call protocol.CallID, seq uint64) {
	l.holder.store.ThrowAway(seq)
	l.garbage.thrown[seq] = call
}

func (l *held) discardCall(e *core.Entry) {
	id := e.Call.ID
	for _, seq := range slices.Concat(e.OwnMarks, l.garbage.marks[id]) {
		l.discard(id, seq)
	}
	delete(l.garbage.marks, id)
	l.garbage.settled.add(id)
	if !e.Inline {
		l.discard(id, e.Seq)
	}
}

// sweep removes what is left of what was thrown away, and returns when it is gone.
func (l *held) sweep() error {
	if len(l.garbage.thrown) == 0 {
		return nil
	}
	s := l.holder.store
	left, err := s.Left(l.ctx, l.mail.filter(), max(l.ready.seq, l.mail.cursor, 1)-1, l.garbage.thrown)
	if err != nil {
		return err
	}
	if err := s.Remove(l.ctx, left...); err != nil {
		return err
	}
	clear(l.garbage.thrown)
	return nil
}
