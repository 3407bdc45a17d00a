//go:build linux

package quota

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/quota/quotatest"
)

// nobody is a user that quotas hold.
const nobody = 65534

// shell runs a script in a directory as nobody.
func shell(t *testing.T, dir, script string) (exit int, said string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "bash", "-c", script)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// project makes a project of the directories workspace and scratch of a sandbox, in which nobody
// may write.
func project(t *testing.T, disk, name string, limits Limits) (*Project, string) {
	t.Helper()
	dirs := below(t, disk, name+"/workspace", name+"/scratch")
	for _, dir := range dirs {
		require.NoError(t, os.Chown(dir, nobody, nobody))
	}
	p, err := Open(dirs...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	require.NoError(t, p.Limit(limits))
	return p, dirs[0]
}

func usage(t *testing.T, p *Project) Usage {
	t.Helper()
	u, err := p.Usage()
	require.NoError(t, err)
	return u
}

// requireBooks checks how many projects of ours a file system knows. XFS lets go of what was
// removed a moment later.
func requireBooks(t *testing.T, disk string, used, limited int) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		haveUsed, haveLimited, err := Count(disk)
		require.NoError(c, err)
		require.Equal(c, used, haveUsed, "projects with files")
		require.Equal(c, limited, haveLimited, "projects with limits")
	}, settled, time.Millisecond)
}

// requireFiles checks how many files are counted for a project, as soon as what was removed no
// longer is.
func requireFiles(t *testing.T, p *Project, want int64) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		u, err := p.Usage()
		require.NoError(c, err)
		require.Equal(c, want, u.Files)
	}, settled, time.Millisecond)
}

// settled is the most that it takes until what was removed is no longer counted.
const settled = time.Minute

const (
	space = 4 << 20 // of a project
	files = 20
)

// TestProject_LimitHolds against every way to take up more, at the moment it is reached; what is
// beside is not touched.
func TestProject_LimitHolds(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		p, dir := project(t, disk, "one", Limits{Bytes: space, Files: files})
		neighbour, beside := project(t, disk, "two", Limits{Bytes: space, Files: files})
		for name, test := range map[string]struct {
			script string
			fails  bool
			full   bool
		}{
			"one file":         {`head -c 100000000 /dev/zero >x`, true, true},
			"many files":       {`for i in $(seq 20); do head -c 1000000 /dev/zero >$i || exit 1; done`, true, true},
			"scratch too":      {`head -c 3000000 /dev/zero >x; head -c 3000000 /dev/zero >../scratch/x`, true, true},
			"empty files":      {`touch $(seq 50)`, true, true},
			"directories":      {`mkdir $(seq 50)`, true, true},
			"links":            {`cd ../scratch && for i in $(seq 30); do ln -s . $i || exit 1; done`, true, true},
			"hard links":       {`head -c 3000000 /dev/zero >x; for i in $(seq 30); do ln x $i || exit 2; done; head -c 2000000 /dev/zero >y`, true, true},
			"a sparse file":    {`truncate -s 1T x`, false, false},
			"holes are filled": {`truncate -s 100M x; for i in $(seq 0 9); do head -c 1000000 /dev/zero | dd of=x bs=1M seek=$((i*10)) conv=notrunc 2>&1 || exit 1; done`, true, true},
			"all at once":      {`: >x; fallocate -l 4000K y && fallocate -l 50M x`, true, true},
			"deleted and open": {`exec 3>x; rm x; head -c 100000000 /dev/zero >&3`, true, false},
			"what is removed is free again": {
				`for i in 1 2 3; do head -c 3000000 /dev/zero >x || exit 1; rm x; touch $(seq 15) || exit 2; rm *; done`, false, false,
			},
		} {
			t.Run(name, func(t *testing.T) {
				exit, said := shell(t, dir, test.script)
				require.Equal(t, test.fails, exit != 0, said)
				require.Equal(t, test.full, p.Full(), "%+v", usage(t, p))
				require.LessOrEqual(t, usage(t, p).Bytes, int64(space))
				require.LessOrEqual(t, usage(t, p).Files, int64(files))
				requireFiles(t, neighbour, 2)
				exit, said = shell(t, beside, `head -c 3000000 /dev/zero >x && rm x`)
				require.Zero(t, exit, said)
				_, said = shell(t, dir, `rm -rf * ../scratch/*`)
				require.Empty(t, said)
				requireFiles(t, p, 2) // workspace and scratch
			})
		}
	})
}

// TestProject_NothingComesInUncounted: from outside, or from a neighbour, a file cannot be moved or
// linked in.
func TestProject_NothingComesInUncounted(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		_, dir := project(t, disk, "one", Limits{Bytes: space})
		_, beside := project(t, disk, "two", Limits{Bytes: space})
		outside := filepath.Join(disk, "file")
		require.NoError(t, os.WriteFile(outside, nil, 0o600))
		theirs := filepath.Join(beside, "file")
		require.NoError(t, os.WriteFile(theirs, nil, 0o600))
		for _, from := range []string{outside, theirs} {
			require.ErrorIs(t, os.Rename(from, filepath.Join(dir, "x")), unix.EXDEV)
			require.ErrorIs(t, os.Link(from, filepath.Join(dir, "x")), unix.EXDEV)
		}
	})
}

// TestProject_LimitsChange: a command may have less than its sandbox, and what is there already
// stays.
func TestProject_LimitsChange(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		p, dir := project(t, disk, "one", Limits{Bytes: space})
		exit, said := shell(t, dir, `head -c 2000000 /dev/zero >x`)
		require.Zero(t, exit, said)
		require.NoError(t, p.Limit(Limits{Bytes: 1 << 20}))
		exit, _ = shell(t, dir, `echo more >>y`)
		require.NotZero(t, exit)
		require.True(t, p.Full())
		exit, said = shell(t, dir, `tail -c 1 x >/dev/null && rm x && echo less >y`)
		require.Zero(t, exit, said)
		require.NoError(t, p.Limit(Limits{}))
		exit, said = shell(t, dir, `head -c 10000000 /dev/zero >x; touch $(seq 50)`)
		require.Zero(t, exit, said)
		require.False(t, p.Full())
	})
}

// TestProject_NothingIsLeft when it was closed and its directories were removed.
func TestProject_NothingIsLeft(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		before, err := os.ReadDir(disk)
		require.NoError(t, err)
		for range 3 {
			dirs := below(t, disk, "x/workspace", "x/scratch")
			p, err := Open(dirs...)
			require.NoError(t, err)
			require.NoError(t, p.Limit(Limits{Bytes: space, Files: files}))
			require.NoError(t, os.WriteFile(filepath.Join(dirs[0], "x"), make([]byte, 1<<20), 0o600))
			requireBooks(t, disk, 1, 1)
			require.NoError(t, p.Close())
			requireBooks(t, disk, 1, 0) // what is there is counted
			require.NoError(t, os.RemoveAll(filepath.Join(disk, "x")))
			requireBooks(t, disk, 0, 0)
		}
		require.NoError(t, Check(disk))
		requireBooks(t, disk, 0, 0)
		after, err := os.ReadDir(disk)
		require.NoError(t, err)
		require.Equal(t, before, after)
	})
}
