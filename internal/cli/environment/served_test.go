package environment

import (
	"testing"

	"github.com/stretchr/testify/require"

	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A process that is killed while it begins a session, behind any of its writes, leaves one that the
// client's next request begins. Sessions that were used before are never taken for such.
func TestServed_BeginsWhatWasInterrupted(t *testing.T) { //nolint:paralleltest // it sets the state directory
	state(t)
	s := &Served{openLocal(t, ""), "http", t.TempDir()}
	require.NoError(t, s.Make("made"))
	require.NoError(t, s.Make("remembered"))
	require.NoError(t, rememberWorkspace(s.location.data("remembered"), "remembered", s.workspace))
	for _, id := range []protocol.SessionID{"new", "made", "remembered"} {
		for range 2 {
			pool, err := s.Use(t.Context(), id, true, true)
			require.NoError(t, err, id)
			require.Equal(t, s.location.pool("http"), pool, id)
			require.True(t, s.mine(id), id)
		}
	}
	release, err := s.location.hold(t.Context(), "calls")
	require.NoError(t, err)
	release()
	turn(t, s.Local, "old", 1, loop.OutcomeAnswered, nil)
	for _, id := range []protocol.SessionID{"calls", "old"} {
		_, err = s.Use(t.Context(), id, true, false)
		require.ErrorIs(t, err, public.ErrSessionBusy, id)
	}
}

// What is done to a session that does not exist begins none.
func TestServed_BeginsNoneToChangeIt(t *testing.T) { //nolint:paralleltest // see above
	state(t)
	s := &Served{openLocal(t, ""), "http", ""}
	_, err := s.Use(t.Context(), "none", false, false)
	require.ErrorIs(t, err, public.ErrNotFound)
	_, err = s.Remove(t.Context(), "none", false)
	require.NoError(t, err)
	require.NoDirExists(t, s.location.data("none"))
}
