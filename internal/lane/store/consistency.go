package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Consistency decides which answers of servers are reliable. No other type depends on whether there
// is one server or a cluster.
type Consistency interface {
	// RepublishesAll reports whether republished messages come completely and in order.
	RepublishesAll() bool
	// ReadsDirect reports whether the server that answers a direct get knows everything.
	ReadsDirect() bool
	// MayRestoreDeleted reports whether a server that was killed may bring back what was removed.
	MayRestoreDeleted() bool

	// OpenLane reads what a lane has behind its claim. The error wraps [ErrNotReady] when the ready
	// message with that sequence is gone.
	OpenLane(ctx context.Context, pool protocol.Pool, lane wire.LaneHash, ready, epoch uint64) (*Opening, error)
	// HasEntries reports whether anything is in a mailbox, but for the mark that the lane is
	// paused. It knows all that was stored before it is called.
	HasEntries(ctx context.Context, pool protocol.Pool, lane wire.LaneHash) (bool, error)
	// Refusing returns the stored ready message because of which the stream refused another one;
	// nil when it was removed since. The server that answers knows the message with sequence floor;
	// otherwise the error wraps [ErrBehind].
	Refusing(ctx context.Context, pool protocol.Pool, lane wire.LaneHash, floor uint64) (*jetstream.RawStreamMsg, error)
	// StillStored returns which deleted messages of a mailbox are still there, each of a call or of
	// none. The answer is of a server that knows the message with sequence floor.
	StillStored(ctx context.Context, filter string, floor uint64, thrown map[uint64]protocol.CallID) ([]uint64, error)
	// ConfirmNoResult makes sure that a call without a known result has none. It fails when there
	// is one.
	ConfirmNoResult(ctx context.Context, c *protocol.Call) error

	// occupant is the sequence of the stored message because of which the stream refused another
	// one; 0 when it does not matter.
	occupant(ctx context.Context, stream, subject string) (uint64, error)
}

// Consistency returns the rules for the server to which the connection leads now.
func (s *Store) Consistency() Consistency {
	if s.NC.ConnectedClusterName() == "" {
		return single{s}
	}
	return clustered{s}
}

// ErrNotReady says that a lane's ready message is gone: the holder before has removed it, and the
// delivery was an old one.
var ErrNotReady = errors.New("the ready message is gone")

// Opening is what a lane has behind its claim.
type Opening struct {
	// Entries is the mailbox, if Read says so.
	Entries []*jetstream.RawStreamMsg
	Read    bool
	// Snapshot says which entries to believe; nil is all of them.
	Snapshot *Snapshot
	// Floor is the mark that was stored for it and is not needed any more; 0 is none.
	Floor uint64
}

// single is a server on its own: every answer has all that is stored.
type single struct{ *Store }

func (single) RepublishesAll() bool    { return true }
func (single) ReadsDirect() bool       { return true }
func (single) MayRestoreDeleted() bool { return true }

func (s single) OpenLane(ctx context.Context, pool protocol.Pool, lane wire.LaneHash, ready, _ uint64) (*Opening, error) {
	there, entries, err := s.ReadLane(ctx, pool, lane)
	many := errors.Is(err, ErrNotAtOnce)
	if many {
		there, err = s.Ready(ctx, pool, lane)
	}
	if err != nil {
		return nil, err
	}
	if there == nil || there.Sequence != ready {
		return nil, ErrNotReady
	}
	return &Opening{Entries: entries, Read: !many}, nil
}

func (s single) HasEntries(ctx context.Context, pool protocol.Pool, lane wire.LaneHash) (bool, error) {
	filter := wire.MailboxFilter(s.Fleet, pool, lane)
	found, err := s.ReadAll(ctx, filter)
	if errors.Is(err, ErrNotAtOnce) {
		var msg *jetstream.RawStreamMsg
		if msg, err = s.Next(ctx, filter, 0); msg != nil && s.isPause(msg.Subject) {
			msg, err = s.Next(ctx, filter, msg.Sequence+1)
		}
		return msg != nil, err
	}
	return slices.ContainsFunc(found, func(msg *jetstream.RawStreamMsg) bool { return !s.isPause(msg.Subject) }), err
}

func (s *Store) isPause(subject string) bool {
	return wire.ParseMailboxSubject(s.Fleet, subject).Kind == wire.EntryPause
}

func (s single) Refusing(ctx context.Context, pool protocol.Pool, lane wire.LaneHash, _ uint64) (*jetstream.RawStreamMsg, error) {
	return s.Ready(ctx, pool, lane)
}

