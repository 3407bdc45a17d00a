package lane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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
// a mark first, and believes only a list that knows the mark.

// Whether such a call has a result is asked in the same way: a note among the results, stored on the condition that there is
// none. Only the one that the others follow can store it.

// stock is what surely was in the mailbox of a lane at its claim. The methods can be called on nil, which
// is a server on its own: it has no stock, and needs none.
type stock struct {
	last   uint64            // up to here it is complete
	unread map[string]uint64 // subjects
	whole  bool              // false when the list was too long for one answer; nothing is known then
}

// errBehind says that a server answered which does not know yet what others have answered already.
var errBehind = errors.New("the server that answers is behind the others")

// behindPause is how long to wait for a server that is behind by what it was told this moment.
const behindPause = time.Millisecond

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
	if !l.holder.store.clustered() || l.stock != nil {
		return nil
	}
	if l.floor == 0 && l.delivered > 1 {
		mark, err := l.markClaim()
		if err != nil {
			return err
		}
		l.floor = mark
	}
	s, err := l.holder.store.stock(l.ctx, l.mail.filter(), max(l.floor, l.ready))
	if err != nil {
		return err
	}
	if !s.whole {
		l.doubt = doubtSettled // any of them may be removed already
	}
	l.stock = s
	return nil
}

// markClaim stores a mark and returns its sequence. It is removed at once: its place in the stream is what counts.
func (l *held) markClaim() (uint64, error) {
	o := l.holder.options
	seq, answer, err := l.holder.store.publish(l.ctx, nats.NewMsg(o.Fleet.ClaimSubject(o.Pool, l.hash, token())))
	switch {
	case err != nil:
		return 0, fmt.Errorf("mark the claim: %w", err)
	case answer == full:
		return 0, fmt.Errorf("mark the claim: %w", ErrFull)
	case answer == occupied:
		return 0, fmt.Errorf("mark the claim: %w", errUnderWay)
	}
	l.litter = append(l.litter, seq)
	return seq, nil
}

// token is a number that nobody has used before.
func token() uint64 { return uint64(max(time.Now().UnixNano(), 0)) }

// surelyNoResult makes sure, in a cluster, that a call of which no result was found has none. It fails when there is one
// all the same.
func (s *store) surelyNoResult(ctx context.Context, c *protocol.Call) error {
	if !s.clustered() {
		return nil
	}
	_, answer, err := s.publish(ctx, &nats.Msg{
		Subject: s.fleet.NoResultSubject(c.SessionID, c.ID, token()),
		Header: nats.Header{
			jetstream.ExpectedLastSubjSeqHeader:     []string{"0"},
			jetstream.ExpectedLastSubjSeqSubjHeader: []string{s.fleet.ResultSubject(c.SessionID, c.ID)},
		},
	})
	switch {
	case err != nil:
		return fmt.Errorf("make sure that call %s has no result: %w", c.ID, err)
	case answer == full:
		return fmt.Errorf("make sure that call %s has no result: %w", c.ID, ErrFull)
	case answer == occupied:
		return fmt.Errorf("call %s has a result after all: %w", c.ID, errBehind)
	}
	return nil
}

// checkStock is asked when the mailbox seems to be read to its end. What is in the list and was not found
// was removed meanwhile, or whoever answered last is behind.
func (l *held) checkStock() error {
	if l.stock == nil || len(l.stock.unread) == 0 {
		return nil
	}
	now, err := l.holder.store.stock(l.ctx, l.mail.filter(), l.stock.last)
	if err != nil {
		return err
	}
	for subject := range l.stock.unread {
		if _, there := now.unread[subject]; !there && now.whole {
			delete(l.stock.unread, subject)
		}
	}
	if len(l.stock.unread) > 0 && now.whole {
		return errBehind
	}
	return nil
}

// stock lists what matches filter, as a server tells it that knows the message with sequence floor.
func (s *store) stock(ctx context.Context, filter string, floor uint64) (*stock, error) {
	question := &nats.Msg{
		Subject: "$JS.API.STREAM.INFO." + s.fleet.CallsStream(), Data: []byte(`{"subjects_filter":"` + filter + `"}`),
	}
	for pause := behindPause; ; pause *= 2 {
		answer, err := s.replies.request(ctx, shortTimeout, question)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", filter, err)
		}
		found, err := readStock(answer.Data)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", filter, err)
		}
		if found.last >= floor {
			return found, nil
		}
		if pause > faultPause || !wait(ctx, pause) {
			return nil, fmt.Errorf("list %s: %w: it is at %d of %d", filter, errBehind, found.last, floor)
		}
	}
}

// readStock reads the answer to STREAM.INFO with a filter.
func readStock(body []byte) (*stock, error) {
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		Total int                 `json:"total"` // of subjects, of which one answer may have a part
		State *struct {
			LastSeq  uint64            `json:"last_seq"`
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	switch err := json.Unmarshal(body, &answer); {
	case err != nil:
		return nil, err
	case answer.Error != nil:
		return nil, answer.Error
	case answer.State == nil:
		return nil, errNoState
	}
	return &stock{last: answer.State.LastSeq, unread: answer.State.Subjects, whole: len(answer.State.Subjects) >= answer.Total}, nil
}

var errNoState = errors.New("the answer has no state of the stream")
