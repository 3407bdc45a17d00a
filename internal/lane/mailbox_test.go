package lane

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
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

// requireRemoved removes messages: a try has a second, which a busy machine may need, and may be
// repeated.
func requireRemoved(t *testing.T, s *store.Store, seqs ...uint64) {
	t.Helper()
	require.Eventually(t, func() bool { return s.Remove(t.Context(), seqs...) == nil }, time.Minute, time.Millisecond)
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
	requireRemoved(t, s, first, second)
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

// Where much waits the next call starts before more is read, once requests to cancel are heard and
// unless somebody asks about the lane, which may be paused.
func TestWork_ReadsBesideWhatRuns(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change    func(*heldLane)
		starts    bool
		cancelled bool
	}{
		"much waits":              {func(*heldLane) {}, true, false},
		"little waits":            {func(l *heldLane) { l.mail.oneByOne = false }, false, false},
		"cancels are not listed":  {func(l *heldLane) { l.mail.listed = false }, false, false},
		"somebody asks":           {func(l *heldLane) { l.control.queried.Store(true) }, false, false},
		"a cancel has been heard": {func(l *heldLane) { l.mail.cancels = []protocol.CallID{"next"} }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLaneOf(t, openStore(t))
			require.True(t, l.mail.listen())
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // nothing can be read
			l.ctx, l.starting, l.slots = ctx, t.Context(), newLaneSlots(nil)
			l.lookups, l.running.finished = newEarlyLookups(l.holder.store), make(chan finished, 1)
			l.mail.opened, l.mail.oneByOne, l.mail.listed = true, true, true
			e := &core.Entry{Call: &protocol.Call{ID: "next", Payload: wire.Noop{}, Delivery: protocol.Idempotent}}
			require.True(t, l.enqueue(e))
			test.change(l)
			_, err := l.work()
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, test.starts, e.Running)
			require.Equal(t, test.cancelled, e.Cancelled)
			if e.Running {
				require.False(t, (<-l.running.finished).settled)
			}
		})
	}
}

// newLaneOf is a lane without a goroutine of its own.
func newLaneOf(t *testing.T, s *store.Store) *heldLane {
	t.Helper()
	const name = protocol.Lane("account/a")
	l := &heldLane{
		holder:    &Holder{store: s, options: Options{}.withDefaults(), host: idleHost{}},
		ownership: &ownership{lane: name, hash: wire.HashLane(name), ctx: t.Context(), claim: &claim{}, ready: &readyMessage{}},
		schedule:  core.NewSchedule(), garbage: newGarbage(s),
		mail: newMailbox(s, newCopies(s.NC), protocol.DefaultPool, wire.HashLane(name), func() {}),
	}
	t.Cleanup(l.mail.close)
	return l
}

func openStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), natsiotest.New(t, natsio.Topology{}).NC, protocol.DefaultFleet)
	require.NoError(t, err)
	return s
}

// Removals that got lost are made up for before the lane is let go, and nothing else is removed.
func TestSweep_OnlyWhatWasThrownAwayGoes(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	l := newLaneOf(t, s)
	put := func(subject string) uint64 {
		t.Helper()
		seq, answer, err := s.Publish(t.Context(), nats.NewMsg(subject))
		require.NoError(t, err)
		require.Equal(t, store.Accepted, answer)
		return seq
	}
	left := func() (seqs []uint64) {
		t.Helper()
		for from := uint64(0); ; {
			msg, err := s.Next(t.Context(), l.mail.filter(), from)
			require.NoError(t, err)
			if msg == nil {
				return seqs
			}
			seqs = append(seqs, msg.Sequence)
			from = msg.Sequence + 1
		}
	}
	paused := put(wire.PauseSubject(s.Fleet, protocol.DefaultPool, l.hash))
	settled := put(wire.CallSubject(s.Fleet, protocol.DefaultPool, l.hash, "settled"))
	waits := put(wire.CallSubject(s.Fleet, protocol.DefaultPool, l.hash, "waits"))
	started := put(wire.StartSubject(s.Fleet, protocol.DefaultPool, l.hash, "waits", 1))
	cancel := put(wire.CancelSubject(s.Fleet, protocol.DefaultPool, l.hash, "settled"))
	floor := put(wire.FloorSubject(s.Fleet, protocol.DefaultPool, l.hash, 7)) // of a claim before
	l.garbage.unconfirmed = map[uint64]protocol.CallID{settled: "settled", cancel: "settled", floor: "", 9999: "gone"}
	require.NoError(t, l.sweep())
	require.Equal(t, []uint64{paused, waits, started}, left())
	require.Empty(t, l.garbage.unconfirmed)
}

