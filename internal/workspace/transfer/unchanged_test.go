package transfer

import (
	"crypto/rand"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// When a session has changed nothing, nothing is brought back: not even the list of its files is
// read. A directory that has not changed since is not read again, either.
func TestFetch_BringsNothingBackThatHasNotChanged(t *testing.T) {
	t.Parallel()
	servers := natsiotest.New(t, natsio.Topology{})
	connect := func() *fleet.Fleet {
		f := &fleet.Fleet{Name: servers.Name, NC: servers.Connect(), Logger: servers.Logger}
		require.NoError(t, f.Open(t.Context(), true))
		t.Cleanup(f.Close)
		return f
	}
	f := connect()
	_, err := connect().StartWorker(t.Context(), worker.Options{
		Options: lane.Options{Slots: 1, Linger: -1},
		Settings: sandboxes.Settings{
			Driver: process.New(nil), Caps: isolation.Caps{Driver: process.Name}, CacheBytes: math.MaxInt64,
		},
		Data: t.TempDir(),
	})
	require.NoError(t, err)
	dir := t.TempDir()
	const files = 1000
	for range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, rand.Text()+rand.Text()+rand.Text()+rand.Text()+rand.Text()), []byte("x"), 0o600))
	}
	options := Options{
		Fleet: f, Session: "s", Pool: protocol.DefaultPool, Dir: dir, Stamps: t.TempDir(), Warn: func(string) {}, Busy: func(string) {},
	}
	const list = files * 50 // bytes: the list of files has more, also compressed, as their names are random
	read := func(do func()) int {
		before := f.NC.Stats().InBytes
		do()
		return int(f.NC.Stats().InBytes - before)
	}
	var w *Workspace
	fetch := func() (written []string, bytes int) {
		bytes = read(func() {
			changes, before, err := w.Fetch(t.Context())
			require.NoError(t, err)
			require.Len(t, before, files+len(written))
			written = changes.Written
		})
		return written, bytes
	}
	for range 2 { // the second time the directory is there already
		w, err = Send(t.Context(), options)
		require.NoError(t, err)
		written, bytes := fetch()
		require.Empty(t, written)
		require.Less(t, bytes, list)
	}
	_, err = w.call(t.Context(), protocol.FilesWrite{Path: "made", Content: protocol.Bytes("new")}, protocol.Exclusive)
	require.NoError(t, err)
	written, bytes := fetch()
	require.Equal(t, []string{"made"}, written)
	require.Greater(t, bytes, list, "what the test measures")
	require.FileExists(t, filepath.Join(dir, "made"))
}

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
