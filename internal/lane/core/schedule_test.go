package core

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// drawUses draws the uses of a call from a small tree of keys, so that conflicts are common.
func drawUses(t *rapid.T) []protocol.Use {
	key := rapid.SampledFrom([]protocol.ResourceKey{
		"s/x", "s/x/a", "s/x/a/1", "s/x/a/2", "s/x/b", "s/x/b/1", "s/x/ab",
	})
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) protocol.Use {
		access := protocol.Shared
		if rapid.Bool().Draw(t, "exclusive") {
			access = protocol.Exclusive
		}
		return protocol.Use{Key: key.Draw(t, "key"), Access: access}
	}), 1, 3).Draw(t, "uses")
}

// seen is what a call observes: for each earlier call that it conflicts with, whether its effect is
// there.
type seen map[uint64]bool

// TestSchedule_EqualsTheSerialOrderAndDelaysNothing runs random calls in a random
// order of completion. Each must see exactly the effects that it would see if all
// ran one by one: those of every conflicting call before it, and of none after it. And a call
// that conflicts with no unfinished call before it is never kept waiting.
func TestSchedule_EqualsTheSerialOrderAndDelaysNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := NewSchedule()
		var all, running []*Entry
		finished := map[uint64]bool{}
		observed := map[uint64]seen{}
		seq := uint64(0)
		start := func() {
			for _, e := range s.Startable() {
				e.Running = true
				at := seen{}
				for _, other := range all {
					if other != e && other.Call.ConflictsWith(e.Call) {
						at[other.Seq] = finished[other.Seq]
					}
				}
				observed[e.Seq] = at
				running = append(running, e)
			}
		}
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		for range steps {
			if rapid.Bool().Draw(t, "add") || len(running) == 0 {
				seq += uint64(rapid.IntRange(1, 3).Draw(t, "gap"))
				e := &Entry{Seq: seq, Call: &protocol.Call{ID: wire.RandomCallID(), Resources: drawUses(t)}}
				require.True(t, s.Add(e))
				all = append(all, e)
			} else {
				i := rapid.IntRange(0, len(running)-1).Draw(t, "end")
				e := running[i]
				running = append(running[:i:i], running[i+1:]...)
				finished[e.Seq] = true
				s.Finish(e)
			}
			start()
			requireNothingDelayed(t, all, finished, observed)
		}
		for len(running) > 0 {
			e := running[0]
			running = running[1:]
			finished[e.Seq] = true
			s.Finish(e)
			start()
		}
		require.Zero(t, s.Len(), "everything ends")
		for _, e := range all {
			for other, effect := range observed[e.Seq] {
				require.Equal(t, other < e.Seq, effect, "call %d and the effect of %d", e.Seq, other)
			}
		}
	})
}

func requireNothingDelayed(t *rapid.T, all []*Entry, finished map[uint64]bool, started map[uint64]seen) {
	for i, e := range all {
		blocked := false
		for _, earlier := range all[:i] {
			blocked = blocked || !finished[earlier.Seq] && earlier.Call.ConflictsWith(e.Call)
		}
		_, running := started[e.Seq]
		require.Equal(t, !blocked, running, "call %d", e.Seq)
	}
}

func TestSchedule_KnowsACallOnce(t *testing.T) {
	t.Parallel()
	s := NewSchedule()
	use := []protocol.Use{{Key: "s/x", Access: protocol.Exclusive}}
	e := &Entry{Seq: 1, Call: &protocol.Call{ID: "c", Resources: use}}
	require.True(t, s.Add(e))
	require.False(t, s.Add(&Entry{Seq: 2, Call: &protocol.Call{ID: "c", Resources: use}}))
	require.Equal(t, e, s.Find("c"))
	s.Finish(e)
	s.Finish(e)
	require.Nil(t, s.Find("c"))
	require.Zero(t, s.Len())
}
