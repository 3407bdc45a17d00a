package integration

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

// TestJavaScript_StandsStill is a worker that is stopped in the middle of a call: another one takes
// its lane over. When it goes on, it ends what it had begun, and takes calls in a new life.
func TestJavaScript_StandsStill(t *testing.T) {
	t.Parallel()
	js := newJavaScript(t)
	first := js.worker(t)
	publisher := js.publisher(t)
	call := note(t, "red", "hello", time.Second)
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: call}))
	js.awaitClaim(t, call)
	sandboxtest.Freeze(t, first.cmd.Process)
	second := js.worker(t)
	result := awaitResults(t, publisher, call)[0]
	require.Equal(t, protocol.StatusOK, result.Status, "%v", result.Error)
	require.Equal(t, 2, result.Attempt, "it may have been started before")
	first.signal(t, syscall.SIGCONT)
	second.stop(t)

	next := note(t, "red", "again", 0)
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: next}))
	require.NotEqual(t, result.WorkerID, awaitResults(t, publisher, next)[0].WorkerID)
	require.Equal(t, []string{string(call.ID) + " hello", string(next.ID) + " again"}, js.lines(t, "red"))
}
