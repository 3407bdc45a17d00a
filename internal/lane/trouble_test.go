package lane_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// lines passes on what is logged, a line at a time.
type lines struct{ news chan string }

func (w *lines) Write(line []byte) (int, error) {
	w.news <- string(line)
	return len(line), nil
}

// next is the next line about a result that cannot be stored. On a busy machine there may be other
// troubles.
func (w *lines) next() string {
	for line := range w.news {
		if strings.Contains(line, "result cannot be stored") {
			return line
		}
	}
	return ""
}

// Calls of several lanes cannot store their results for a while, and try it again and again.
func TestTrouble_OfManyCallsIsToldOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	log := &lines{news: make(chan string, 1000)}
	f.logger = slog.New(slog.NewTextHandler(log, nil))
	p, g := f.publisher(), newGate()
	h := f.hold(g, lane.Options{Slots: 3})
	calls := []*protocol.Call{newCall("s", exclusive("account/a")), newCall("s", exclusive("account/b")), newCall("s", exclusive("account/c"))}
	for _, c := range calls {
		put(t, p, c)
		g.requireStart(t, c.ID)
	}
	require.NoError(t, f.js.DeleteStream(t.Context(), wire.ResultsStream(protocol.DefaultFleet)))
	tries := f.overhear("tf.result.>")
	for range calls {
		g.letGo <- struct{}{}
	}
	require.Contains(t, log.next(), `msg="result cannot be stored" lane=account/`)
	require.Eventually(t, func() bool { return len(tries.all()) > len(calls) }, patience, 10*time.Millisecond, "tried again")
	require.NoError(t, natsio.Ensure(t.Context(), f.js, natsio.Topology{}))
	for _, c := range calls {
		require.Equal(t, protocol.StatusOK, f.await(p, c).Status)
	}
	h.stop()
	close(log.news)
	require.Empty(t, log.next())
}
