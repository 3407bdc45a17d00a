package natsio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrNoStream says that a stream of the fleet is gone: somebody deleted it. The error names it, and
// says what to do.
var ErrNoStream = errors.New("the stream is gone")

// Nobody who runs makes a stream again: an operator may be about to restore it from a backup, for
// which it must not be there, and what is made anew is empty. A process that starts makes it. Calls
// that were put before, and of which the streams have nothing then, are lost.

const (
	// StreamsPeriod is how often a process asks whether the streams are there, at most.
	StreamsPeriod = time.Second
	// streamTimeout bounds one question.
	streamTimeout = time.Second
	// missesUntilGone is how often in a row a stream must be missing to be taken for gone: one of
	// several servers may not know it yet.
	missesUntilGone = 2
	// streamsRemedy is what to do about one that is gone.
	streamsRemedy = "restore it from a backup (nats stream restore), or start a worker or coordinator, which makes it again, empty"
)

// Streams knows whether streams are there, and since when. It is safe for concurrent use.
type Streams struct {
	js jetstream.JetStream

	mu      sync.Mutex
	due     time.Time            // when they are asked for again
	created map[string]time.Time // by the server's clock
	missed  map[string]int       // how often each was missing, in a row
	remade  time.Time            // when one was found to be made again
	gone    error                // wraps ErrNoStream; nil when all are there
}

// NewStreams watches streams that were created at the given times.
func NewStreams(js jetstream.JetStream, created map[string]time.Time) *Streams {
	return &Streams{js: js, created: created, missed: map[string]int{}}
}

// Check asks whether the streams are there, if nobody has asked within [StreamsPeriod]. The error
// wraps [ErrNoStream] when one is not; a server that does not answer is no error.
func (s *Streams) Check(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.due) {
		return s.gone
	}
	s.due = time.Now().Add(StreamsPeriod)
	for _, name := range slices.Sorted(maps.Keys(s.created)) {
		s.mu.Unlock() // whoever checks meanwhile gets what was known before
		created, err := s.ask(ctx, name)
		s.mu.Lock()
		s.note(name, created, err)
	}
	return s.gone
}

func (s *Streams) ask(ctx context.Context, name string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return time.Time{}, err
	}
	return stream.CachedInfo().Created, nil
}

func (s *Streams) note(name string, created time.Time, err error) {
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		s.missed[name]++
	case err != nil:
		return
	default:
		if s.missed[name] = 0; !created.Equal(s.created[name]) {
			s.created[name], s.remade = created, time.Now()
		}
	}
	s.gone = nil
	for _, name := range slices.Sorted(maps.Keys(s.missed)) {
		if s.missed[name] >= missesUntilGone {
			s.gone = errors.Join(s.gone, fmt.Errorf("%w: %s: %s", ErrNoStream, name, streamsRemedy))
		}
	}
}

// Remade is when a stream was last found to be made again; zero when none was.
func (s *Streams) Remade() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remade
}
