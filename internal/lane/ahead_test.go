package lane_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Calls that wait in a lane are looked for among the results together.
func TestLane_OneLookForTheResultsOfAllThatWait(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	calls := newCalls(30, exclusive("account/x"))
	begun, goOn := make(chan struct{}), make(chan struct{})
	first := true
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		if first { // the lane's calls run one after the other
			first = false
			close(begun)
			<-goOn
		}
		return succeed(run)
	}), lane.Options{})
	put(t, p, calls[0])
	<-begun
	put(t, p, calls[1:]...)
	asked := f.overhear("$JS.API.DIRECT.GET." + wire.ResultsStream(protocol.DefaultFleet))
	close(goOn)
	for _, call := range calls {
		f.await(p, call)
	}
	require.LessOrEqual(t, len(asked.all()), 3, "one question, and one more when the lane was read in parts")
}