// A call that was put twice is the one in hand; the other copy is thrown away.
func TestAccept_ASecondCopyGoes(t *testing.T) {
	t.Parallel()
	l := newLaneOf(t, openStore(t))
	call := &protocol.Call{
		ID: wire.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool, Delivery: protocol.Idempotent,
		Resources: []protocol.Use{{Key: protocol.ResourceKey(l.lane), Access: protocol.Exclusive}}, Payload: wire.Noop{}, IssuedAt: time.Now(),
	}
	body, err := wire.EncodeCall(call)
	require.NoError(t, err)
	subject := wire.CallSubject(protocol.DefaultFleet, protocol.DefaultPool, l.hash, call.ID)
	l.accept(&message{Sequence: 4, Subject: subject, Data: body})
	l.accept(&message{Sequence: 6, Subject: subject, Data: body})
	require.Equal(t, 1, l.schedule.Len())
	require.Equal(t, map[uint64]protocol.CallID{6: call.ID}, l.garbage.unconfirmed)
}

// idleHost is a host that is never asked to execute anything.
type idleHost struct {
	DefaultHost
	Executor
}

// fill gives a lane as many bytes in hand as it may have.
func (l *heldLane) fill() {
	l.schedule.Add(&core.Entry{Call: &protocol.Call{ID: "full"}, Size: windowBytes})
}

// A pause mark whose telling was lost, as may happen between several servers, is found
// when somebody asks about the lane, and when the window has been full for a while.
func TestReadMarks_FindsAMarkThatWasNotTold(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	l := newLaneOf(t, s)
	require.True(t, l.mail.listen())
	mark, _, err := s.Publish(t.Context(), nats.NewMsg(wire.PauseSubject(s.Fleet, protocol.DefaultPool, l.hash)))
	require.NoError(t, err)

	require.NoError(t, l.readControl())
	require.False(t, l.control.paused.Load(), "nothing says that it is worth a read")
	l.control.queried.Store(true)
	require.NoError(t, l.readControl())
	require.True(t, l.control.paused.Load())

	l.control.paused.Store(false)
	l.control.readAt, l.mail.listed = time.Now(), true
	l.fill()
	require.NoError(t, l.readControl())
	require.False(t, l.control.paused.Load(), "it was read a moment ago")
	l.control.readAt = time.Now().Add(-readPeriod)
	require.NoError(t, l.readControl())
	require.True(t, l.control.paused.Load())

	requireRemoved(t, s, mark)
	require.NoError(t, l.readControl())
	require.False(t, l.control.paused.Load(), "a paused lane reads it every time")
}

// A request to cancel that was stored beyond what the holder has in hand, and before it listened,
// was not told.
func TestReadMarks_ACancelBeforeTheHolderListens(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	l := newLaneOf(t, s)
	_, _, err := s.Publish(t.Context(), nats.NewMsg(wire.CancelSubject(s.Fleet, protocol.DefaultPool, l.hash, "c")))
	require.NoError(t, err)
	require.True(t, l.mail.listen())
	l.fill()
	require.NoError(t, l.readControl())
	require.Contains(t, l.control.cancelledUnread, protocol.CallID("c"))
}

// A holder of many lanes reads ten mailboxes a second without a hint, so lanes that wait cost
// nothing each; and it lists the pause marks of all of them together.
func TestPause_LanesThatWaitAreNotReadOneByOne(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	l := newLaneOf(t, s)
	h := l.holder
	h.held = map[wire.LaneHash]*heldLane{l.hash: l}
	require.Equal(t, readPeriod, h.readPeriod())
	mark, _, err := s.Publish(t.Context(), nats.NewMsg(wire.PauseSubject(s.Fleet, protocol.DefaultPool, l.hash)))
	require.NoError(t, err)
	h.checkPauses(t.Context())
	require.True(t, l.control.queried.Swap(false), "the operator was lost before it asked the holder")
	l.control.paused.Store(true)
	h.checkPauses(t.Context())
	require.False(t, l.control.queried.Load(), "it knows the mark")
	requireRemoved(t, s, mark)
	h.checkPauses(t.Context())
	require.True(t, l.control.queried.Load())

	for i := range 4999 {
		h.held[wire.LaneHash(strconv.Itoa(i))] = l
	}
	require.Equal(t, 500*time.Second, h.readPeriod())
}
