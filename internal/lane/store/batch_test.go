package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// requests counts the direct gets of a stream from now on.
func requests(t *testing.T, s *Store, stream string) func() int {
	t.Helper()
	heard, err := s.NC.SubscribeSync("$JS.API.DIRECT.GET." + stream)
	require.NoError(t, err)
	return func() int {
		require.NoError(t, s.NC.Flush())
		n, _, err := heard.Pending()
		require.NoError(t, err)
		return n
	}
}

// lane stores a ready message and some calls of a lane, and returns their sequences.
func lane(t *testing.T, s *Store, hash wire.LaneHash, calls int) (ready uint64, entries []uint64) {
	t.Helper()
	store := func(subject string) uint64 {
		seq, answer, err := s.Publish(t.Context(), nats.NewMsg(subject))
		require.NoError(t, err)
		require.Equal(t, Accepted, answer)
		return seq
	}
	for i := range calls {
		id := protocol.CallID(fmt.Sprintf("c%04d", calls-i)) // subjects do not sort like sequences
		entries = append(entries, store(wire.CallSubject(s.Fleet, protocol.DefaultPool, hash, id)))
	}
	return store(wire.ReadySubject(s.Fleet, protocol.DefaultPool, hash)), entries
}

// What is asked while a request is under way goes with the next one, and each gets its own answer.
func TestLookup_OneRequestForMany(t *testing.T) {
	t.Parallel()
	s := open(t, natsio.Topology{})
	const lanes = 20
	type has struct {
		ready   uint64
		entries []uint64
	}
	stored := map[wire.LaneHash]has{}
	for i := range lanes {
		hash := wire.LaneHash(fmt.Sprintf("h%d", i))
		ready, entries := lane(t, s, hash, i%4)
		stored[hash] = has{ready, entries}
	}
	sent := requests(t, s, wire.CallsStream(s.Fleet))
	b := &s.calls.batcher
	first := &batch{reply: "first", sent: time.Now().Add(time.Hour)} // it takes long
	b.mu.Lock()
	b.inFlight = first
	b.mu.Unlock()
	lookups := map[wire.LaneHash]*Lookup{}
	for hash := range stored {
		lookups[hash] = s.calls.lookup(wire.ReadySubject(s.Fleet, protocol.DefaultPool, hash), wire.MailboxFilter(s.Fleet, protocol.DefaultPool, hash))
	}
	require.Zero(t, sent())
	b.onAnswer(&nats.Msg{Subject: "first", Header: nats.Header{"Status": {"404"}, "Description": {"No Results"}}})
	for hash, lookup := range lookups {
		found, err := lookup.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, append(stored[hash].entries, stored[hash].ready), sequences(found))
	}
	require.Equal(t, 1, sent())

	for hash, want := range stored {
		ready, entries, err := s.ReadLane(t.Context(), protocol.DefaultPool, hash)
		require.NoError(t, err)
		require.Equal(t, want.ready, ready.Sequence)
		require.Equal(t, want.entries, sequences(entries))
	}
	require.Equal(t, 1+lanes, sent(), "one goes at once")
	ready, entries, err := s.ReadLane(t.Context(), protocol.DefaultPool, "nobody")
	require.NoError(t, err)
	require.Nil(t, ready)
	require.Empty(t, entries)
}

// Where one answer cannot have all, nothing of it is believed.
func TestLookup_NotAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("too many", func(t *testing.T) {
		t.Parallel()
		s := open(t, natsio.Topology{})
		lane(t, s, hash, 1024)
		_, _, err := s.ReadLane(t.Context(), protocol.DefaultPool, hash)
		require.ErrorIs(t, err, ErrNotAtOnce)
	})
	t.Run("too large", func(t *testing.T) {
		t.Parallel()
		s := open(t, natsio.Topology{})
		filter, _ := mailbox(t, s, 4, make([]byte, maxBytes/2))
		_, err := s.ReadAll(t.Context(), filter)
		require.ErrorIs(t, err, ErrNotAtOnce)
	})
	t.Run("three servers", func(t *testing.T) {
		t.Parallel()
		s := open(t, natsio.Topology{})
		s.calls.direct.Store(false) // as it is there
		_, err := s.ReadAll(t.Context(), wire.MailboxFilter(s.Fleet, protocol.DefaultPool, hash))
		require.ErrorIs(t, err, ErrNotAtOnce)
	})
	t.Run("a message cannot be read", func(t *testing.T) {
		t.Parallel()
		r := &reader{stream: "S"}
		_, err := r.readMultiLast([]*nats.Msg{{Header: nats.Header{"Status": {"404"}, "Description": {"Message Not Found"}}}})
		require.ErrorIs(t, err, ErrNotAtOnce)
	})
}

// A request whose answer was lost holds up nobody who comes later.
func TestLookup_AnAnswerThatIsLost(t *testing.T) {
	t.Parallel()
	s := open(t, natsio.Topology{})
	ready, _ := lane(t, s, hash, 0)
	lost := &Lookup{done: make(chan struct{})}
	b := &s.calls.batcher
	b.mu.Lock()
	b.inFlight = &batch{lookups: []*Lookup{lost}, sent: time.Now().Add(-2 * ShortTimeout)}
	b.mu.Unlock()
	found, err := s.ReadAll(t.Context(), wire.ReadySubject(s.Fleet, protocol.DefaultPool, hash))
	require.NoError(t, err)
	require.Equal(t, []uint64{ready}, sequences(found))
	_, err = lost.Wait(t.Context())
	require.ErrorIs(t, err, ErrNotAtOnce)
}
