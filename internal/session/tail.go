package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Position is the place of an event in the journal of a session: the sequence of its message, and
// its index there. The zero value is before the first event.
type Position struct {
	Sequence uint64
	Index    int
}

func (p Position) String() string { return fmt.Sprintf("%d-%d", p.Sequence, p.Index) }

// ParsePosition reads [Position.String].
func ParsePosition(s string) (p Position, err error) {
	sequence, index, _ := strings.Cut(s, "-")
	p.Sequence, err = strconv.ParseUint(sequence, 10, 64)
	n, indexErr := strconv.ParseUint(index, 10, 31)
	p.Index = int(n)
	if errors.Join(err, indexErr) != nil {
		return Position{}, fmt.Errorf("%q: must be the id of an event, as in 17-0: %w", s, ErrInvalidPosition)
	}
	return p, nil
}

// ErrInvalidPosition is wrapped by errors of [ParsePosition], and of [Tails.Tail] for a position
// behind the last event.
var ErrInvalidPosition = errors.New("not a position")

// Passed is one of what [Tails.Tail] passes on: an event, a piece of output of a running call, that
// live ones were lost, or that the events that were stored before are passed on.
type Passed struct {
	Event *loop.Event
	// At is the place of a stored event; zero for what is live only.
	At     Position
	Output *wire.Frame
	Lost   bool
	Stored bool
}

// Tails passes on the events of sessions: all stored ones, in order and each once, and the live
// ones as they come. Readers of one session share what is read, also of its history, and none waits
// for another. It is safe for concurrent use.
type Tails struct {
	fleet *fleet.Fleet

	mu sync.Mutex
	of map[protocol.SessionID]*following
}

// NewTails returns the tails of a fleet's sessions.
func NewTails(f *fleet.Fleet) *Tails {
	return &Tails{fleet: f, of: map[protocol.SessionID]*following{}}
}

// Bounds of what is kept for readers of one session.
const (
	recentMessages = 256
	recentBytes    = 4 << 20
	waitingLive    = 512 // live events and frames of one reader
)

// following is what the readers of one session share.
type following struct {
	tails *Tails
	id    protocol.SessionID
	stop  context.CancelFunc

	reading context.Context //nolint:containedctx // of follow

	mu      sync.Mutex
	from    uint64             // recent has all messages at or behind it
	recent  []*journal.Message // the last ones
	bytes   int
	older   []*older // those before them that were read last
	readers map[*reader]bool
	failed  error
}

// older are messages one behind the other, which a reader wanted to have. They are read once for
// all readers that want them.
type older struct {
	from uint64 // the first one is the first at or behind it
	done chan struct{}
	// What is below is set when done is closed.
	messages []*journal.Message
	err      error
}

// last is the sequence of the last message; 0 while they are read.
func (o *older) last() uint64 {
	if !o.isRead() || len(o.messages) == 0 {
		return 0
	}
	return o.messages[len(o.messages)-1].Sequence
}

func (o *older) isRead() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// reader is one that reads a session.
type reader struct {
	wake chan struct{}
	live chan Passed
	lost bool // a live one, since the last that was passed on
}

// Tail passes on the events of a session behind a position, until ctx ends or the error that it
// passes on last: a session that is removed, or a fleet that does not answer. What it passes on
// first is empty: the session may be followed from there. While a session has no journal, it is
// judged again and again whether it may be seen: it may be made by any tenant.
func (t *Tails) Tail(ctx context.Context, id protocol.SessionID, after Position) iter.Seq2[Passed, error] {
	return func(yield func(Passed, error) bool) {
		known, err := may(ctx, t.fleet, judge.See, id, true)
		if err == nil {
			err = t.check(ctx, id, after)
		}
		if err != nil {
			yield(Passed{}, err)
			return
		}
		shared, own := t.join(ctx, id)
		defer t.leave(shared, own)
		last, err := t.fleet.Journal.Last(ctx, id)
		if err != nil {
			yield(Passed{}, err)
			return
		}
		if !yield(Passed{}, nil) {
			return
		}
		var stored bool
		var replied loop.Event // the last reply that was passed on
		for {
			for {
				m, err := shared.next(ctx, after)
				if err != nil {
					yield(Passed{}, err)
					return
				}
				if m == nil {
					if !stored && after.Sequence >= last {
						if stored = true; !yield(Passed{Stored: true}, nil) {
							return
						}
					}
					break
				}
				if !known && !m.Removed {
					known, err = may(ctx, t.fleet, judge.See, id, true)
				}
				if err != nil {
					yield(Passed{}, err)
					return
				}
				for i := range m.Events {
					at := Position{m.Sequence, i}
					if at.Sequence == after.Sequence && at.Index <= after.Index {
						continue
					}
					e := observed(m.Events[i])
					if e.Type == loop.EventModelReply {
						replied = e
					}
					if !yield(Passed{Event: &e, At: at}, nil) {
						return
					}
					after = at
				}
				after = Position{m.Sequence, max(after.Index, len(m.Events)-1)}
				if m.Removed {
					yield(Passed{}, fmt.Errorf("session %s: %w", id, loop.ErrRemoved))
					return
				}
			}
			select {
			case <-own.wake:
			case p := <-own.live:
				if !known {
					known, err = may(ctx, t.fleet, judge.See, id, true)
				}
				if err != nil {
					yield(Passed{}, err)
					return
				}
				if shared.tookLost(own) && !yield(Passed{Lost: true}, nil) {
					return
				}
				if e := p.Event; e != nil && isPieceOfReply(e.Type) && (e.Turn < replied.Turn || e.Turn == replied.Turn && e.Step <= replied.Step) {
					continue // the reply was passed on whole
				}
				if !yield(p, nil) {
					return
				}
			case <-ctx.Done():
				yield(Passed{}, context.Cause(ctx))
				return
			}
		}
	}
}

