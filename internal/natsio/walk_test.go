package natsio_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// stored are the sequences of a stream's messages. A request for one takes a millisecond.
type stored struct {
	mu       sync.Mutex
	all      []uint64
	grows    int // messages that are stored while others are read
	requests int
	large    uint64 // messages from this sequence on have a MiB
	bytes    int    // of all answers
}

const way = time.Millisecond

func (s *stored) next(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error) {
	select {
	case <-time.After(way):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests++; s.requests <= s.grows {
		s.all = append(s.all, s.all[len(s.all)-1]+1+rand.Uint64N(3))
	}
	i, _ := slices.BinarySearchFunc(s.all, seq, cmp.Compare)
	if i == len(s.all) {
		return nil, nil //nolint:nilnil // there is none
	}
	msg := &jetstream.RawStreamMsg{Sequence: s.all[i]}
	if s.large > 0 && msg.Sequence >= s.large {
		msg.Data = mebibyte
	}
	s.bytes += len(msg.Data)
	return msg, nil
}

var mebibyte = make([]byte, 1<<20)

// spread are n sequences behind a first one.
func spread(first uint64, n int, gap func(i int) uint64) (all []uint64) {
	for i := range n {
		all = append(all, first)
		first += gap(i)
	}
	return all
}

// TestWalk_ReadsEachOnce: however the messages are distributed, each comes once, in order, by
// hardly more requests than there are messages, and in a fraction of the time that one request
// after the other takes.
func TestWalk_ReadsEachOnce(t *testing.T) {
	t.Parallel()
	dense := func(int) uint64 { return 1 }
	for name, test := range map[string]struct {
		all      []uint64
		requests int
		ways     int // to the server and back, one after the other
	}{
		"none":          {nil, 1, 1},
		"one":           {[]uint64{1 << 50}, 2, 2},
		"few":           {spread(7, 5, dense), 8, 4},
		"dense":         {spread(1, 5000, dense), 5050, 200},
		"every other":   {spread(1, 5000, func(int) uint64 { return 2 }), 5500, 300},
		"one of 50":     {spread(1, 5000, func(int) uint64 { return 1 + rand.Uint64N(99) }), 8000, 700},
		"bursts":        {spread(1, 5000, func(i int) uint64 { return 1 + 2000*uint64(1-min(i%20, 1)) }), 9000, 700},
		"dense, sparse": {slices.Concat(spread(1, 1000, dense), spread(5000, 1000, func(int) uint64 { return 900 })), 3200, 300},
		"sparse, dense": {slices.Concat(spread(1, 1000, func(int) uint64 { return 900 }), spread(5_000_000, 1000, dense)), 3200, 300},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, got, began := &stored{all: test.all}, []uint64(nil), time.Now()
				for walk, more := natsio.NewWalk(0, 0, s.next), true; more; {
					found, left, err := walk.Read(t.Context(), 100)
					require.NoError(t, err)
					require.LessOrEqual(t, len(found), 100)
					for _, msg := range found {
						got = append(got, msg.Sequence)
					}
					more = left
				}
				require.Equal(t, test.all, got)
				t.Logf("%d messages, %d requests, %d ways", len(got), s.requests, time.Since(began)/way)
				require.LessOrEqual(t, s.requests, test.requests)
				require.LessOrEqual(t, int(time.Since(began)/way), test.ways)
			})
		})
	}
}

// TestWalk_MissesNothing: of messages that are stored while others are read, there is none that
// is missing before one that was read.
func TestWalk_MissesNothing(t *testing.T) {
	t.Parallel()
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			s, got := &stored{all: spread(3, 40, func(int) uint64 { return 1 + rand.Uint64N(4) }), grows: 200}, []uint64(nil)
			for walk, more := natsio.NewWalk(1, 0, s.next), true; more; {
				found, left, err := walk.Read(t.Context(), 7+rand.IntN(30))
				require.NoError(t, err)
				for _, msg := range found {
					got = append(got, msg.Sequence)
				}
				more = left
			}
			require.GreaterOrEqual(t, len(got), 40)
			require.Equal(t, s.all[:len(got)], got)
		})
	}
}

