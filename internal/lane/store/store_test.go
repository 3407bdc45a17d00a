package store

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestReadAck(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		body   string
		seq    uint64
		answer Answer
		fault  string
	}{
		"stored":              {body: `{"stream":"TF_CALLS","seq":42}`, seq: 42},
		"stored, in a domain": {body: `{"stream":"TF_CALLS","domain":"x","seq":7,"duplicate":false}`, seq: 7},
		"lane is ready or held": {
			body: `{"error":{"code":503,"err_code":10077,"description":"maximum messages per subject exceeded"},"stream":"S","seq":0}`, answer: Occupied,
		},
		"there is a result":        {body: `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"S","seq":0}`, answer: Occupied},
		"too many messages":        {body: `{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}`, answer: Full},
		"too many bytes":           {body: `{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"S","seq":0}`, answer: Full},
		"another failure to store": {body: `{"error":{"code":503,"err_code":10077,"description":"disk is gone"},"stream":"S","seq":0}`, fault: "disk is gone"},
		"no leader": {
			body: `{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`, fault: "temporarily unavailable",
		},
		"sequence is no number": {body: `{"stream":"S","seq":"x"}`, fault: "acknowledgement"},
		"nothing":               {body: ``, fault: "acknowledgement"},
		"an empty object":       {body: `{}`, fault: jetstream.ErrInvalidJSAck.Error()},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seq, answer, err := readAck([]byte(test.body))
			if test.fault != "" {
				require.ErrorContains(t, err, test.fault)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.seq, seq)
			require.Equal(t, test.answer, answer)
		})
	}
}

func TestDeleteFault(t *testing.T) {
	t.Parallel()
	gone := []string{
		`{"type":"io.nats.jetstream.api.v1.stream_msg_delete_response","success":true}`,
		`{"error":{"code":500,"err_code":10057,"description":"no message found"},"success":false}`,
		`{"error":{"code":400,"err_code":10043,"description":"sequence 4 not found"}}`,
		`{"error":{"code":404,"err_code":10037,"description":"no message found"}}`,
	}
	for _, body := range gone {
		require.NoError(t, deletionError([]byte(body)), body)
	}
	require.ErrorContains(t, deletionError([]byte(`{"error":{"code":500,"err_code":10057,"description":"disk is gone"}}`)), "disk is gone")
	require.ErrorIs(t, deletionError([]byte(`{"success":false}`)), errNotDeleted)
	require.Error(t, deletionError([]byte(`garbage`)))
}

// Behind a leaf node messages of core NATS may get lost as between the servers of a cluster, and
// the streams may be kept by one. Such a server counts as one of several, because it always has a
// cluster's name.
func TestStore_ALeafNodeIsNoServerOfItsOwn(t *testing.T) {
	t.Parallel()
	start := func(o server.Options) *server.Server {
		o.Host, o.Port, o.NoSigs, o.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
		s, err := server.NewServer(&o)
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		require.True(t, s.ReadyForConnections(time.Minute))
		return s
	}
	clustered := func(s *server.Server) bool {
		nc, err := nats.Connect(s.ClientURL(), nats.Timeout(time.Minute))
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		return !(&Store{NC: nc}).Consistency().RepublishesAll()
	}
	ports, err := embedded.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	start(server.Options{ServerName: "hub", LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: ports[0]}})
	address := &url.URL{Scheme: "nats-leaf", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))}
	leaf := start(server.Options{ServerName: "leaf", LeafNode: server.LeafNodeOpts{Remotes: []*server.RemoteLeafOpts{{URLs: []*url.URL{address}}}}})
	require.True(t, clustered(leaf))
	require.False(t, clustered(start(server.Options{ServerName: "alone"})))
}

// Clocks of two workers may tell the same time, so numbers that nobody else may have are not times.
func TestToken_IsNoTime(t *testing.T) {
	t.Parallel()
	drawn := make([]uint64, 100)
	for i := range drawn {
		drawn[i] = Nonce()
	}
	require.False(t, slices.IsSorted(drawn), "each is greater than the one before")
	slices.Sort(drawn)
	require.Len(t, slices.Compact(drawn), 100)
}

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

// A worker that says that its lease is endless keeps others from its lanes for no longer than any.
func TestHeartbeat_LeasesEnd(t *testing.T) {
	t.Parallel()
	for said, want := range map[int64]time.Duration{10_000: 10 * time.Second, 1 << 42: natsio.MaxAckWait, math.MaxInt64: natsio.MaxAckWait} {
		require.Equal(t, want, (&StoredHeartbeat{Heartbeat: wire.Heartbeat{LeaseMS: said}}).Lease())
	}
}

