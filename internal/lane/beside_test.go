package lane

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Where much waits the next call starts before more is read, once requests to cancel are heard and
// unless somebody asks about the lane, which may be paused.
func TestWork_ReadsBesideWhatRuns(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change    func(*held)
		starts    bool
		cancelled bool
	}{
		"much waits":              {func(*held) {}, true, false},
		"little waits":            {func(l *held) { l.mail.singly = false }, false, false},
		"cancels are not listed":  {func(l *held) { l.mail.listed = false }, false, false},
		"somebody asks":           {func(l *held) { l.marks.asked.Store(true) }, false, false},
		"a cancel has been heard": {func(l *held) { l.mail.cancels = []protocol.CallID{"next"} }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLaneOf(t, openStore(t))
			require.True(t, l.mail.listen())
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // nothing can be read
			l.ctx, l.starting, l.seat = ctx, t.Context(), newSeat()
			l.ahead, l.running.finished = newAhead(l.holder.store), make(chan finished, 1)
			l.mail.opened, l.mail.singly, l.mail.listed = true, true, true
			e := &core.Entry{Call: &protocol.Call{ID: "next", Payload: protocol.Noop{}, Delivery: protocol.Idempotent}}
			require.True(t, l.admit(e))
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
