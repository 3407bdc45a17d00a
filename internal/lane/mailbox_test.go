package lane

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A message that was read comes no second time, neither as the server has told it nor because it is
// still stored.
func TestMailbox_NothingComesTwice(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	s, err := store.Open(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	const hash = protocol.LaneHash("lane")
	m := newMailbox(s, s.Fleet, protocol.DefaultPool, hash)
	t.Cleanup(m.close)
	m.listen()
	require.NoError(t, f.NC.Flush())
	put := func(id protocol.CallID) uint64 {
		seq, answer, err := s.Publish(t.Context(), nats.NewMsg(s.Fleet.CallSubject(protocol.DefaultPool, hash, id)))
		require.NoError(t, err)
		require.Equal(t, store.Accepted, answer)
		return seq
	}
	requireNext := func(want uint64) {
		t.Helper()
		l, err := m.next(t.Context())
		require.NoError(t, err)
		if want == 0 {
			require.Nil(t, l)
			return
		}
		require.NotNil(t, l)
		require.Equal(t, want, l.Sequence)
	}
	first := put("first")
	requireNext(first)
	requireNext(0)
	select { // told, too
	case <-m.wake:
	case <-time.After(time.Minute):
		t.Fatal("not told")
	}
	m.fromStart = true // as if it were removed
	requireNext(0)
	m.refresh()
	requireNext(0)
	second := put("second")
	m.refresh()
	requireNext(second)
	require.NoError(t, s.Remove(t.Context(), first, second))
	requireNext(0)
	third := put("third")
	m.refresh()
	requireNext(third)
	requireNext(0)
}

// What was stored after the mailbox was read and before the server tells it comes in its turn, also
// when what was read is not taken yet: the holder has so many calls in hand that it begins to
// listen in the middle.
func TestMailbox_NothingIsMissedBetweenReadingAndListening(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	s, err := store.Open(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	m := newMailbox(s, s.Fleet, protocol.DefaultPool, "lane")
	t.Cleanup(m.close)
	put := func(ids ...protocol.CallID) {
		for _, id := range ids {
			_, answer, err := s.Publish(t.Context(), nats.NewMsg(s.Fleet.CallSubject(m.pool, m.hash, id)))
			require.NoError(t, err)
			require.Equal(t, store.Accepted, answer)
		}
	}
	var got []string
	take := func() {
		l, err := m.next(t.Context())
		require.NoError(t, err)
		if l != nil {
			got = append(got, string(s.Fleet.ParseMailboxSubject(l.Subject).CallID))
		}
	}
	put("a", "b")
	take() // and reads b
	put("between")
	m.hearAnew()
	require.NoError(t, f.NC.Flush())
	put("told")
	for range 4 {
		take()
	}
	require.Equal(t, []string{"a", "b", "between", "told"}, got)
}

// TestWait_ABusyLaneListens: a lane that never waits for long does not ask the stream for every
// call.
func TestWait_ABusyLaneListens(t *testing.T) {
	t.Parallel()
	s, err := store.Open(t.Context(), natsiotest.New(t, natsio.Topology{}).NC, protocol.DefaultFleet)
	require.NoError(t, err)
	l := &held{ctx: t.Context(), schedule: core.NewSchedule(), finished: make(chan finished, 100), served: listensAfter}
	l.mail = newMailbox(s, protocol.DefaultFleet, protocol.DefaultPool, protocol.Lane("account/a").Hash())
	for range cap(l.finished) {
		l.finished <- finished{entry: &core.Entry{}} // something always happens
	}
	l.wait(time.Minute)
	require.NotNil(t, l.mail.subscription)
	require.Len(t, l.finished, cap(l.finished), "the mailbox is read first")
	l.mail.close()
}
