package lane

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// runCopies passes on what the server republishes, until the test ends.
func runCopies(t *testing.T, s *store.Store) *copies {
	t.Helper()
	c := newCopies(s.NC)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return c
}

// A message that was read comes no second time, neither as the server has told it nor because it is
// still stored.
func TestMailbox_NothingComesTwice(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	const hash = wire.LaneHash("lane")
	m := newMailbox(s, runCopies(t, s), protocol.DefaultPool, hash, func() {})
	t.Cleanup(m.close)
	m.listen()
	require.NoError(t, s.NC.Flush())
	put := func(id protocol.CallID) uint64 {
		seq, answer, err := s.Publish(t.Context(), nats.NewMsg(wire.CallSubject(s.Fleet, protocol.DefaultPool, hash, id)))
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
	s := openStore(t)
	m := newMailbox(s, runCopies(t, s), protocol.DefaultPool, "lane", func() {})
	t.Cleanup(m.close)
	put := func(ids ...protocol.CallID) {
		for _, id := range ids {
			_, answer, err := s.Publish(t.Context(), nats.NewMsg(wire.CallSubject(s.Fleet, m.pool, m.hash, id)))
			require.NoError(t, err)
			require.Equal(t, store.Accepted, answer)
		}
	}
	var got []string
	take := func() {
		l, err := m.next(t.Context())
		require.NoError(t, err)
		if l != nil {
			got = append(got, string(wire.ParseMailboxSubject(s.Fleet, l.Subject).CallID))
		}
	}
	put("a", "b")
	take() // and reads b
	put("between")
	m.relisten()
	require.NoError(t, s.NC.Flush())
	put("told")
	for range 4 {
		take()
	}
	require.Equal(t, []string{"a", "b", "between", "told"}, got)
}

// A lane that never waits for long does not ask the stream for every call.
func TestWaitBusy_ABusyLaneListens(t *testing.T) {
	t.Parallel()
	l := newLaneOf(t, openStore(t))
	require.Equal(t, hintAfter, l.waitBusy())
	l.usage.served = listensAfter
	require.Zero(t, l.waitBusy(), "the mailbox is read first")
	require.True(t, l.mail.listens())
	require.Equal(t, readPeriod, l.waitBusy())
}

// What the server did not tell, as may happen between several servers, is found within a second,
// also while calls of the lane end all the time.
func TestFeed_WhatIsNotToldIsFoundAllTheSame(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	l := newLaneOf(t, s)
	l.mail.opened = true
	deaf, err := s.NC.SubscribeSync("nothing")
	require.NoError(t, err)
	require.NoError(t, l.readMailbox())
	l.mail.subscription, l.mail.reconnects = deaf, s.NC.Stats().Reconnects
	call := &protocol.Call{
		ID: wire.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool, Delivery: protocol.Idempotent,
		Resources: []protocol.Use{{Key: protocol.ResourceKey(l.lane), Access: protocol.Exclusive}}, Payload: wire.Noop{}, IssuedAt: time.Now(),
	}
	body, err := wire.EncodeCall(call)
	require.NoError(t, err)
	_, _, err = s.Publish(t.Context(), &nats.Msg{Subject: wire.CallSubject(s.Fleet, protocol.DefaultPool, l.hash, call.ID), Data: body})
	require.NoError(t, err)
	require.NoError(t, l.readMailbox())
	require.Zero(t, l.schedule.Len())
	l.mail.queriedAt = time.Now().Add(-readPeriod)
	require.NoError(t, l.readMailbox())
	require.Equal(t, 1, l.schedule.Len())
}

// What was there at the claim was read then. The lane's last holder may have settled what is told
// of it later.
func TestCluster_WhatIsToldOfTheTimeBeforeTheClaimIsOld(t *testing.T) {
	t.Parallel()
	c := natsiotest.NewCluster(t)
	var s *store.Store
	require.Eventually(t, func() (ok bool) {
		leader := c.Leader(wire.CallsStream(protocol.DefaultFleet))
		if leader < 0 {
			return false
		}
		opened, err := store.Open(t.Context(), c.ConnectTo(leader), protocol.DefaultFleet)
		s = opened
		return err == nil
	}, time.Minute, 10*time.Millisecond, "no leader")
	m := newMailbox(s, runCopies(t, s), protocol.DefaultPool, "lane", func() {})
	t.Cleanup(m.close)
	require.True(t, m.listen())
	require.NoError(t, s.NC.Flush())
	put := func(id protocol.CallID) uint64 {
		seq, answer, err := s.Publish(t.Context(), nats.NewMsg(wire.CallSubject(s.Fleet, m.pool, m.hash, id)))
		require.NoError(t, err)
		require.Equal(t, store.Accepted, answer)
		select {
		case <-m.wake:
		case <-time.After(time.Minute):
			t.Fatal("not told")
		}
		return seq
	}
	m.snapshot = &store.Snapshot{Listing: &store.Listing{Last: put("a"), Whole: true}}
	none, err := m.next(t.Context())
	require.NoError(t, err)
	require.Nil(t, none)
	seq := put("b")
	b, err := m.next(t.Context())
	require.NoError(t, err)
	require.Equal(t, seq, b.Sequence)
}
