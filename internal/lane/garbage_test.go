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
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// newLaneOf is a lane without a goroutine of its own.
func newLaneOf(t *testing.T, s *store.Store) *heldLane {
	t.Helper()
	const name = protocol.Lane("account/a")
	l := &heldLane{
		holder: &Holder{store: s, options: Options{}.withDefaults(), host: idleHost{}}, ownership: &ownership{lane: name, hash: wire.HashLane(name), ctx: t.Context(), claim: &claim{}, ready: &readyMessage{}},
		schedule: core.NewSchedule(), garbage: newGarbage(s),
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
