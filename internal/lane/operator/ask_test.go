package operator

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestHoldings_TheLaterClaimCounts(t *testing.T) {
	t.Parallel()
	const name = protocol.Lane("account/a")
	tells := func(worker protocol.WorkerID, ready, delivery uint64) *lane.Answer {
		return &lane.Answer{WorkerID: worker, Lanes: []lane.HeldLane{{Lane: name, Ready: ready, Delivery: delivery}}}
	}
	for what, test := range map[string]struct {
		answers []*lane.Answer
		ready   uint64
		holder  protocol.WorkerID
	}{
		"nobody answers":                      {nil, 5, ""},
		"one":                                 {[]*lane.Answer{tells("w", 5, 1)}, 5, "w"},
		"a later delivery":                    {[]*lane.Answer{tells("old", 5, 1), tells("new", 5, 2)}, 5, "new"},
		"a later delivery, told first":        {[]*lane.Answer{tells("new", 5, 2), tells("old", 5, 1)}, 5, "new"},
		"a later ready message":               {[]*lane.Answer{tells("old", 5, 9), tells("new", 7, 1)}, 7, "new"},
		"a claim of an earlier ready message": {[]*lane.Answer{tells("old", 5, 9)}, 7, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := holdings{}
			for _, a := range test.answers {
				h.add(a)
			}
			holder := h.of(name.Hash(), &jetstream.RawStreamMsg{Sequence: test.ready})
			if test.holder == "" {
				require.Nil(t, holder)
				return
			}
			require.Equal(t, test.holder, holder.worker)
			require.Nil(t, h.of(name.Hash(), nil), "without a ready message nobody holds it")
		})
	}
}
