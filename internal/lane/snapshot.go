package lane

import (
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// In a cluster an answer of the stream's leader can be old. So whoever claims a lane stores a mark
// in its mailbox behind the claim, the floor, and takes a snapshot: a list of the mailbox
// (STREAM.INFO) that knows the floor. It has everything that was accepted, and nothing that was
// removed, before the claim, whoever gives it; docs/decisions/reads-and-removals.md says why.
//
// Whether such a call has a result is found out by a note among the results that is stored on the
// condition that there is none. Only the leader that the others follow can store it.

// snapshot is what surely was in the mailbox of a lane at its claim, and was not read yet. The
// methods can be called on nil: all of it was read, or the server is on its own.
type snapshot struct {
	last   uint64            // up to here it is complete
	unread map[string]uint64 // subjects
	whole  bool              // false when the list was too long for one answer; nothing is known then
}

// mayBeOld reports whether an entry may be one that was settled and removed before the claim.
func (s *snapshot) mayBeOld(e *core.Entry) bool { return s != nil && !s.whole && e.Seq <= s.last }

// lists books that a message was read, and reports whether it was there. One that was not is old.
func (s *snapshot) lists(msg *message) bool {
	if s == nil {
		return true
	}
	_, there := s.unread[msg.Subject]
	delete(s.unread, msg.Subject)
	return there || !s.whole || msg.Sequence > s.last
}

// openClustered takes the snapshot, and makes sure that the ready message is there.
func (l *held) openClustered() error {
	s := l.holder.store
	floor, err := l.markFloor()
	if err != nil {
		return err
	}
	list, err := s.List(l.ctx, l.mail.filter(), max(floor, l.ready.seq))
	if err != nil {
		return err
	}
	for subject := range list.Subjects {
		if s.Fleet.ParseMailboxSubject(subject).Kind == protocol.EntryFloor { // this one, or an earlier holder's
			delete(list.Subjects, subject)
		}
	}
	if err := l.confirmReady(floor); err != nil {
		return err
	}
	l.mail.snapshot = &snapshot{last: list.Last, unread: list.Subjects, whole: list.Whole}
	if floor > 0 {
		l.discard("", floor)
	}
	return nil
}

// markFloor stores the floor. A full stream has to empty, so it is served without: then a cancel
// may be missed for a moment, but nothing is run twice.
func (l *held) markFloor() (floor uint64, err error) {
	o, s := l.holder.options, l.holder.store
	msg := nats.NewMsg(s.Fleet.FloorSubject(o.Pool, l.hash, l.claim.epoch))
	seq, answer, err := s.PublishOnce(l.ctx, s.Fleet.CallsStream(), msg) // refused: by an earlier try, whose answer was lost
	if err != nil {
		return 0, fmt.Errorf("mark behind the claim: %w", err)
	}
	if answer == store.Full {
		return 0, nil
	}
	return seq, nil
}

// confirmReady makes sure that the ready message is there, by an answer that knows the floor.
func (l *held) confirmReady(floor uint64) error {
	s := l.holder.store
	subject := s.Fleet.ReadySubject(l.holder.options.Pool, l.hash)
	there, err := s.Next(l.ctx, subject, 0)
	switch {
	case err != nil:
		return fmt.Errorf("ready message: %w", err)
	case there != nil && there.Sequence == l.ready.seq:
		return nil
	case there != nil && there.Sequence > l.ready.seq:
		return errNotReady
	}
	list, err := s.List(l.ctx, subject, max(floor, l.ready.seq)) // whoever answered may not have it yet
	switch {
	case err != nil:
		return fmt.Errorf("ready message: %w", err)
	case len(list.Subjects) == 0:
		return errNotReady
	}
	return fmt.Errorf("ready message: %w", store.ErrBehind)
}
