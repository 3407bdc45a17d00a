package lane_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A call that a lost worker may have started has its next start counted by a mark. A stream without
// room for the mark has to empty all the same: a call that waited for room would keep the slot that
// makes it.
func TestFull_ALaneWhoseWorkerWasLostMovesOn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.ensurePool(briefLease)
	call := newCall("s", exclusive("account/1"))
	raw(t, f, wire.ReadySubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane())), call)
	f.takeAndDie()
	f.fill(1)
	f.hold(newHistory(), lane.Options{})
	result := f.await(f.publisher(), call)
	require.Equal(t, protocol.StatusOK, result.Status)
	require.Equal(t, 2, result.Attempt)
	f.requireQuiet()
}

// A call waits in a lane that lost its ready message while the stream was full. Whoever takes the
// place that becomes free next makes the lane ready: a call that only joined the one that waits
// would leave no room for that.
func TestFull_WhatTakesTheLastPlaceMakesItsLaneReady(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	x := exclusive("account/x")
	waits, refused, last := newCall("s", x), newCall("s", x), newCall("s", x)
	raw(t, f, wire.CallSubject(protocol.DefaultFleet, waits.Pool, wire.HashLane(waits.Lane()), waits.ID), waits)
	f.fill(1)
	require.ErrorIs(t, p.Enqueue(t.Context(), []lane.Outgoing{{Call: refused}})[0], lane.ErrFull)
	f.fill(2)
	put(t, p, last)
	f.hold(newHistory(), lane.Options{})
	require.Equal(t, protocol.StatusOK, f.await(p, waits).Status)
	require.Equal(t, protocol.StatusOK, f.await(p, last).Status)
	f.requireQuiet()
}