// check returns an error for a position that no event of the session can have: a reader behind it
// would miss what comes.
func (t *Tails) check(ctx context.Context, id protocol.SessionID, after Position) error {
	if after == (Position{}) {
		return nil
	}
	m, err := t.fleet.Journal.Next(ctx, id, after.Sequence)
	var last uint64
	if err == nil && m == nil {
		last, err = t.fleet.Journal.Last(ctx, id)
	}
	switch {
	case err != nil:
		return err
	case m == nil && last == 0: // its events were removed, and their record has been removed since
		return fmt.Errorf("session %s: %w", id, loop.ErrRemoved)
	case m == nil, m.Sequence == after.Sequence && after.Index >= len(m.Events):
		return codes.As(codes.ErrInvalid, fmt.Errorf("session %s: %q: no event has this id yet: %w", id, after.String(), ErrInvalidPosition))
	}
	return nil
}

// Observed is an event without what observers do not get.
func Observed(e loop.Event) loop.Event {
	e.Seed, e.Bound, e.Call = "", nil, nil
	return e
}

// observed is an event as observers get it live.
func observed(e loop.Event) loop.Event {
	return *light(new(Observed(e)))
}

// join adds a reader to those of a session.
func (t *Tails) join(ctx context.Context, id protocol.SessionID) (*following, *reader) {
	own := &reader{wake: make(chan struct{}, 1), live: make(chan Passed, waitingLive)}
	t.mu.Lock()
	defer t.mu.Unlock()
	shared := t.of[id]
	if shared == nil {
		reading, stop := context.WithCancel(judge.With(context.WithoutCancel(ctx), judge.Principal{})) // for all readers, each of which was judged
		shared = &following{tails: t, id: id, stop: stop, reading: reading, readers: map[*reader]bool{}}
		t.of[id] = shared
		go shared.follow(reading)
	}
	shared.mu.Lock()
	shared.readers[own] = true
	shared.mu.Unlock()
	return shared, own
}

// leave removes a reader; the last one ends the reading of the session.
func (t *Tails) leave(shared *following, own *reader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	delete(shared.readers, own)
	if len(shared.readers) == 0 {
		shared.stop()
		if t.of[shared.id] == shared {
			delete(t.of, shared.id)
		}
	}
}

// liveOnly are the events that no journal has.
var liveOnly = []loop.EventType{ //nolint:gochecknoglobals // a constant
	loop.EventTextDelta, loop.EventReasoningDelta, loop.EventModelWaits, loop.EventAgentMoved, loop.EventToolQueued, loop.EventToolRunning, loop.EventWorkerLost,
}

// follow reads the session until the last reader has left.
func (s *following) follow(ctx context.Context) {
	looking := make(chan struct{}, 1)
	look := func() {
		select {
		case looking <- struct{}{}:
		default:
		}
	}
	f := s.tails.fleet
	watch, err := calls.NewResults(f.NC, f.Name, nil).Watch(ctx, s.id, func(*protocol.Result) {}, func(frame *wire.Frame) {
		var e loop.Event
		if frame.Kind != wire.FrameEvent || json.Unmarshal(frame.Data, &e) != nil {
			return
		}
		if slices.Contains(liveOnly, e.Type) {
			e = observed(e)
			s.passLive(Passed{Event: &e})
			return
		}
		look() // it was stored before it came
	})
	if err == nil {
		defer watch.Stop()
		var stop func()
		if stop, err = Output(ctx, f, s.id, func(frame *wire.Frame) { s.passLive(Passed{Output: frame}) }); err == nil {
			defer stop()
		}
	}
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for err == nil && ctx.Err() == nil {
		if err = s.read(ctx); err == nil {
			select {
			case <-looking:
			case <-again.C:
			case <-ctx.Done():
			}
		}
	}
	if ctx.Err() == nil {
		s.fail(err)
	}
}

