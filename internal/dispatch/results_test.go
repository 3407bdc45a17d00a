package dispatch_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/dispatch"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// What a call wrote before it ended is passed on before its result.
func TestResults_OutputComesBeforeTheResult(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	results := dispatch.NewResults(r.NC, r.Name, func(err error) { t.Error(err) })
	call := newCalls(1)[0]
	const pieces, rounds = 20, 300
	seen, ended := 0, make(chan int, 1)
	watch, err := results.Watch(t.Context(), call.SessionID,
		func(*protocol.Result) { ended <- seen },
		func(*wire.Frame) { seen++ })
	require.NoError(t, err)
	t.Cleanup(watch.Stop)
	worker := r.Connect()
	for round := range rounds {
		for i := range pieces {
			frame, err := wire.EncodeFrame(&wire.Frame{CallID: call.ID, Seq: uint64(i), Kind: wire.FrameStdout, WorkerID: "w", Attempt: 1, Data: protocol.Bytes("x")})
			require.NoError(t, err)
			require.NoError(t, worker.Publish(wire.OutputSubject(r.Name, call.SessionID, call.ID), frame))
		}
		result := wire.NewResult(&call, protocol.StatusOK, nil)
		result.Value = protocol.CommandRunResult{}
		body, err := wire.EncodeResult(&result)
		require.NoError(t, err)
		require.NoError(t, worker.Publish(wire.DoneSubject(r.Name, call.SessionID, call.ID), body))
		require.Equal(t, (round+1)*pieces, <-ended)
	}
}
