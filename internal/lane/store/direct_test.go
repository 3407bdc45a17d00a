package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const hash = wire.LaneHash("h")

// mailbox stores n calls of a lane, with calls of another one between them, and returns the filter
// for them and their sequences.
func mailbox(t *testing.T, s *Store, n int, body []byte) (filter string, seqs []uint64) {
	t.Helper()
	for i := range n {
		for _, lane := range []wire.LaneHash{hash, "other"} {
			msg := nats.NewMsg(wire.CallSubject(s.Fleet, protocol.DefaultPool, lane, protocol.CallID(fmt.Sprintf("c%04d", n-i))))
			msg.Header.Set(wire.HeaderLane, "account/a")
			msg.Data = body
			seq, answer, err := s.Publish(t.Context(), msg)
			require.NoError(t, err)
			require.Equal(t, Accepted, answer)
			if lane == hash {
				seqs = append(seqs, seq)
			}
		}
	}
	return wire.MailboxFilter(s.Fleet, protocol.DefaultPool, hash), seqs
}

func open(t *testing.T, topology natsio.Topology) *Store {
	t.Helper()
	f := natsiotest.New(t, topology)
	s, err := Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	return s
}

func sequences(found []*jetstream.RawStreamMsg) (seqs []uint64) {
	for _, msg := range found {
		seqs = append(seqs, msg.Sequence)
	}
	return seqs
}

// What is read in any way is the same.
func TestStore_CopiesAreWhatTheLeaderHas(t *testing.T) {
	t.Parallel()
	s := open(t, natsio.Topology{})
	filter, seqs := mailbox(t, s, 9, []byte("body"))
	found, err := s.ReadAll(t.Context(), filter)
	require.NoError(t, err)
	require.Equal(t, seqs, sequences(found))
	for _, msg := range found {
		leaders, err := s.readLeader(t.Context(), wire.CallsStream(s.Fleet), filter, msg.Sequence)
		require.NoError(t, err)
		next, err := s.Next(t.Context(), filter, msg.Sequence)
		require.NoError(t, err)
		for _, copied := range []*jetstream.RawStreamMsg{msg, next} {
			require.Equal(t, leaders.Header.Get(wire.HeaderLane), copied.Header.Get(wire.HeaderLane))
			copied.Header = leaders.Header // beside what the server adds
			require.Equal(t, leaders, copied)
		}
	}
}

// However many there are, each comes once, in order.
func TestStore_EachOfManyClaims(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"at once": 9, "one by one": 1025} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, natsio.Topology{})
			var want, got []uint64
			for i := range n {
				claim := wire.Claim{Lane: protocol.Lane(fmt.Sprintf("account/%d", i)), WorkerID: "w", Incarnation: "l", Token: "t"}
				epoch, answer, err := s.StoreClaim(t.Context(), protocol.DefaultPool, &claim, 0)
				require.NoError(t, err)
				require.Equal(t, Accepted, answer)
				want = append(want, epoch)
			}
			require.NoError(t, s.EachClaim(t.Context(), protocol.DefaultPool, func(c *StoredClaim) { got = append(got, c.Epoch) }))
			require.Equal(t, want, got)
		})
	}
}

func TestStore_NotAtOnce(t *testing.T) {
	t.Parallel()
	s := open(t, natsio.Topology{})
	filter, _ := mailbox(t, s, 3, nil)
	config := s.Calls.CachedInfo().Config
	config.AllowDirect = false
	_, err := s.JS.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	older, err := Open(t.Context(), s.NC, s.Fleet)
	require.NoError(t, err)
	_, err = older.ReadAll(t.Context(), filter)
	require.ErrorIs(t, err, ErrNotAtOnce, "a stream that was made without direct gets")
	first, err := older.Next(t.Context(), filter, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, first.Sequence)
}