// StillStored has the last one removed behind all others, and reads on from the first. So it costs
// no more where much waits: a list has all of that.
func (s single) StillStored(ctx context.Context, filter string, _ uint64, thrown map[uint64]protocol.CallID) (there []uint64, err error) {
	seqs := slices.Sorted(maps.Keys(thrown))
	last := len(seqs) - 1
	if err := s.Remove(ctx, seqs[last]); err != nil {
		return nil, err
	}
	for seqs = seqs[:last]; len(seqs) > 0; {
		msg, err := s.Next(ctx, filter, seqs[0])
		if err != nil || msg == nil {
			return there, err
		}
		at, found := slices.BinarySearch(seqs, msg.Sequence)
		if found {
			there = append(there, msg.Sequence)
			at++
		}
		seqs = seqs[at:]
	}
	return there, nil
}

func (single) occupant(context.Context, string, string) (uint64, error) { return 0, nil }
func (single) ConfirmNoResult(context.Context, *protocol.Call) error    { return nil }

// clustered is for several servers, or a leaf node: core NATS may lose messages between servers, a
// server may lag behind the answers of others, and a leader that was cut off still answers for a
// moment. docs/decisions/order.md has the countermeasures, and why.
type clustered struct{ *Store }

func (clustered) RepublishesAll() bool    { return false }
func (clustered) ReadsDirect() bool       { return false }
func (clustered) MayRestoreDeleted() bool { return false }

// OpenLane stores a mark behind the claim, the floor, and takes a [Snapshot] that knows it. A full
// stream has to empty, so it is served without: then a cancel may be missed for a moment, but
// nothing is run twice.
func (s clustered) OpenLane(ctx context.Context, pool protocol.Pool, lane wire.LaneHash, ready, epoch uint64) (*Opening, error) {
	msg := nats.NewMsg(wire.FloorSubject(s.Fleet, pool, lane, epoch))
	floor, answer, err := s.PublishOnce(ctx, wire.CallsStream(s.Fleet), msg) // refused: by an earlier try, whose answer was lost
	if err != nil {
		return nil, fmt.Errorf("mark behind the claim: %w", err)
	}
	if answer == Full {
		floor = 0
	}
	filter := wire.MailboxFilter(s.Fleet, pool, lane)
	list, err := s.List(ctx, filter, max(floor, ready))
	if err != nil {
		return nil, err
	}
	delete(list.Subjects, msg.Subject) // the mark of an earlier holder is read, and removed
	if err := s.confirmReady(ctx, wire.ReadySubject(s.Fleet, pool, lane), ready, floor); err != nil {
		if errors.Is(err, ErrNotReady) && floor > 0 { // no holder may come to this lane again
			err = errors.Join(err, s.Remove(ctx, floor))
		}
		return nil, err
	}
	return &Opening{Snapshot: &Snapshot{store: s.Store, filter: filter, Listing: list}, Floor: floor}, nil
}

// confirmReady makes sure that the ready message is there, by an answer that knows the floor.
func (s clustered) confirmReady(ctx context.Context, subject string, ready, floor uint64) error {
	there, err := s.Next(ctx, subject, 0)
	switch {
	case err != nil:
		return fmt.Errorf("ready message: %w", err)
	case there != nil && there.Sequence == ready:
		return nil
	case there != nil && there.Sequence > ready:
		return ErrNotReady
	}
	list, err := s.List(ctx, subject, max(floor, ready)) // the server that answered may not have it yet
	switch {
	case err != nil:
		return fmt.Errorf("ready message: %w", err)
	case len(list.Subjects) == 0:
		return ErrNotReady
	}
	return fmt.Errorf("ready message: %w", ErrBehind)
}

// HasEntries stores a mark, and lists the mailbox as a server has it that knows the mark: a leader
// that was cut off may not know yet what was stored before. A full stream has no room for the mark,
// and is asked again.
func (s clustered) HasEntries(ctx context.Context, pool protocol.Pool, lane wire.LaneHash) (bool, error) {
	filter := wire.MailboxFilter(s.Fleet, pool, lane)
	mark := nats.NewMsg(wire.FloorSubject(s.Fleet, pool, lane, Nonce()))
	floor, answer, err := s.PublishOnce(ctx, wire.CallsStream(s.Fleet), mark)
	if err == nil && answer == Full {
		err = ErrFull
	}
	if err != nil {
		return false, fmt.Errorf("mark behind the ready message: %w", err)
	}
	list, err := s.List(ctx, filter, floor)
	if err = errors.Join(err, s.Remove(ctx, floor)); err != nil {
		return false, err
	}
	delete(list.Subjects, mark.Subject)
	maps.DeleteFunc(list.Subjects, func(subject string, _ uint64) bool { return s.isPause(subject) })
	return len(list.Subjects) > 0 || !list.Whole, nil
}

