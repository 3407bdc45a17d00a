package transfer

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

func TestProgress_ShowsWhatTravelled(t *testing.T) {
	t.Parallel()
	var shown []string
	w := &Workspace{Options: Options{Busy: func(what string) { shown = append(shown, what) }}}
	w.shown("sending the workspace").add(2_500_000)
	require.Equal(t, []string{"sending the workspace: 2.5 MB"}, shown)
}

// The stamps of a directory are kept between commands, so that unchanged files are not read again.
// Without them, or with ones that cannot be read, every file is read.
func TestStamps_AreKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := &Workspace{Options: Options{Dir: "/somewhere", Stamps: filepath.Join(dir, "stamps")}}
	require.Empty(t, w.loadStamps())
	index := snapshot.Index{"a": {Stamp: snapshot.Stamp{Size: 1, Mod: 2, Change: 3, Inode: 4}, Content: "x"}}
	w.storeStamps(index)
	require.Equal(t, index, w.loadStamps())
	other := &Workspace{Options: Options{Dir: "/elsewhere", Stamps: w.Stamps}}
	require.Empty(t, other.loadStamps())
	other.storeStamps(index)
	old := time.Now().Add(-stampsKept - time.Hour)
	require.NoError(t, os.Chtimes(other.stampsFile(), old, old))
	w.storeStamps(index)
	require.NoFileExists(t, other.stampsFile(), "a directory that was not copied for long")
	require.NoError(t, os.WriteFile(w.stampsFile(), []byte("broken"), 0o600))
	require.Empty(t, w.loadStamps())

	none := &Workspace{Options: Options{Dir: "/somewhere"}}
	none.storeStamps(index)
	require.Empty(t, none.loadStamps())
}
