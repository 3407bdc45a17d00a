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

// Removals that got lost are made up for before the lane is released, and nothing else is removed:
// not what is in hand, not the mark of a paused lane, and no call without a result, even if it was
// passed over.
func TestSweep_OnlyWhatIsSettledGoes(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	s, err := store.Open(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	const name = protocol.Lane("account/a")
	l := &held{
		holder: &Holder{store: s, options: Options{Fleet: s.Fleet, Pool: protocol.DefaultPool}},
		lane:   name, hash: name.Hash(), ctx: t.Context(), schedule: core.NewSchedule(),
		ready: &readyMessage{seq: 3}, garbage: garbage{thrown: time.Now()},
		mail: newMailbox(s, s.Fleet, protocol.DefaultPool, name.Hash()),
	}
	store := func(msg *nats.Msg) uint64 {
		t.Helper()
		seq, answer, err := s.Publish(t.Context(), msg)
		require.NoError(t, err)
		require.Equal(t, store.Accepted, answer)
		l.mail.cursor = seq + 1
		return seq
	}
	put := func() *core.Entry {
		t.Helper()
		call := &protocol.Call{
			ID: protocol.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool, Delivery: protocol.Idempotent,
			Resources: []protocol.Use{{Key: protocol.ResourceKey(name), Access: protocol.Exclusive}}, Payload: protocol.Noop{}, IssuedAt: time.Now(),
		}
		body, err := protocol.EncodeCall(call)
		require.NoError(t, err)
		return &core.Entry{Call: call, Seq: store(&nats.Msg{Subject: s.Fleet.CallSubject(protocol.DefaultPool, l.hash, call.ID), Data: body})}
	}
	mark := func(subject string) uint64 { return store(nats.NewMsg(subject)) }
	left := func() (seqs []uint64) {
		t.Helper()
		for from := uint64(0); ; from = seqs[len(seqs)-1] + 1 {
			msg, err := s.Next(t.Context(), l.mail.filter(), from)
			require.NoError(t, err)
			if msg == nil {
				return seqs
			}
			seqs = append(seqs, msg.Sequence)
		}
	}
	paused := mark(s.Fleet.PauseSubject(protocol.DefaultPool, l.hash))
	settled, inHand := put(), put()
	result := protocol.NewResult(settled.Call, protocol.StatusOK, nil)
	require.NoError(t, s.StoreResult(t.Context(), &result))
	require.True(t, l.schedule.Add(inHand))
	started := mark(s.Fleet.StartSubject(protocol.DefaultPool, l.hash, inHand.Call.ID, 1))
	mark(s.Fleet.CancelSubject(protocol.DefaultPool, l.hash, settled.Call.ID))
	mark(s.Fleet.FloorSubject(protocol.DefaultPool, l.hash, 7)) // of a claim before

	more, err := l.sweep()
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, []uint64{paused, inHand.Seq, started}, left())
	require.Zero(t, l.garbage.thrown)

	l.garbage.thrown = time.Now()
	passed := put()
	_, err = l.sweep()
	require.ErrorIs(t, err, errNotSettled)
	require.Equal(t, []uint64{paused, inHand.Seq, started, passed.Seq}, left())
	more, err = l.sweep()
	require.NoError(t, err)
	require.True(t, more, "it is read again")
	next, err := l.mail.next(t.Context())
	require.NoError(t, err)
	require.Equal(t, passed.Seq, next.Sequence)
}

// When a call was passed over, what is behind it is read again. What is in hand stays in the
// mailbox, and nothing counts twice.
func TestAccept_WhatIsReadAgainStays(t *testing.T) {
	t.Parallel()
	const name = protocol.Lane("account/a")
	fleet := protocol.DefaultFleet
	l := &held{
		holder: &Holder{options: Options{}.withDefaults()}, lane: name, hash: name.Hash(), ctx: t.Context(), schedule: core.NewSchedule(), claim: &claim{}, garbage: newGarbage(),
	}
	call := &protocol.Call{
		ID: protocol.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool, Delivery: protocol.Idempotent,
		Resources: []protocol.Use{{Key: protocol.ResourceKey(name), Access: protocol.Exclusive}}, Payload: protocol.Noop{}, IssuedAt: time.Now(),
	}
	body, err := protocol.EncodeCall(call)
	require.NoError(t, err)
	subject := fleet.CallSubject(protocol.DefaultPool, l.hash, call.ID)
	for range 2 {
		l.accept(&message{Sequence: 4, Subject: subject, Data: body})
	}
	require.Equal(t, 1, l.schedule.Len())
	require.Empty(t, l.garbage.seqs)
	l.accept(&message{Sequence: 6, Subject: subject, Data: body})
	require.Equal(t, []uint64{6}, l.garbage.seqs, "put twice")
}
