package lane_test

import (
	"errors"
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

// A stream is deleted while a worker runs. It says so, nothing else about it, and goes on with one
// that is made again.
func TestMissing_AStreamThatIsDeletedIsTold(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{wire.CallsStream(protocol.DefaultFleet), wire.ResultsStream(protocol.DefaultFleet)} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			log := &lines{news: make(chan string, 1000)}
			f.logger = slog.New(slog.NewTextHandler(log, nil))
			h := f.hold(succeeds, lane.Options{AckWait: briefLease})
			p := f.publisher()
			before := newCall("s", exclusive("account/a"))
			put(t, p, before)
			f.await(p, before)
			require.Eventually(t, func() bool { return h.Held() == 0 }, patience, time.Millisecond)
			require.NoError(t, f.js.DeleteStream(t.Context(), stream))
			for line := range log.news {
				if strings.Contains(line, "level=ERROR") {
					require.Contains(t, line, stream)
					require.Contains(t, line, "nats stream restore")
					break
				}
			}
			require.Eventually(t, func() bool { return errors.Is(p.Streams(t.Context()), natsio.ErrNoStream) }, patience, 100*time.Millisecond)
			if stream == wire.CallsStream(protocol.DefaultFleet) {
				fault := p.Enqueue(t.Context(), []lane.Outgoing{{Call: newCall("s", exclusive("account/b"))}})[0]
				require.ErrorIs(t, fault, natsio.ErrNoStream)
				require.ErrorIs(t, fault, lane.ErrNotSent)
			}
			require.NoError(t, natsio.Ensure(t.Context(), f.js, natsio.Topology{}))
			require.Eventually(t, func() bool { return p.Streams(t.Context()) == nil }, patience, 100*time.Millisecond)
			after := newCall("s", exclusive("account/a"))
			put(t, p, after)
			require.Equal(t, protocol.StatusOK, f.await(p, after).Status)
			f.requireQuiet()
			h.stop()
		})
	}
}