// Law: a ready message that is to be delivered again is, also when the consumer's leader fails
// before anybody asks for it, and where a holder had it wait for long.
func TestRedeliver_OutlivesTheLeader(t *testing.T) {
	t.Parallel()
	c, pool := natsiotest.NewCluster(t), protocol.DefaultPool
	require.NoError(t, natsio.MakePool(t.Context(), c.JS, c.Name, pool))
	s, err := Open(t.Context(), c.NC, c.Name)
	require.NoError(t, err)
	lane := protocol.Lane("l/1")
	made, err := s.MakeReady(t.Context(), pool, lane)
	require.NoError(t, err)
	require.True(t, made)
	stream, ready := wire.CallsStream(c.Name), wire.ReadyConsumer(pool)
	consumer, err := c.JS.Consumer(t.Context(), stream, ready)
	require.NoError(t, err)
	msg, err := consumer.Next(jetstream.FetchMaxWait(time.Minute))
	require.NoError(t, err)
	meta, err := msg.Metadata()
	require.NoError(t, err)
	s.Nack(msg.Reply(), time.Hour)

	require.NoError(t, s.Redeliver(t.Context(), pool, meta.Sequence.Stream))
	before := c.ConsumerLeader(stream, ready)
	require.Eventually(t, func() bool {
		leader := c.ConsumerLeader(stream, ready)
		if leader == before { // at first, or elected again
			_, _ = c.NC.Request("$JS.API.CONSUMER.LEADER.STEPDOWN."+stream+"."+ready, nil, time.Minute)
		}
		return leader >= 0 && leader != before
	}, 2*time.Minute, 100*time.Millisecond)
	require.Eventually(t, func() bool { // the new leader does not hear requests at once
		again, err := consumer.Next(jetstream.FetchMaxWait(time.Second))
		return err == nil && again.Subject() == msg.Subject()
	}, time.Minute, 10*time.Millisecond)
}

// The claim of a visit names no ready message, and is let go like any other.
func TestRedeliver_NothingIsNoFault(t *testing.T) {
	t.Parallel()
	s := open(t, natsio.Topology{})
	require.NoError(t, natsio.MakePool(t.Context(), s.JS, s.Fleet, protocol.DefaultPool))
	require.NoError(t, s.Redeliver(t.Context(), protocol.DefaultPool, 0))
	require.NoError(t, s.RedeliverAfter(t.Context(), protocol.DefaultPool, time.Second, 0))
}

func TestSnapshot_WhatIsNotInTheListIsOldUnlessItCameLater(t *testing.T) {
	t.Parallel()
	lists := func(s *Snapshot, seq uint64, subject string) bool {
		return s.Lists(&jetstream.RawStreamMsg{Sequence: seq, Subject: subject})
	}
	require.True(t, lists(nil, 3, "a"), "a server on its own needs none")
	s := &Snapshot{Listing: &Listing{Last: 17, Whole: true, Subjects: map[string]uint64{"a": 1, "late": 1}}}
	require.False(t, lists(s, 2, "removed"))
	require.True(t, lists(s, 3, "a"))
	require.True(t, lists(s, 18, "new"))
	require.True(t, lists(s, 19, "late"), "stored while the list was made")
	part := &Snapshot{Listing: &Listing{Last: 17, Subjects: map[string]uint64{"a": 1}}}
	require.True(t, lists(part, 2, "b"), "nothing is known of what the list leaves out")
}

func TestReadListing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body   string
		last   uint64
		unread int
		whole  bool
		fails  bool
	}{
		"nothing in the mailbox":       {body: `{"config":{},"state":{"messages":9,"last_seq":17}}`, last: 17, whole: true},
		"some of the mailbox":          {body: `{"total":2,"state":{"last_seq":17,"subjects":{"a":1,"b":1}}}`, last: 17, unread: 2, whole: true},
		"more than one answer can say": {body: `{"total":3,"state":{"last_seq":17,"subjects":{"a":1,"b":1}}}`, last: 17, unread: 2},
		"no stream":                    {body: `{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`, fails: true},
		"no state":                     {body: `{"total":0}`, fails: true},
		"no JSON":                      {body: `x`, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := readListing([]byte(test.body))
			if test.fails {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.last, s.Last)
			require.Len(t, s.Subjects, test.unread)
			require.Equal(t, test.whole, s.Whole)
		})
	}
}

// The error of a request says whether anything was sent.
func TestRequest_WithoutAnAnswer(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	nc := f.Connect()
	s, err := Open(t.Context(), nc, f.Name)
	require.NoError(t, err)
	silent, err := f.NC.SubscribeSync("silent")
	require.NoError(t, err)
	require.NoError(t, f.NC.Flush())

	_, err = s.Request(t.Context(), time.Minute, nats.NewMsg("nobody"))
	require.ErrorIs(t, err, nats.ErrNoResponders)
	require.Equal(t, natsio.NotStored, natsio.OutcomeOf(err), "nobody took it")
	_, err = s.Request(t.Context(), time.Millisecond, nats.NewMsg("silent"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, natsio.Unknown, natsio.OutcomeOf(err))
	_, err = silent.NextMsg(time.Minute)
	require.NoError(t, err)

	ended, end := context.WithCancel(t.Context())
	end()
	_, err = s.Request(ended, time.Minute, nats.NewMsg("silent"))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, natsio.NotStored, natsio.OutcomeOf(err))

	waits := make(chan error, 1)
	go func() {
		_, err := s.Request(t.Context(), time.Hour, nats.NewMsg("silent"))
		waits <- err
	}()
	_, err = silent.NextMsg(time.Minute)
	require.NoError(t, err)
	nc.Close()
	err = <-waits
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
	require.Equal(t, natsio.Unknown, natsio.OutcomeOf(err), "it was sent before")
	_, err = s.Request(t.Context(), time.Minute, nats.NewMsg("silent"))
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
	require.Equal(t, natsio.NotStored, natsio.OutcomeOf(err))
}
