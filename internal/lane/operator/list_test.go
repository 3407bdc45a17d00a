package operator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestLook_TheOldestIsFirst also when this machine takes all calls for ones of the future, because
// it measured the server's clock while it was slow, so that none has an age.
func TestLook_TheOldestIsFirst(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	o, err := New(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	p, err := lane.NewPublisher(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	want := []protocol.Lane{"account/d", "account/c", "account/b", "account/a"}
	for _, name := range want[:3] {
		call := &protocol.Call{
			ID: wire.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool,
			Resources: []protocol.Use{{Key: protocol.ResourceKey(name), Access: protocol.Exclusive}},
			Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: wire.Noop{},
		}
		require.NoError(t, p.Enqueue(t.Context(), lane.Outgoing{Call: call}))
	}
	_, err = o.Pause(t.Context(), protocol.DefaultPool, want[3]) // it has no call
	require.NoError(t, err)

	found, _, err := o.survey(t.Context(), protocol.DefaultPool, "*")
	require.NoError(t, err)
	lanes, err := o.readStates(t.Context(), protocol.DefaultPool, found, time.Now().Add(-time.Hour))
	require.NoError(t, err)
	var names []protocol.Lane
	for _, status := range lanes {
		require.Zero(t, status.OldestMS)
		names = append(names, status.Lane)
	}
	require.Equal(t, want, names)
}

// TestFind_HasPagesAndWords: each lane is on one page, oldest first, and words are those of names.
func TestFind_HasPagesAndWords(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	o, err := New(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	p, err := lane.NewPublisher(t.Context(), f.NC, protocol.DefaultFleet)
	require.NoError(t, err)
	names := []protocol.Lane{"account/One", "account/two", "build/one", "build/two", "build/three"}
	for _, name := range names {
		call := &protocol.Call{
			ID: wire.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool,
			Resources: []protocol.Use{{Key: protocol.ResourceKey(name), Access: protocol.Exclusive}},
			Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: wire.Noop{},
		}
		require.NoError(t, p.Enqueue(t.Context(), lane.Outgoing{Call: call}))
	}
	for _, test := range []struct {
		query   Query
		want    []protocol.Lane
		leftOut int
	}{
		{Query{}, names, 0},
		{Query{Limit: 2}, names[:2], 3},
		{Query{Skip: 2, Limit: 2}, names[2:4], 1},
		{Query{Skip: 4, Limit: 2}, names[4:], 0},
		{Query{Skip: 9, Limit: 2}, nil, 0},
		{Query{Words: "one"}, []protocol.Lane{names[0], names[2]}, 0},
		{Query{Words: "T BUILD"}, names[3:], 0},
		{Query{Words: "one", Limit: 1}, names[:1], 1},
		{Query{Words: "one", Skip: 1}, names[2:3], 0},
		{Query{Words: "build/three"}, names[4:], 0},
		{Query{Words: "none"}, nil, 0},
	} {
		list, err := o.Find(t.Context(), protocol.DefaultPool, test.query)
		require.NoError(t, err)
		var found []protocol.Lane
		for i := range list.Lanes {
			found = append(found, list.Lanes[i].Lane)
		}
		require.Equal(t, test.want, found, "%+v", test.query)
		require.Equal(t, test.leftOut, list.LeftOut, "%+v", test.query)
	}
}

func TestHoldings_TheLaterClaimCounts(t *testing.T) {
	t.Parallel()
	const name = protocol.Lane("account/a")
	tells := func(worker protocol.WorkerID, epoch uint64) *lane.Report {
		return &lane.Report{WorkerID: worker, Lanes: []lane.HeldLane{{Lane: name, Epoch: epoch}}}
	}
	for what, test := range map[string]struct {
		answers []*lane.Report
		epoch   uint64
		holder  protocol.WorkerID
	}{
		"nobody answers":      {nil, 5, ""},
		"one":                 {[]*lane.Report{tells("w", 5)}, 5, "w"},
		"a later claim":       {[]*lane.Report{tells("old", 5), tells("new", 7)}, 7, "new"},
		"a later claim first": {[]*lane.Report{tells("new", 7), tells("old", 5)}, 7, "new"},
		"an earlier claim":    {[]*lane.Report{tells("old", 5)}, 7, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := holdings{}
			for _, a := range test.answers {
				h.add(a)
			}
			holder := h.of(wire.HashLane(name), &store.StoredClaim{Epoch: test.epoch})
			if test.holder == "" {
				require.Nil(t, holder)
				return
			}
			require.Equal(t, test.holder, holder.worker)
			require.Nil(t, h.of(wire.HashLane(name), nil), "without a claim nobody holds it")
		})
	}
}
