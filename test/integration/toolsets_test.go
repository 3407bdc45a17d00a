package integration

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/dispatch"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/toolstest"
)

// Every toolset, with workers that are processes of their own on a real server: calls of
// one session go to whichever worker holds its sandbox.
func TestToolsets_ThroughAFleet(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startWorkers(t, 2, b.flags)
	nc, err := nats.Connect("", append(b.server.Options(), nats.Timeout(patience))...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	dispatcher, err := dispatch.New(t.Context(), nc, protocol.DefaultFleet, nil)
	require.NoError(t, err)
	toolstest.Run(t, func(t *testing.T, call protocol.Call) *protocol.Result {
		t.Helper()
		result, err := dispatcher.One(t.Context(), &call)
		require.NoError(t, err)
		return result
	})
}
