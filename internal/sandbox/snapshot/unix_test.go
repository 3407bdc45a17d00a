//go:build unix

package snapshot_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

func makeFIFO(tb testing.TB, path string) {
	tb.Helper()
	require.NoError(tb, syscall.Mkfifo(path, 0o644))
}

func TestRestore_AsRootGivesFilesAway(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("unsupported: only root gives files away")
		return
	}
	root := newRoot(t, tree{"old": {body: "x"}})
	require.NoError(t, os.Lchown(root.Name(), 4242, 4243))
	want := tree{"f": {body: "x"}, "d": {dir: true}, "d/l": {link: "/etc/passwd"}}
	c := saved(t, newRoot(t, want), nil)
	_, err := snapshot.Restore(t.Context(), root, c.tree, snapshot.Index{}, c.bodies, func(name string, _ bool) bool { return name == "old" })
	require.NoError(t, err)
	changes, err := saved(t, newRoot(t, tree{"e": {dir: true}, "e/f": {body: "y"}, "e/l": {link: "f"}, "f": {body: "z"}}), nil).to(t, root, nil, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"f.toolfleet-theirs"}, changes.Theirs)
	for _, name := range []string{"f", "d", "d/l", "e", "e/f", "e/l", "f.toolfleet-theirs"} {
		info, err := root.Lstat(name)
		require.NoError(t, err)
		stat, ok := info.Sys().(*syscall.Stat_t)
		require.True(t, ok)
		require.Equal(t, []uint32{4242, 4243}, []uint32{stat.Uid, stat.Gid}, name)
	}
	for _, name := range []string{"/etc/passwd", filepath.Join(root.Name(), "old")} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		stat, ok := info.Sys().(*syscall.Stat_t)
		require.True(t, ok)
		require.NotEqual(t, uint32(4242), stat.Uid, name)
	}
}

// TestAsNobody runs the tests on modes again as a user whom modes bind.
func TestAsNobody(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		t.Log("unsupported here: needs root and /proc; as another user the tests themselves are it")
		return
	}
	temp := t.TempDir()
	for d := temp; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	require.NoError(t, os.Chown(temp, 65534, 65534))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run", "^TestSave_|^TestLocked_|^TestSync_Table")
	cmd.Dir = temp
	cmd.Env = []string{"TMPDIR=" + temp}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestLocked_SaveLeavesModes")
}

func TestLocked_SaveLeavesModes(t *testing.T) {
	t.Parallel()
	root := newRoot(t, tree{"d": {dir: true, noMode: true}, "d/f": {body: "x", noMode: true}})
	manifest := saved(t, root, nil).manifest
	require.Len(t, manifest, 2)
	require.Equal(t, int64(1), manifest["d/f"].Size)
	require.Equal(t, manifest, saved(t, root, nil).manifest)
	info, err := root.Lstat("d")
	require.NoError(t, err)
	require.Equal(t, fs.ModeDir, info.Mode())
}

func TestLocked_SyncChangesWhatIsInside(t *testing.T) {
	t.Parallel()
	before := tree{
		"d": {dir: true, noMode: true}, "d/f": {body: "x", noMode: true}, "d/gone": {body: "x"},
		"d/e": {dir: true, mode: 0o500}, "d/e/f": {body: "x"},
	}
	after := tree{
		"d": {dir: true, noMode: true}, "d/f": {body: "new", noMode: true},
		"d/e": {dir: true, mode: 0o500}, "d/e/g": {body: "new"},
	}
	root := newRoot(t, before)
	base, want := saved(t, root, nil).manifest, saved(t, newRoot(t, after), nil)
	changes, err := want.to(t, root, base, nil)
	require.NoError(t, err)
	require.Equal(t, snapshot.Changes{
		Written: []string{"d/e/g", "d/f"}, Removed: []string{"d/e/f", "d/gone"}, Base: want.manifest,
	}, changes)
	require.Equal(t, want.manifest, saved(t, root, nil).manifest)
}