// Without direct gets, as in a cluster, a page is read by many requests at the same time: it has
// the same messages, and takes about one request for each.
func TestPage_OfTheLeader(t *testing.T) {
	t.Parallel()
	s := open(t, natsio.Topology{})
	filter, seqs := mailbox(t, s, 230, nil)
	config := s.Calls.CachedInfo().Config
	config.AllowDirect = false
	_, err := s.JS.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	older, err := Open(t.Context(), s.NC, s.Fleet)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		filter string
		all    int
	}{"every other message": {filter, len(seqs)}, "all messages": {wire.MailboxFilter(s.Fleet, protocol.DefaultPool, "*"), 2 * len(seqs)}} {
		read := func() (got []uint64, pages int, err error) {
			for seq := uint64(0); ; pages++ {
				page, err := older.Page(t.Context(), test.filter, seq)
				if err != nil || len(page) == 0 {
					return got, pages, err
				}
				require.LessOrEqual(t, len(page), PageSize, name)
				got = append(got, sequences(page)...)
				seq = got[len(got)-1] + 1
			}
		}
		var got []uint64
		var pages int
		var sent uint64
		patiently(t, func() (err error) {
			before := s.NC.Stats().OutMsgs
			got, pages, err = read()
			sent = s.NC.Stats().OutMsgs - before
			return err
		})
		require.Len(t, got, test.all, name)
		require.True(t, slices.IsSorted(got), name)
		require.Equal(t, (test.all+PageSize-1)/PageSize, pages, name)
		require.LessOrEqual(t, sent, uint64(2*test.all+10), name)
	}
	subjects := []string{wire.CallSubject(s.Fleet, protocol.DefaultPool, hash, "c0001"), wire.CallSubject(s.Fleet, protocol.DefaultPool, hash, "none")}
	var stored map[string]*jetstream.RawStreamMsg
	patiently(t, func() (err error) {
		stored, err = older.Stored(t.Context(), subjects)
		return err
	})
	require.Len(t, stored, 1)
}

// patiently repeats what reads as long as the server, which may have much to do, does not answer in
// the time of a request.
func patiently(t *testing.T, read func() error) {
	t.Helper()
	err := read()
	for limit := time.Now().Add(3 * time.Minute); errors.Is(err, context.DeadlineExceeded) && time.Now().Before(limit); {
		err = read()
	}
	require.NoError(t, err)
}

func TestReadBatch_MissesNothing(t *testing.T) {
	t.Parallel()
	one := func(seq, before uint64) *nats.Msg {
		return &nats.Msg{Header: nats.Header{
			"Nats-Sequence": []string{strconv.FormatUint(seq, 10)}, "Nats-Last-Sequence": []string{strconv.FormatUint(before, 10)},
			"Nats-Time-Stamp": []string{"2026-01-02T03:04:05Z"},
		}}
	}
	end := func(status string, before uint64) *nats.Msg {
		return &nats.Msg{Header: nats.Header{
			"Status": []string{status[:3]}, "Description": []string{strings.TrimSpace(status[3:])},
			"Nats-Last-Sequence": []string{strconv.FormatUint(before, 10)}, "Nats-Num-Pending": []string{"0"},
		}}
	}
	for name, test := range map[string]struct {
		answers []*nats.Msg
		fault   error
	}{
		"two":                  {[]*nats.Msg{one(3, 0), one(7, 3), end("204 EOB", 7)}, nil},
		"the first is missing": {[]*nats.Msg{one(7, 3), end("204 EOB", 7)}, errGap},
		"the last is missing":  {[]*nats.Msg{one(3, 0), end("204 EOB", 7)}, errGap},
		"all are missing":      {[]*nats.Msg{end("204 EOB", 7)}, errGap},
		"one cannot be read":   {[]*nats.Msg{one(3, 0), end("404 Message Not Found", 0)}, errRefused},
		"something else":       {[]*nats.Msg{end("408 Bad Request", 0)}, errRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, left, err := readBatch(test.answers)
			if test.fault != nil {
				require.ErrorIs(t, err, test.fault)
				return
			}
			require.NoError(t, err)
			require.Zero(t, left)
			require.Equal(t, []uint64{3, 7}, sequences(found))
		})
	}
}

// A mirror that answers for the stream is behind it, and is not believed.
func TestStore_AMirrorIsNotAsked(t *testing.T) {
	t.Parallel()
	s := open(t, natsio.Topology{})
	filter, seqs := mailbox(t, s, 2, []byte("body"))
	_, err := s.JS.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "MIRROR", Mirror: &jetstream.StreamSource{Name: wire.CallsStream(s.Fleet)}, AllowDirect: true, MirrorDirect: true,
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool { // either may answer
		msg, err := s.Next(t.Context(), filter, 0)
		if err != nil || msg == nil { // a mirror that has nothing yet does not say who it is
			return false
		}
		require.Equal(t, seqs[0], msg.Sequence)
		return !s.calls.readsDirect()
	}, time.Minute, time.Millisecond)
	_, err = s.ReadAll(t.Context(), filter)
	require.ErrorIs(t, err, ErrNotAtOnce)
}

// An operator may forbid direct gets while workers run.
func TestStore_DirectGetsThatAreForbiddenMeanwhile(t *testing.T) {
	t.Parallel()
	s := open(t, natsio.Topology{})
	filter, seqs := mailbox(t, s, 1, nil)
	config := s.Calls.CachedInfo().Config
	config.AllowDirect = false
	_, err := s.JS.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	msg, err := s.Next(t.Context(), filter, 0)
	require.NoError(t, err)
	require.Equal(t, seqs[0], msg.Sequence)
	_, err = s.ReadAll(t.Context(), filter)
	require.ErrorIs(t, err, ErrNotAtOnce)
}
