package operator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
