package lane

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// goneAfter is when a removal that nobody answers is likely to be applied.
const goneAfter = 20 * time.Millisecond

// garbage is the messages of a lane's mailbox that nobody needs any more, or will not need when
// their call is settled.
type garbage struct {
	seqs   []uint64
	marks  map[protocol.CallID][]uint64 // of calls in hand
	thrown time.Time                    // when removals were last sent that nobody answers; zero when there are none
}

func newGarbage() garbage { return garbage{marks: map[protocol.CallID][]uint64{}} }

// settled adds what a settled call leaves behind.
func (g *garbage) settled(e *core.Entry) {
	g.seqs = append(g.seqs, e.OwnMarks...)
	for _, seq := range g.marks[e.Call.ID] {
		if !slices.Contains(e.OwnMarks, seq) {
			g.seqs = append(g.seqs, seq)
		}
	}
	delete(g.marks, e.Call.ID)
	if !e.Inline {
		g.seqs = append(g.seqs, e.Seq)
	}
}

// throwAway sends the removals of what nobody needs any more, and asks for no answer: that
// would cost the server more than the removal. What gets lost is found by sweep.
func (l *held) throwAway() {
	for _, seq := range l.garbage.seqs {
		l.holder.store.ThrowAway(seq)
		l.garbage.thrown = time.Now()
	}
	l.garbage.seqs = l.garbage.seqs[:0]
}

// sweep removes what is left in the mailbox of what is settled, and returns when it is gone:
// whoever claims a released lane runs what is there. It reports whether there is something to be
// read.
func (l *held) sweep() (more bool, err error) {
	if err := l.holder.store.Remove(l.ctx, l.garbage.seqs...); err != nil {
		return false, err
	}
	l.garbage.seqs = l.garbage.seqs[:0]
	for !l.garbage.thrown.IsZero() {
		more, again, err := l.sweepOnce()
		if err != nil {
			return false, err
		}
		if !again {
			l.garbage.thrown = time.Time{}
			return more, nil
		}
		if !pause.For(l.ctx, store.BehindPause) {
			return false, l.ctx.Err()
		}
	}
	return false, nil
}

// sweepOnce looks at what is still there of what was read. It has to be done again when, in a
// cluster, something of it was not found afterwards: it is gone by now, or whoever was asked is
// behind.
func (l *held) sweepOnce() (more, again bool, err error) {
	if !l.holder.store.Clustered() {
		more, err = l.sweepRead()
		return more, false, err
	}
	s, fleet := l.holder.store, l.holder.options.Fleet
	list, err := s.List(l.ctx, l.mail.filter(), max(l.ready.seq, l.mail.cursor, 1)-1)
	if err != nil {
		return false, false, err
	}
	for subject := range list.Subjects {
		what := fleet.ParseMailboxSubject(subject)
		if l.inHand(what) {
			continue
		}
		msg, err := s.Next(l.ctx, subject, 0)
		switch {
		case err != nil:
			return false, false, err
		case msg == nil:
			again = true
		case msg.Sequence >= l.mail.cursor:
			more = true
		default:
			if err := l.removeSettled(what.Kind, msg); err != nil {
				return false, false, err
			}
		}
	}
	return more || !list.Whole, again, nil
}

// sweepRead is sweepOnce on a server of its own: it goes through what was read, which is what is in
// hand and what was thrown away a moment ago, however much waits behind it.
func (l *held) sweepRead() (more bool, err error) {
	s, fleet := l.holder.store, l.holder.options.Fleet
	for from := uint64(0); ; {
		msg, err := s.Next(l.ctx, l.mail.filter(), from)
		if err != nil || msg == nil {
			return false, err
		}
		from = msg.Sequence + 1
		what := fleet.ParseMailboxSubject(msg.Subject)
		switch {
		case l.inHand(what):
		case msg.Sequence >= l.mail.cursor:
			return true, nil
		default:
			if err := l.removeSettled(what.Kind, msg); err != nil {
				return false, err
			}
		}
	}
}

// inHand reports whether a message of the mailbox that was read is still needed.
func (l *held) inHand(what protocol.MailboxEntry) bool {
	return what.Kind == protocol.EntryPause || what.CallID != "" && l.schedule.Find(what.CallID) != nil
}

var errNotSettled = errors.New("it was passed over, and has no result")

// removeSettled removes a message that should have been removed before. That a call has its
// result is looked at once more: nothing else stands between a mistake and a lost call.
func (l *held) removeSettled(kind protocol.MailboxEntryKind, msg *jetstream.RawStreamMsg) error {
	s := l.holder.store
	if kind == protocol.EntryCall {
		if e, err := l.entry(msg.Header, msg.Data); err == nil {
			known, err := s.HasResult(l.ctx, e.Call, nil)
			if err != nil {
				return err
			}
			if !known {
				l.mail.rewind(msg.Sequence)
				return fmt.Errorf("call %s: %w", e.Call.ID, errNotSettled)
			}
		}
	}
	return s.Remove(l.ctx, msg.Sequence)
}
