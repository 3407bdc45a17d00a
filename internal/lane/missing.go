package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrNoStream says that the stream of calls, of claims or of results is gone: somebody deleted it.
// The error names it, and says what to do.
var ErrNoStream = errors.New("the stream is gone")

// Nobody who runs makes a stream again: an operator may be about to restore it from a backup, for
// which it must not be there, and what is made anew is empty. A process that starts makes it. Calls
// that were put before, and of which the streams have nothing then, are lost.

const (
	// streamsPeriod is how often a process asks whether the streams are there, at most.
	streamsPeriod = time.Second
	// streamsRemedy is what to do about one that is not.
	streamsRemedy = "restore it from a backup (nats stream restore), or start a worker or coordinator, which makes it again, empty"
)

// streams knows whether the streams that calls live in are there, and since when. It is safe for
// concurrent use.
type streams struct {
	store *store.Store

	mu     sync.Mutex
	due    time.Time            // when they are asked for again
	made   map[string]time.Time // when each was made, by the server's clock
	missed map[string]int       // how often each was not there, one time after the other
	anew   time.Time            // when one was found to be made again
	gone   error                // wraps ErrNoStream; nil when all are there
}

func newStreams(s *store.Store) streams {
	return streams{store: s, made: s.Made(), missed: map[string]int{}}
}

// look asks whether the streams are there, if nobody has a moment ago. The error wraps
// [ErrNoStream] when one is not; that the server did not answer is none.
func (s *streams) look(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.due) {
		return s.gone
	}
	s.due = time.Now().Add(streamsPeriod)
	for _, stream := range slices.Sorted(maps.Keys(s.made)) {
		s.mu.Unlock() // whoever looks meanwhile is told what was known before
		made, err := s.store.WasMade(ctx, stream)
		s.mu.Lock()
		s.note(stream, made, err)
	}
	return s.gone
}

func (s *streams) note(stream string, made time.Time, err error) {
	switch {
	case errors.Is(err, store.ErrNoStream):
		s.missed[stream]++
	case err != nil:
		return
	default:
		if s.missed[stream] = 0; !made.Equal(s.made[stream]) {
			s.made[stream], s.anew = made, time.Now()
		}
	}
	s.gone = nil
	for _, stream := range slices.Sorted(maps.Keys(s.missed)) {
		if s.store.Consistency().IsGone(s.missed[stream]) {
			s.gone = errors.Join(s.gone, fmt.Errorf("%w: %s: %s", ErrNoStream, stream, streamsRemedy))
		}
	}
}

// remade is when a stream was last found to be made again; zero when none was.
func (s *streams) remade() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.anew
}

// Streams asks whether the streams of calls and results are there, once a second at most, whoever
// asks. The error wraps [ErrNoStream] when one is gone.
func (p *Publisher) Streams(ctx context.Context) error { return p.streams.look(ctx) }

// Lost reports whether a call that was accepted at a time, and has no result, is gone with a stream
// that was deleted and made again.
func (p *Publisher) Lost(ctx context.Context, call *protocol.Call, since time.Time) bool {
	if !since.Before(p.streams.remade()) {
		return false
	}
	if there, err := p.isStored(ctx, call); there || err != nil {
		return false
	}
	r, err := p.store.Result(ctx, call.SessionID, call.ID) // the result comes before its call goes
	return err == nil && r == nil
}

func (p *Publisher) isStored(ctx context.Context, call *protocol.Call) (bool, error) {
	fleet, hash := p.store.Fleet, call.Lane().Hash()
	ready, err := p.store.Ready(ctx, call.Pool, hash)
	if err != nil || ready != nil && ready.Header.Get(protocol.HeaderCall) == string(call.ID) {
		return true, err
	}
	entry, err := p.store.Next(ctx, fleet.CallSubject(call.Pool, hash, call.ID), 0)
	return entry != nil, err
}

// tellStreams logs when a stream is gone, and when all are there again. It takes and returns
// whether one was, and is.
func (h *Holder) tellStreams(ctx context.Context, before bool) bool {
	err := h.streams.look(ctx)
	switch {
	case err != nil && !before:
		h.options.Logger.ErrorContext(ctx, "a stream of the fleet was deleted: no call runs, or ends, without it", slog.Any("error", err))
	case err == nil && before:
		h.options.Logger.WarnContext(ctx, "the streams of the fleet are there again")
	}
	return err != nil
}
