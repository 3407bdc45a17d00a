package core_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
)

// A call waits for what its lane waits for, from when no earlier call holds it up until it starts.
func TestWaitClock(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	const ms = time.Millisecond
	var c core.WaitClock
	first, second := &core.Entry{}, &core.Entry{}
	c.Start(first, at(0))
	require.Zero(t, first.Waited)
	c.Set(core.WaitsForSlot, at(10))
	c.Free(second, at(15))
	c.Set(core.WaitsForSlot, at(20))
	c.Set(core.WaitsForRate, at(30))
	c.Free(second, at(35)) // it was free before
	c.Set(core.WaitsForNothing, at(50))
	c.Start(second, at(60))
	require.Equal(t, core.Waited{core.WaitsForSlot: 15 * ms, core.WaitsForRate: 20 * ms}, second.Waited)
	require.Equal(t, at(15), second.FreeSince)
}
