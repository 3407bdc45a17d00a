package loop_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestExampleJournal(t *testing.T) {
	t.Parallel()
	looptest.RunJournal(t, func(t *testing.T) loop.Journal {
		t.Helper()
		return &lineJournal{dir: t.TempDir()}
	})
}

// A journal that is cut off anywhere, as by a loss of power, leaves a session that goes on, and
// runs nothing a second time that the fleet has a result of.
func TestRun_GoesOnWhereverItsJournalEnds(t *testing.T) {
	t.Parallel()
	session, input := protocol.NewSessionID(), loop.Input{Text: "go", ID: wire.RandomCallID()}
	run := func(r *rig, dir string) (loop.TurnResult, error) {
		r.session, r.journal = session, &lineJournal{dir: dir}
		return r.runInput(t.Context(), t, input)
	}
	clean, dir := newRig(busy()...), t.TempDir()
	want, err := run(clean, dir)
	require.NoError(t, err)
	whole, err := os.ReadFile((&lineJournal{dir: dir}).file(session))
	require.NoError(t, err)
	conversation := settled(t, clean)

	dir = t.TempDir()
	for size := range len(whole) {
		if size != 0 && whole[size-1] != '\n' && size%397 != 0 {
			continue // every end of an event, and many places within
		}
		require.NoError(t, os.WriteFile((&lineJournal{dir: dir}).file(session), whole[:size], 0o600))
		r := newRig(busy()...)
		r.fleet.known = clean.fleet.known
		result, err := run(r, dir)
		require.NoError(t, err, size)
		require.Equal(t, want, result, size)
		if r.seed(t) == clean.seed(t) {
			require.Empty(t, r.fleet.ran(), size)
		} else { // it ends before its first turn, so nothing was sent
			require.Equal(t, clean.fleet.ran(), r.fleet.ran(), size)
		}
		if whole[max(size, 1)-1] == '\n' {
			require.Equal(t, conversation, settled(t, r), size)
		}
	}
}
