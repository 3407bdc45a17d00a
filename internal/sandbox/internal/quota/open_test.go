//go:build linux

package quota

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/quota/quotatest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// TestOpen_AgainFindsTheSame: a directory that outlives its sandbox keeps its number, also after a
// process was killed.
func TestOpen_AgainFindsTheSame(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		dirs := below(t, disk, "workspace", "scratch")
		first, err := Open(dirs...)
		require.NoError(t, err)
		require.NoError(t, first.Limit(Limits{Bytes: space}))
		require.NoError(t, first.dir.Close(), "it is killed")
		require.NoError(t, os.WriteFile(filepath.Join(dirs[0], "x"), make([]byte, 1<<20), 0o600))
		second, err := Open(dirs...)
		require.NoError(t, err)
		require.Equal(t, first.ID(), second.ID())
		require.NoError(t, second.Limit(Limits{Bytes: 2 * space}))
		require.GreaterOrEqual(t, usage(t, second).Bytes, int64(1<<20))
		require.NoError(t, second.Close())
		requireBooks(t, disk, 1, 0)
	})
}

// TestOpen_RemovesWhatKilledProcessesLeft, and not the limits of those that live.
func TestOpen_RemovesWhatKilledProcessesLeft(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		dirs := below(t, disk, "killed/workspace", "killed/scratch")
		killed, err := Open(dirs...)
		require.NoError(t, err)
		require.NoError(t, killed.Limit(Limits{Bytes: space}))
		require.NoError(t, killed.dir.Close())
		alive, _ := project(t, disk, "alive", Limits{Bytes: space})
		require.NoError(t, os.RemoveAll(filepath.Join(disk, "killed")))
		requireBooks(t, disk, 1, 2)
		removeStale(alive.dir)
		requireBooks(t, disk, 1, 1)
		n, err := get(alive.dir, alive.ID())
		require.NoError(t, err)
		require.True(t, n.limited())
		require.NotEqual(t, killed.ID(), alive.ID())
	})
}

// TestOpen_SideBySideNumbersDiffer, although all try the same ones.
func TestOpen_SideBySideNumbersDiffer(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		chosen := candidate
		defer func() { candidate = chosen }()
		var tried struct {
			sync.Mutex
			n uint32
		}
		candidate = func() uint32 {
			tried.Lock()
			defer tried.Unlock()
			tried.n++
			return First + tried.n/8
		}
		const many = 40
		projects := make([]*Project, many)
		var wg sync.WaitGroup
		for i := range projects {
			dirs := below(t, disk, filepath.Join(string(rune('a'+i%26)), string(rune('a'+i/26))))
			wg.Go(func() {
				var err error
				if projects[i], err = Open(dirs...); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		ids := map[uint32]bool{}
		for _, p := range projects {
			require.Equal(t, int64(1), usage(t, p).Files)
			ids[p.ID()] = true
			require.NoError(t, p.Close())
		}
		require.Len(t, ids, many)
		t.Logf("%d numbers tried for %d projects", tried.n, many)
	})
}

// TestOpen_CountsWhatWasThere, and can be changed as before.
func TestOpen_CountsWhatWasThere(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		dirs := below(t, disk, "workspace", "scratch")
		dir := dirs[0]
		require.NoError(t, os.Chown(dir, nobody, nobody))
		exit, said := shell(t, dir, `mkdir -p a/b && head -c 1000000 /dev/zero >a/b/x && ln a/b/x y && ln -s a/b/x link && ln -s nowhere a/link &&
			mkfifo pipe && touch plain && chmod 0 plain a/b && : >outside`)
		require.Zero(t, exit, said)
		require.NoError(t, os.Link(filepath.Join(dir, "outside"), filepath.Join(disk, "theirs")))
		before, err := os.Lstat(filepath.Join(dir, "link"))
		require.NoError(t, err)
		p, err := Open(dirs...)
		require.NoError(t, err)
		defer func() { require.NoError(t, p.Close()) }()
		// workspace, scratch, a, b, x, two links and plain
		requireFiles(t, p, 8)
		require.Greater(t, usage(t, p).Bytes, int64(1_000_000))
		exit, said = shell(t, dir, `chmod 700 a/b && mv link a/moved && mv a/link link && mv y a/y && rm -r a/b && [ -p pipe ] &&
			[ "$(readlink a/moved)" = a/b/x ] && [ "$(readlink link)" = nowhere ] && [ "$(stat -c %u a/moved)" = 65534 ] && echo inherited >a/new`)
		require.Zero(t, exit, said)
		requireFiles(t, p, 8) // b is gone, new is there
		after, err := os.Lstat(filepath.Join(dir, "a/moved"))
		require.NoError(t, err)
		require.Equal(t, before.ModTime(), after.ModTime())
		theirs, err := os.Open(filepath.Join(disk, "theirs"))
		require.NoError(t, err)
		defer theirs.Close()
		a, err := attributesOf(int(theirs.Fd()))
		require.NoError(t, err)
		require.Zero(t, a.project, "it has a name outside")
	})
}

// TestOpen_GoesOnWhereItWasCutShort: what was half done is done.
func TestOpen_GoesOnWhereItWasCutShort(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		dirs := below(t, disk, "workspace")
		for _, name := range []string{"a", "b", "c"} {
			require.NoError(t, os.WriteFile(filepath.Join(dirs[0], name), nil, 0o600))
		}
		top, err := os.Open(dirs[0])
		require.NoError(t, err)
		id, err := choose(top)
		require.NoError(t, err)
		require.NoError(t, top.Close())
		p, err := Open(dirs...)
		require.NoError(t, err)
		require.Equal(t, id, p.ID())
		require.Equal(t, int64(4), usage(t, p).Files)
		require.NoError(t, p.Close())
	})
}

// TestOpen_LeavesTheHostsProjectsAlone.
func TestOpen_LeavesTheHostsProjectsAlone(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		dir := below(t, disk, "theirs")[0]
		top, err := os.Open(dir)
		require.NoError(t, err)
		defer top.Close()
		require.NoError(t, change(int(top.Fd()), 1000, true))
		_, err = Open(below(t, disk, "theirs/workspace")...)
		why, ok := errors.AsType[*isolation.UnusableError](err)
		require.True(t, ok, "%v", err)
		require.Contains(t, why.Found, "belongs to project 1000 of the host")
		require.Error(t, Check(dir))
		_, err = Open(below(t, disk, "a")[0], t.TempDir())
		require.ErrorContains(t, err, "different file systems")
	})
}

// TestCheck_SaysWhatIsMissing.
func TestCheck_SaysWhatIsMissing(t *testing.T) { //nolint:paralleltest // as above
	err := Check(t.TempDir()) // most likely without
	if err != nil {
		why, ok := errors.AsType[*isolation.UnusableError](err)
		require.True(t, ok, "%v", err)
		t.Log(why, why.Advice)
	}
	quotatest.OnEach(t, func(t *testing.T, fs quotatest.FileSystem) {
		t.Helper()
		require.NoError(t, Check(fs.Mount(t, "prjquota")))
		err := Check(fs.Mount(t, "noquota"))
		why, ok := errors.AsType[*isolation.UnusableError](err)
		require.True(t, ok, "%v", err)
		require.Contains(t, why.Found, "is mounted without project quotas")
		require.Contains(t, why.Advice, "prjquota")
	})
}
