package lane

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
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
// a mark first, and believes only a list that knows the mark. So does everybody while a server may take itself for the leader
// that is none any more (contact.calm): it may know the ready message, and not the cancel or the pause that was accepted after it.

// Whether such a call has a result is asked in the same way: a note among the results, stored on the condition that there is
// none. Only the one that the others follow can store it.

// stock is what surely was in the mailbox of a lane at its claim. The methods can be called on nil, which
// is a server on its own: it has no stock, and needs none.
type stock struct {
	last   uint64            // up to here it is complete
	unread map[string]uint64 // subjects
	whole  bool              // false when the list was too long for one answer; nothing is known then
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
	if l.floor == 0 && (l.delivered > 1 || !calm) {
		mark, err := l.markClaim()
		// A full stream has to empty, also while a server is missing: then a cancel may be missed, but nothing is run twice.
		without := errors.Is(err, ErrFull) && (calm || l.delivered == 1)
		if err != nil && !without {
			return err
		}
		l.floor = mark
	}
	list, err := l.holder.store.List(l.ctx, l.mail.filter(), max(l.floor, l.ready))
	if err != nil {
		return err
	}
	if !list.Whole {
		l.doubt = doubtSettled // any of them may be removed already
	}
	l.stock = &stock{last: list.Last, unread: list.Subjects, whole: list.Whole}
	return nil
}

// markClaim stores a mark and returns its sequence. It is removed at once: its place in the stream is what counts.
func (l *held) markClaim() (uint64, error) {
	o := l.holder.options
	seq, answer, err := l.holder.store.Publish(l.ctx, nats.NewMsg(o.Fleet.ClaimSubject(o.Pool, l.hash, store.Token())))
	switch {
	case err != nil:
		return 0, fmt.Errorf("mark the claim: %w", err)
	case answer == store.Full:
		return 0, fmt.Errorf("mark the claim: %w", ErrFull)
	case answer == store.Occupied:
		return 0, fmt.Errorf("mark the claim: %w", store.ErrUnderWay)
	}
	l.litter = append(l.litter, seq)
	return seq, nil
}

// checkStock is asked when the mailbox seems to be read to its end. What is in the list and was not found
// was removed meanwhile, or whoever answered last is behind.
func (l *held) checkStock() error {
	if l.stock == nil || len(l.stock.unread) == 0 {
		return nil
	}
	now, err := l.holder.store.List(l.ctx, l.mail.filter(), l.stock.last)
	if err != nil {
		return err
	}
	for subject := range l.stock.unread {
		if _, there := now.Subjects[subject]; !there && now.Whole {
			delete(l.stock.unread, subject)
		}
	}
	if len(l.stock.unread) > 0 && now.Whole {
		return store.ErrBehind
	}
	return nil
}