// TestWalk_LargeMessages: where small messages that are far from each other are followed by large
// ones side by side, a walk has no more than one of these for each range beyond its bound in bytes.
func TestWalk_LargeMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, got := &stored{all: slices.Concat(spread(1, 200, func(int) uint64 { return 10 }), spread(2001, 1000, func(int) uint64 { return 1 })), large: 2001}, []uint64(nil)
		for walk, more := natsio.NewWalk(1, 0, s.next), true; more; {
			before := s.bytes
			found, left, err := walk.Read(t.Context(), 128)
			require.NoError(t, err)
			require.LessOrEqual(t, s.bytes-before, (4+32)<<20, "%d messages", len(found))
			for _, msg := range found {
				got = append(got, msg.Sequence)
			}
			more = left
		}
		require.Equal(t, s.all, got)
		require.LessOrEqual(t, s.requests, 1400)
	})
}

// TestWalk_OneAtATime: a walk sends no more requests at once than it may, and fails as they do.
func TestWalk_OneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, began := &stored{all: spread(1, 50, func(int) uint64 { return 1 })}, time.Now()
		for walk, more := natsio.NewWalk(1, 1, s.next), true; more; {
			_, left, err := walk.Read(t.Context(), 100)
			require.NoError(t, err)
			more = left
		}
		require.Equal(t, 51*way, time.Since(began))
	})
	failure := errors.New("the server has gone")
	_, _, err := natsio.NewWalk(1, 0, func(context.Context, uint64) (*jetstream.RawStreamMsg, error) { return nil, failure }).Read(t.Context(), 100)
	require.ErrorIs(t, err, failure)
}

// noConsumers is a stream of a server that makes no consumer.
type noConsumers struct{ jetstream.Stream }

func (noConsumers) CreateConsumer(context.Context, jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	return nil, errors.New("as many consumers as there may be")
}

// skipping is a stream whose consumers begin behind a message that they should have.
type skipping struct{ jetstream.Stream }

func (s skipping) CreateConsumer(ctx context.Context, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	consumer, err := s.Stream.CreateConsumer(ctx, config)
	if err == nil {
		_, err = consumer.Next()
	}
	return consumer, err
}

// batches is a stream that notes how many messages its consumers are asked for at once.
type batches struct {
	jetstream.Stream

	of *[]int
}

func (b batches) CreateConsumer(ctx context.Context, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	consumer, err := b.Stream.CreateConsumer(ctx, config)
	return batched{consumer, b.of}, err
}

type batched struct {
	jetstream.Consumer

	of *[]int
}

func (b batched) Fetch(batch int, options ...jetstream.FetchOpt) (jetstream.MessageBatch, error) {
	*b.of = append(*b.of, batch)
	return b.Consumer.Fetch(batch, options...)
}

// TestMessages_FewLargeOnesAtOnce: a consumer whose messages become larger is asked for fewer.
func TestMessages_FewLargeOnesAtOnce(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	stream, err := f.JS.Stream(t.Context(), wire.SessionsStream(f.Name))
	require.NoError(t, err)
	const small, all = 300, 400
	for i := range all {
		_, err := f.JS.PublishAsync(wire.EventSubject(f.Name, "s"), make([]byte, 1+i/small<<17))
		require.NoError(t, err)
	}
	<-f.JS.PublishAsyncComplete()
	var of []int
	i := 0
	for msg, err := range natsio.Messages(t.Context(), f.NC, batches{stream, &of}, wire.EventSubject(f.Name, "s"), 1) {
		require.NoError(t, err)
		i++
		require.EqualValues(t, i, msg.Sequence)
	}
	require.Equal(t, all, i)
	require.Greater(t, len(of), 2, of)
	for _, batch := range of[1:] {
		require.LessOrEqual(t, batch, 32, of)
	}
}

