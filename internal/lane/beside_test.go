package lane

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Where much waits the next call starts before more is read, once requests to cancel are heard and
// unless somebody asks about the lane, which may be paused.
func TestWork_ReadsBesideWhatRuns(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change    func(*heldLane)
		starts    bool
		cancelled bool
	}{
		"much waits":              {func(*heldLane) {}, true, false},
		"little waits":            {func(l *heldLane) { l.mail.oneByOne = false }, false, false},
		"cancels are not listed":  {func(l *heldLane) { l.mail.listed = false }, false, false},
		"somebody asks":           {func(l *heldLane) { l.control.queried.Store(true) }, false, false},
		"a cancel has been heard": {func(l *heldLane) { l.mail.cancels = []protocol.CallID{"next"} }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLaneOf(t, openStore(t))
			require.True(t, l.mail.listen())
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // nothing can be read
			l.ctx, l.starting, l.slots = ctx, t.Context(), newLaneSlots(nil)
			l.lookups, l.running.finished = newEarlyLookups(l.holder.store), make(chan finished, 1)
			l.mail.opened, l.mail.oneByOne, l.mail.listed = true, true, true
			e := &core.Entry{Call: &protocol.Call{ID: "next", Payload: wire.Noop{}, Delivery: protocol.Idempotent}}
			require.True(t, l.enqueue(e))
			test.change(l)
			_, err := l.work()
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, test.starts, e.Running)
			require.Equal(t, test.cancelled, e.Cancelled)
			if e.Running {
				require.False(t, (<-l.running.finished).settled)
			}
		})
	}
}