// read adds the messages that came since the last time.
func (s *following) read(ctx context.Context) error {
	s.mu.Lock()
	next := s.from
	if n := len(s.recent); n > 0 {
		next = s.recent[n-1].Sequence + 1
	}
	begun := s.from > 0
	s.mu.Unlock()
	if !begun { // older ones are read by those who need them
		last, err := s.tails.fleet.Journal.Last(ctx, s.id)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.from = last + 1
		next = s.from
		s.mu.Unlock()
		s.notify()
	}
	for m, err := range s.tails.fleet.Journal.Messages(ctx, s.id, next) {
		if err != nil {
			return err
		}
		s.mu.Lock()
		if m.Removed { // what was before is not for a session that is made again
			s.recent, s.bytes, s.older, s.from = nil, 0, nil, m.Sequence
		}
		s.recent, s.bytes = append(s.recent, m), s.bytes+m.Bytes
		for len(s.recent) > recentMessages || s.bytes > recentBytes && len(s.recent) > 1 {
			s.from, s.bytes = s.recent[0].Sequence+1, s.bytes-s.recent[0].Bytes
			s.recent = s.recent[1:]
		}
		s.mu.Unlock()
		s.notify()
	}
	return nil
}

// next returns the message with the events behind a position; nil if there is none yet.
func (s *following) next(ctx context.Context, after Position) (*journal.Message, error) {
	s.mu.Lock()
	failed, from, recent := s.failed, s.from, s.recent
	s.mu.Unlock()
	if failed != nil {
		return nil, failed
	}
	if from > 0 && after.Sequence+1 >= from {
		return firstOf(recent, after.Sequence+1), nil
	}
	m, err := s.before(ctx, max(after.Sequence, 1))
	if m != nil && m.Sequence == after.Sequence && after.Index >= len(m.Events)-1 {
		m, err = s.before(ctx, after.Sequence+1)
	}
	return m, err
}

// firstOf returns the first of messages at or behind a sequence; nil if there is none.
func firstOf(messages []*journal.Message, from uint64) *journal.Message {
	i, _ := slices.BinarySearchFunc(messages, from, func(m *journal.Message, sequence uint64) int { return cmp.Compare(m.Sequence, sequence) })
	if i == len(messages) {
		return nil
	}
	return messages[i]
}

// before returns the first message at or behind a sequence that is before the recent ones; nil if
// there is none yet. Readers at about the same position share what is read.
func (s *following) before(ctx context.Context, from uint64) (*journal.Message, error) {
	for {
		s.mu.Lock()
		i := slices.IndexFunc(s.older, func(o *older) bool { return o.from <= from && (from <= o.last() || !o.isRead()) })
		var o *older
		if i >= 0 {
			o = s.older[i]
			s.older = append(slices.Delete(s.older, i, i+1), o)
		} else {
			o = &older{from: from, done: make(chan struct{})}
			s.older = append(s.older, o)
			go s.readOlder(o)
		}
		s.mu.Unlock()
		select {
		case <-o.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if m := firstOf(o.messages, from); m != nil {
			return m, nil
		}
		if o.from == from {
			return nil, o.err
		}
	}
}

// olderMessages and olderBytes are how much is read at once of what is before the recent messages.
const (
	olderMessages = 64
	olderBytes    = 1 << 20
)

// readOlder reads what readers want to have, and keeps it if there is room.
func (s *following) readOlder(o *older) {
	bytes := 0
	for m, err := range s.tails.fleet.Journal.Messages(s.reading, s.id, o.from) {
		if err != nil {
			o.err = err
			break
		}
		o.messages = append(o.messages, m)
		if bytes += m.Bytes; len(o.messages) == olderMessages || bytes >= olderBytes {
			break
		}
	}
	close(o.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(o.messages) == 0 { // they may come
		s.older = slices.DeleteFunc(s.older, func(other *older) bool { return other == o })
	}
	messages, bytes := 0, 0
	for i, other := range slices.Backward(s.older) {
		if other.isRead() {
			messages += len(other.messages)
			for _, m := range other.messages {
				bytes += m.Bytes
			}
		}
		if (messages > recentMessages || bytes > recentBytes) && i < len(s.older)-1 {
			s.older = slices.Clone(s.older[i+1:])
			break
		}
	}
}

// notify wakes all readers.
func (s *following) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for own := range s.readers {
		select {
		case own.wake <- struct{}{}:
		default:
		}
	}
}

// passLive passes something live on to each reader that has room for it.
func (s *following) passLive(p Passed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for own := range s.readers {
		select {
		case own.live <- p:
		default:
			own.lost = true
		}
	}
}

// tookLost reports whether a reader has lost something live since it was asked last.
func (s *following) tookLost(own *reader) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := own.lost
	own.lost = false
	return lost
}

// fail ends all readers.
func (s *following) fail(err error) {
	s.tails.mu.Lock()
	if s.tails.of[s.id] == s {
		delete(s.tails.of, s.id)
	}
	s.tails.mu.Unlock()
	s.mu.Lock()
	s.failed = err
	s.mu.Unlock()
	s.notify()
}

// isPieceOfReply reports whether an event is about a reply that is not complete.
func isPieceOfReply(t loop.EventType) bool {
	return t == loop.EventTextDelta || t == loop.EventReasoningDelta || t == loop.EventModelWaits
}
