package lane

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// In a cluster an answer of the stream's leader can be old. The consumer's leader, which is another server, may
// have handed a ready message out before the stream's has it in its own books; and a server that was cut off
// or stood still takes itself for the leader until it hears of the one that the others have chosen. An
// entry that is read, or is not there, does not tell how old the answer is. So whoever gets a lane first takes
// stock: it asks for the list of all that is in the mailbox, which says up to which sequence of the
// stream it is complete (STREAM.INFO), and believes only one that knows the ready message itself. Who answers
// does not matter then, nor does any clock. What is not in the list was removed before the ready message was
// stored; what is in it has to be found before anything behind it starts.
//
// A lane that is delivered again had a holder since its ready message was stored. Whoever takes it over stores
// a mark first, and believes only a list that knows the mark. So does everybody while a server may wrongly take itself for the
// leader (contact.calm): it may know the ready message, but not the cancel or the pause that was accepted after it.

// Whether such a call has a result is found out in the same way, by a note among the results that is stored on the condition
// that there is no result. Only the leader that the others follow can store it.

// stock is what surely was in the mailbox of a lane at its claim. The methods can be called on nil, which
// is a server on its own: it has no stock, and needs none.
type stock struct {
	last   uint64            // up to here it is complete
	unread map[string]uint64 // subjects
	whole  bool              // false when the list was too long for one answer; nothing is known then
	read   bool              // what was in it has been read, or has to be read one after the other
}

// empty reports whether nothing is in the mailbox.
func (s *stock) empty() bool { return s != nil && s.whole && len(s.unread) == 0 }

// lists books that a letter was read, and reports whether it was there. One that was not is old.
func (s *stock) lists(l *letter) bool {
	if s == nil {
		return true
	}
	_, there := s.unread[l.subject]
	delete(s.unread, l.subject)
	return there || !s.whole || l.seq > s.last
}

// takeStock takes stock of the mailbox once, in a cluster.
func (l *held) takeStock() error {
	if !l.holder.store.Clustered() || l.stock != nil {
		return nil
	}
	calm := l.holder.contact.calm(time.Now())
	first := l.delivered == 1 && l.doubt == doubtNothing
	if l.claim.seq == 0 && (!first || !calm) {
		err := l.markClaim()
		// A full stream has to empty, also while a server is missing: then a cancel may be missed, but nothing is run twice.
		without := errors.Is(err, ErrFull) && (calm || first)
		if err != nil && !without {
			return err
		}
	}
	list, err := l.holder.store.List(l.ctx, l.mail.filter(), max(l.claim.seq, l.ready))
	if err != nil {
		return err
	}
	var claims []string
	for subject := range list.Subjects {
		what := l.holder.options.Fleet.ParseMailboxSubject(subject)
		if l.heed(what); what.Kind == protocol.EntryClaim {
			claims = append(claims, subject)
		}
	}
	if err := l.yieldToRivals(claims); err != nil {
		return err
	}
	if _, marked := list.Subjects[l.claim.subject]; marked {
		delete(list.Subjects, l.claim.subject)
		l.mail.knows(l.claim.subject)
	}
	if !list.Whole {
		l.doubt = doubtSettled // any of them may be removed already
	}
	l.stock = &stock{last: list.Last, unread: list.Subjects, whole: list.Whole}
	return nil
}

// readStock has all that is in stock read at once, unless that is more than a lane has in hand. What comes after it does not
// matter for what may start now, and is found later.
func (l *held) readStock() error {
	s := l.stock
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
	l.mail.give(found)
	return nil
}

// checkStock is asked when the mailbox seems to be read to its end.
func (l *held) checkStock() error {
	if l.stock == nil || len(l.stock.unread) == 0 {
		return nil
	}
	return l.confirmGone(func(string) bool { return true })
}

// confirmGone makes sure that what is in stock and was not found was removed meanwhile. The error wraps [store.ErrBehind] when
// it is still there: then the server that was asked before is behind.
func (l *held) confirmGone(missing func(subject string) bool) error {
	now, err := l.holder.store.List(l.ctx, l.mail.filter(), l.stock.last)
	if err != nil {
		return err
	}
	for subject := range l.stock.unread {
		if !missing(subject) {
			continue
		}
		if _, there := now.Subjects[subject]; !there && now.Whole {
			delete(l.stock.unread, subject)
		} else if now.Whole {
			err = store.ErrBehind
		}
	}
	return err
}