// TestMessages_AreAllThere: many messages of a subject come in few requests, and without a consumer
// all the same.
func TestMessages_AreAllThere(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	stream, err := f.JS.Stream(t.Context(), wire.SessionsStream(f.Name))
	require.NoError(t, err)
	const n = 500
	for i := range 3 * n {
		_, err := f.JS.PublishAsync(wire.EventSubject(f.Name, protocol.SessionID(fmt.Sprint("s", i%3))), fmt.Append(nil, i))
		require.NoError(t, err)
	}
	<-f.JS.PublishAsyncComplete()
	for name, test := range map[string]struct {
		stream   jetstream.Stream
		requests uint64
	}{"delivered": {stream, n / 3}, "by requests": {noConsumers{stream}, 3 * n}, "a message is lost": {skipping{stream}, 3 * n}} {
		before, i := f.NC.Stats().OutMsgs, 0
		for msg, err := range natsio.Messages(t.Context(), f.NC, test.stream, wire.EventSubject(f.Name, "s1"), 1) {
			require.NoError(t, err, name)
			require.Equal(t, fmt.Sprint(3*i+1), string(msg.Data), name)
			require.EqualValues(t, 3*i+2, msg.Sequence, name)
			require.Equal(t, wire.EventSubject(f.Name, "s1"), msg.Subject, name)
			require.False(t, msg.Time.IsZero(), name)
			i++
		}
		require.Equal(t, n, i, name)
		require.LessOrEqual(t, f.NC.Stats().OutMsgs-before, test.requests, name)
	}
	for _, most := range []int{1, 10, 70, 200} { // a reader may want no more at any time
		i := 0
		for _, err := range natsio.Messages(t.Context(), f.NC, stream, wire.EventSubject(f.Name, "s2"), 1) {
			require.NoError(t, err)
			if i++; i == most {
				break
			}
		}
		require.Equal(t, most, i)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range natsio.Messages(ctx, f.NC, stream, wire.EventSubject(f.Name, "s2"), 1) {
		require.ErrorIs(t, err, context.Canceled)
	}
}

// A sequence that no stream reaches, as a client may name it, is behind the last message.
func TestWalk_BehindEverySequence(t *testing.T) {
	t.Parallel()
	s := &stored{all: []uint64{1, 2}}
	for _, from := range []uint64{3, math.MaxUint64 / 2, math.MaxUint64 - 1, math.MaxUint64} {
		found, more, err := natsio.NewWalk(from, 0, s.next).Read(t.Context(), 100)
		require.NoError(t, err, from)
		require.Empty(t, found, from)
		require.False(t, more, from)
	}
}

// slow is a stream behind a network that has room for one answer at a time.
type slow struct {
	jetstream.Stream

	n     uint64
	reads atomic.Int32
}

func (s *slow) CachedInfo() *jetstream.StreamInfo {
	return &jetstream.StreamInfo{Config: jetstream.StreamConfig{Replicas: 3}}
}

func (s *slow) GetMsg(ctx context.Context, seq uint64, _ ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	s.reads.Add(1)
	defer s.reads.Add(-1)
	if seq > s.n {
		return nil, jetstream.ErrMsgNotFound
	}
	select {
	case <-time.After(20 * time.Second):
	case <-ctx.Done():
	}
	if s.reads.Load() > 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &jetstream.RawStreamMsg{Sequence: seq}, nil
}

// TestMessages_OneAtATimeOnASlowNetwork: where requests that are sent together take too long, each
// is sent alone, up to the last message.
func TestMessages_OneAtATimeOnASlowNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := &slow{n: 100}, uint64(0)
		for msg, err := range natsio.Messages(t.Context(), nil, s, "s", 1) {
			require.NoError(t, err, n)
			n++
			require.Equal(t, n, msg.Sequence)
		}
		require.Equal(t, s.n, n)
	})
}