func (s clustered) Refusing(ctx context.Context, pool protocol.Pool, lane wire.LaneHash, floor uint64) (*jetstream.RawStreamMsg, error) {
	list, err := s.List(ctx, wire.ReadySubject(s.Fleet, pool, lane), floor)
	if err != nil {
		return nil, err
	}
	ready, err := s.Ready(ctx, pool, lane)
	if err == nil && (ready == nil || len(list.Subjects) == 0) { // it may be gone for longer than the floor is there
		err = fmt.Errorf("ready message: %w", ErrBehind)
	}
	return ready, err
}

// occupant looks for what is stored: the leader refuses also because of a write that it has not
// agreed on with the others, which is lost when they choose another leader.
func (s clustered) occupant(ctx context.Context, stream, subject string) (uint64, error) {
	there, err := s.readLeader(ctx, stream, subject, 0)
	if err == nil && there == nil {
		err = ErrPending
	}
	if err != nil {
		return 0, err
	}
	return there.Sequence, nil
}

// StillStored lists the mailbox, as a server has it that knows the floor.
func (s clustered) StillStored(ctx context.Context, filter string, floor uint64, thrown map[uint64]protocol.CallID) ([]uint64, error) {
	list, err := s.List(ctx, filter, floor)
	if err != nil {
		return nil, err
	}
	calls := map[protocol.CallID]bool{}
	for subject := range list.Subjects {
		calls[wire.ParseMailboxSubject(s.Fleet, subject).CallID] = true
	}
	maps.DeleteFunc(thrown, func(_ uint64, call protocol.CallID) bool { return list.Whole && !calls[call] })
	return slices.Sorted(maps.Keys(thrown)), nil
}

// ConfirmNoResult stores a note among the results on the condition that there is none: only the
// leader that the others follow can.
func (s clustered) ConfirmNoResult(ctx context.Context, c *protocol.Call) error {
	_, answer, err := s.Publish(ctx, &nats.Msg{
		Subject: wire.NoResultSubject(s.Fleet, c.SessionID, c.ID, Nonce()),
		Header: nats.Header{
			jetstream.ExpectedLastSubjSeqHeader:     []string{"0"},
			jetstream.ExpectedLastSubjSeqSubjHeader: []string{wire.ResultSubject(s.Fleet, c.SessionID, c.ID)},
		},
	})
	switch err = answer.full(err); {
	case err != nil:
		return fmt.Errorf("make sure that call %s has no result: %w", c.ID, err)
	case answer == Occupied:
		return fmt.Errorf("call %s has a result after all: %w", c.ID, ErrBehind)
	}
	return nil
}

// Snapshot is what surely was in the mailbox of a lane at its claim, and was not read yet: a list
// (STREAM.INFO) that knows the floor has everything that was accepted, and nothing that was
// removed, before the claim. The methods can be called on nil, which believes everything.
type Snapshot struct {
	*Listing // of what was not read yet

	store  *Store
	filter string
}

// MayBeOld reports whether an entry may have been settled and removed before the claim.
func (s *Snapshot) MayBeOld(seq uint64) bool { return s != nil && !s.Whole && seq <= s.Last }

// Lists notes that a message was read, and reports whether it was there. One that was not is old.
func (s *Snapshot) Lists(msg *jetstream.RawStreamMsg) bool {
	if s == nil {
		return true
	}
	_, there := s.Subjects[msg.Subject]
	delete(s.Subjects, msg.Subject)
	return there || !s.Whole || msg.Sequence > s.Last
}

// IsRead reports whether all that was there at the claim was read.
func (s *Snapshot) IsRead() bool { return s != nil && s.Whole && len(s.Subjects) == 0 }

// Check makes sure, when the mailbox seems to be read to its end, that what was not found was
// removed meanwhile. The error wraps [ErrBehind] when it is still there: then the server that was
// asked before is behind.
func (s *Snapshot) Check(ctx context.Context) error {
	if s == nil || !s.Whole {
		return nil
	}
	now, err := s.store.List(ctx, s.filter, s.Last)
	if err != nil {
		return err
	}
	for subject := range s.Subjects {
		if _, there := now.Subjects[subject]; there || !now.Whole {
			return ErrBehind
		}
		delete(s.Subjects, subject)
	}
	return nil
}
