package natsio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrNoStream means that a stream of the fleet was deleted. The error names it, and
// says what to do.
var ErrNoStream = errors.New("the stream is gone")

// A running process does not create a missing stream again: an operator may be about to restore it
// from a backup, which requires that it is missing, and a new one is empty. A process that starts
// creates it. Calls that were published before are then lost.

const (
	// StreamsPeriod is the shortest time between two checks whether the streams exist.
	StreamsPeriod = time.Second
	// streamTimeout bounds one check.
	streamTimeout = time.Second
	// missesUntilGone is how often in a row a stream must be missing to count as deleted: one of
	// several servers may not know it yet.
	missesUntilGone = 2
	// streamsRemedy is what to do about a deleted stream.
	streamsRemedy = "restore it from a backup (nats stream restore), or start a worker or coordinator, which creates it again, empty"
)

// StreamNames are the names of all streams that a fleet may have.
func StreamNames(fleet protocol.Fleet) []string {
	names := []string{
		wire.CallsStream(fleet), wire.ClaimsStream(fleet), wire.ResultsStream(fleet), wire.SessionsStream(fleet), wire.WorkspacesStream(fleet), wire.ChannelsStream(fleet),
	}
	for _, bucket := range []string{wire.KeptBucket(fleet), wire.BlobsBucket(fleet), wire.BodiesBucket(fleet)} {
		names = append(names, ObjectStream(bucket))
	}
	for _, bucket := range []string{wire.SchedulesBucket(fleet), wire.LimitsBucket(fleet), wire.WebhooksBucket(fleet), wire.PlacesBucket(fleet)} {
		names = append(names, "KV_"+bucket)
	}
	return names
}

// Streams records whether streams exist, and since when. It is safe for concurrent use.
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

// Check checks that the streams exist, at most once in [StreamsPeriod]. The error
// wraps [ErrNoStream] when one is not; a server that does not answer is no error.
func (s *Streams) Check(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.due) {
		return s.gone
	}
	s.due = time.Now().Add(StreamsPeriod)
	for _, name := range slices.Sorted(maps.Keys(s.created)) {
		s.mu.Unlock() // concurrent checks get the previous state
		created, err := s.query(ctx, name)
		s.mu.Lock()
		s.record(name, created, err)
	}
	return s.gone
}

func (s *Streams) query(ctx context.Context, name string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return time.Time{}, err
	}
	return stream.CachedInfo().Created, nil
}

