package lane

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Removals that got lost are made up for before the lane is released, and nothing else is removed: not what is in
// hand, not the mark of a paused lane, and no call without a result, even if it was passed over.
func TestSweep_OnlyWhatIsSettledGoes(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	s, err := store.Open(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	const name = protocol.Lane("account/a")
	l := &held{
		holder: &Holder{store: s, options: Options{Fleet: s.Fleet, Pool: protocol.DefaultPool}},
		lane:   name, hash: name.Hash(), ctx: t.Context(), schedule: newSchedule(), ready: 3, thrown: time.Now(),
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
	put := func() *entry {
		t.Helper()
		call := &protocol.Call{
			ID: protocol.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool, Delivery: protocol.Idempotent,
			Resources: []protocol.Use{{Key: protocol.ResourceKey(name), Access: protocol.Exclusive}}, Payload: protocol.Noop{}, IssuedAt: time.Now(),
		}
		body, err := protocol.EncodeCall(call)
		require.NoError(t, err)
		return &entry{call: call, seq: store(&nats.Msg{Subject: s.Fleet.CallSubject(protocol.DefaultPool, l.hash, call.ID), Data: body})}
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
	result := protocol.NewResult(settled.call, protocol.StatusOK, nil)
	require.NoError(t, s.StoreResult(t.Context(), &result))
	require.True(t, l.schedule.add(inHand))
	started := mark(s.Fleet.StartSubject(protocol.DefaultPool, l.hash, inHand.call.ID, 1))
	mark(s.Fleet.CancelSubject(protocol.DefaultPool, l.hash, settled.call.ID))
	own := mark(s.Fleet.HandbackSubject(protocol.DefaultPool, l.hash, l.ready, 1))
	mark(s.Fleet.HandbackSubject(protocol.DefaultPool, l.hash, l.ready-1, 1)) // of a ready message before

	more, err := l.sweep()
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, []uint64{paused, inHand.seq, started, own}, left())
	require.Zero(t, l.thrown)

	l.thrown = time.Now()
	passed := put()
	_, err = l.sweep()
	require.ErrorIs(t, err, errNotSettled)
	require.Equal(t, []uint64{paused, inHand.seq, started, own, passed.seq}, left())
	more, err = l.sweep()
	require.NoError(t, err)
	require.True(t, more, "it is read again")
	next, err := l.mail.next(t.Context())
	require.NoError(t, err)
	require.Equal(t, passed.seq, next.seq)
}

// When a call was passed over, what is behind it is read again. What is in hand stays in the mailbox, and nothing counts twice.
func TestAccept_WhatIsReadAgainStays(t *testing.T) {
	t.Parallel()
	const name = protocol.Lane("account/a")
	fleet := protocol.DefaultFleet
	l := &held{
		holder: &Holder{options: Options{}.withDefaults()}, lane: name, hash: name.Hash(), ctx: t.Context(), schedule: newSchedule(), ready: 3, delivered: 2,
	}
	call := &protocol.Call{
		ID: protocol.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool, Delivery: protocol.Idempotent,
		Resources: []protocol.Use{{Key: protocol.ResourceKey(name), Access: protocol.Exclusive}}, Payload: protocol.Noop{}, IssuedAt: time.Now(),
	}
	body, err := protocol.EncodeCall(call)
	require.NoError(t, err)
	subject := fleet.CallSubject(protocol.DefaultPool, l.hash, call.ID)
	for range 2 {
		l.accept(&letter{seq: 4, subject: subject, body: body})
		l.accept(&letter{seq: 5, subject: fleet.HandbackSubject(protocol.DefaultPool, l.hash, l.ready, 1)})
	}
	require.Equal(t, 1, l.schedule.len())
	require.Len(t, l.handbacks, 1)
	require.Empty(t, l.litter)
	l.accept(&letter{seq: 6, subject: subject, body: body})
	require.Equal(t, []uint64{6}, l.litter, "put twice")
}
