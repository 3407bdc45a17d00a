package lane

import (
	"errors"
	"fmt"
	"maps"
	"slices"

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

// snapshot is what surely was in the mailbox of a lane at its claim. The methods can be called on
// nil, which is a server on its own: it needs none.
type snapshot struct {
	last   uint64            // up to here it is complete
	unread map[string]uint64 // subjects
	whole  bool              // false when the list was too long for one answer; nothing is known then
	read   bool              // what was in it has been read, or has to be read one after the other
	floor  uint64            // sequence of the mark behind the claim; 0 when the stream had no room for it
}

// marked reports whether the mailbox has a floor.
func (s *snapshot) marked() bool { return s != nil && s.floor > 0 }

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

// takeSnapshot lists the mailbox once, in a cluster.
func (l *held) takeSnapshot() error {
	if l.first.snapshot != nil {
		return nil
	}
	s, fleet := l.holder.store, l.holder.options.Fleet
	floor, err := l.markFloor()
	if err != nil {
		return err
	}
	list, err := s.List(l.ctx, l.mail.filter(), max(floor, l.ready.seq))
	if err != nil {
		return err
	}
	for subject := range list.Subjects {
		what := fleet.ParseMailboxSubject(subject)
		if l.heed(what); what.Kind == protocol.EntryFloor {
			delete(list.Subjects, subject)
			l.mail.knows(subject)
		}
	}
	if err := l.confirmReady(floor); err != nil {
		return err
	}
	l.first.snapshot = &snapshot{last: list.Last, unread: list.Subjects, whole: list.Whole, floor: floor}
	if floor > 0 {
		l.garbage.seqs = append(l.garbage.seqs, floor)
	}
	return nil
}

// markFloor stores the floor. A full stream has to empty, so it is served without: then a cancel
// may be missed for a moment, but nothing is run twice.
func (l *held) markFloor() (floor uint64, err error) {
	o, s := l.holder.options, l.holder.store
	msg := nats.NewMsg(o.Fleet.FloorSubject(o.Pool, l.hash, l.claim.epoch))
	seq, answer, err := s.PublishOnce(l.ctx, o.Fleet.CallsStream(), msg) // refused: by an earlier try, whose answer was lost
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
	s, subject := l.holder.store, l.holder.options.Fleet.ReadySubject(l.holder.options.Pool, l.hash)
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

// readSnapshot has all that is in the snapshot read at once, unless that is more than a lane has in
// hand. What comes after it does not matter for what may start now, and is found later.
func (l *held) readSnapshot() error {
	s := l.first.snapshot
	if s == nil || s.read {
		return nil
	}
	if s.read = !s.whole || len(s.unread) == 0 || len(s.unread) > window; s.read {
		return nil
	}
	found, err := l.holder.store.ReadEach(l.ctx, slices.Collect(maps.Keys(s.unread)), windowBytes)
	if errors.Is(err, store.ErrNotAtOnce) {
		s.read = true
		return nil
	}
	if err != nil {
		return err
	}
	if len(found) < len(s.unread) {
		there := make(map[string]bool, len(found))
		for _, msg := range found {
			there[msg.Subject] = true
		}
		if err := l.confirmGone(func(subject string) bool { return !there[subject] }); err != nil {
			return err
		}
	}
	s.read = true
	l.mail.give(found, true)
	return nil
}

// checkSnapshot is asked when the mailbox seems to be read to its end.
func (l *held) checkSnapshot() error {
	if l.first.snapshot == nil || len(l.first.snapshot.unread) == 0 {
		return nil
	}
	return l.confirmGone(func(string) bool { return true })
}

// confirmGone makes sure that what is in the snapshot and was not found was removed meanwhile. The
// error wraps [store.ErrBehind] when it is still there: then the server that was asked before is
// behind.
func (l *held) confirmGone(missing func(subject string) bool) error {
	now, err := l.holder.store.List(l.ctx, l.mail.filter(), l.first.snapshot.last)
	if err != nil {
		return err
	}
	for subject := range l.first.snapshot.unread {
		if !missing(subject) {
			continue
		}
		if _, there := now.Subjects[subject]; !there && now.Whole {
			delete(l.first.snapshot.unread, subject)
		} else if now.Whole {
			err = store.ErrBehind
		}
	}
	return err
}