func (s *Streams) record(name string, created time.Time, err error) {
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

const (
	// lastSubjects is how many subjects are looked up by one consumer.
	lastSubjects = 256
	// lastBatch is how many messages are asked for at once, and bareBatch without their bodies.
	lastBatch, bareBatch = 256, 1024
	// lastWait is how long messages are waited for that a server has announced; those that are
	// removed meanwhile never come.
	lastWait = 5 * time.Second
	// lastIdle is when the server forgets a consumer whose reader was lost.
	lastIdle = time.Minute
)

// EachLast calls tell with the last message of each subject of a stream; subjects may have
// wildcards. Bare messages come without their bodies. One request returns many of them, and a
// replica that is behind may answer it: a caller that knows of a missing message asks the stream's
// leader. A subject that gets a message meanwhile may come twice, the new message last. EachLast
// ends with the first error of tell. It makes a consumer; a user without the right to, as one that
// only reads, asks for each subject instead.
func EachLast(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, subjects []string, bare bool, tell func(jetstream.Msg) error) error {
	name := stream.CachedInfo().Config.Name
	read := eachLast
	err := CheckRights(ctx, js.Conn(), Rights{Publish: []string{"$JS.API.CONSUMER.CREATE." + name + "." + probed}})
	if errors.Is(err, ErrRights) {
		read, err = requestLast, nil
	}
	if err != nil {
		return err
	}
	for some := range slices.Chunk(subjects, lastSubjects) {
		if err := read(ctx, stream, some, bare, tell); err != nil {
			return fmt.Errorf("read the last messages of stream %s: %w", name, err)
		}
	}
	return nil
}

// requestLast requests one message after the other.
func requestLast(ctx context.Context, stream jetstream.Stream, subjects []string, _ bool, tell func(jetstream.Msg) error) error {
	for _, filter := range subjects {
		names := []string{filter}
		if strings.ContainsAny(filter, "*>") {
			info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
			if err != nil {
				return err
			}
			names = slices.Sorted(maps.Keys(info.State.Subjects))
		}
		for _, name := range names {
			msg, err := stream.GetLastMsgForSubject(ctx, name)
			if err == nil {
				err = tell(lastMessage{raw: msg})
			} else if errors.Is(err, jetstream.ErrMsgNotFound) { // removed meanwhile
				err = nil
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// lastMessage is a message that was asked for, as one of a consumer.
type lastMessage struct {
	jetstream.Msg // nil: there is nothing to acknowledge

	raw *jetstream.RawStreamMsg
}

func (a lastMessage) Subject() string      { return a.raw.Subject }
func (a lastMessage) Data() []byte         { return a.raw.Data }
func (a lastMessage) Headers() nats.Header { return a.raw.Header }

func (a lastMessage) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Stream: a.raw.Sequence}, Timestamp: a.raw.Time}, nil
}

func eachLast(ctx context.Context, stream jetstream.Stream, subjects []string, bare bool, tell func(jetstream.Msg) error) error {
	return each(ctx, stream, jetstream.ConsumerConfig{FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, HeadersOnly: bare}, batchOf, tell)
}

// EachFrom is [EachLast] for all messages of subjects from a sequence on, in their order for each
// chunk of 256 subjects.
func EachFrom(ctx context.Context, stream jetstream.Stream, subjects []string, from uint64, bare bool, tell func(jetstream.Msg) error) error {
	for some := range slices.Chunk(subjects, lastSubjects) {
		config := jetstream.ConsumerConfig{FilterSubjects: some, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(from, 1), HeadersOnly: bare}
		if err := each(ctx, stream, config, batchOf, tell); err != nil {
			return fmt.Errorf("read messages of stream %s: %w", stream.CachedInfo().Config.Name, err)
		}
	}
	return nil
}

// isLeaderless reports that no server answers for a stream or for JetStream, as while a cluster
// elects a leader.
func isLeaderless(err error) bool {
	api, answered := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrNoResponders) || answered && api.ErrorCode == codeUnavailable
}

func batchOf(bare bool) uint64 {
	if bare {
		return bareBatch
	}
	return lastBatch
}

// each passes on the messages of a consumer that it makes. batch is how many are asked for next.
func each(ctx context.Context, stream jetstream.Stream, config jetstream.ConsumerConfig, batch func(bare bool) uint64, tell func(jetstream.Msg) error) error {
	config.AckPolicy, config.MemoryStorage, config.InactiveThreshold = jetstream.AckNonePolicy, true, lastIdle
	consumer, err := stream.CreateConsumer(ctx, config)
	for began := time.Now(); isLeaderless(err) && time.Since(began) < openPatience && pause.For(ctx, pause.Retry); {
		consumer, err = stream.CreateConsumer(ctx, config)
	}
	if err != nil {
		return err
	}
	defer func() { // else it is forgotten by itself
		_ = stream.DeleteConsumer(context.WithoutCancel(ctx), consumer.CachedInfo().Name)
	}()
	for left := consumer.CachedInfo().NumPending; left > 0 && err == nil; {
		left, err = fetch(ctx, consumer, min(left, batch(config.HeadersOnly)), tell)
	}
	return err
}

// fetch passes at most that many messages to tell, and returns how many are left; 0 when none came
// in time.
func fetch(ctx context.Context, consumer jetstream.Consumer, most uint64, tell func(jetstream.Msg) error) (left uint64, err error) {
	wait, cancel := context.WithTimeout(ctx, lastWait)
	defer cancel()
	messages, err := consumer.Fetch(int(most), jetstream.FetchContext(wait)) //nolint:gosec // at most a batch
	if err != nil {
		return 0, err
	}
	for msg := range messages.Messages() {
		about, err := msg.Metadata()
		if err == nil {
			err = tell(msg)
		}
		if err != nil {
			return 0, err
		}
		left = about.NumPending
	}
	if err := messages.Error(); ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return left, err
	}
	return left, nil
}
