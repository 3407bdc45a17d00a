package gitguard_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/gitguard"
)

// TestGuard_RefusesDirectoriesThatItCannotList: git uses a repository in a directory that can be
// entered, and a command can make its own one so again.
func TestGuard_RefusesDirectoriesThatItCannotList(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]os.FileMode{".git": 0o311, "sub": 0o311, "closed": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtime.LockOSThread() // the thread ends with the test
			dir := workspace(t, commit+"git init -q sub; mkdir closed")
			require.NoError(t, os.Chmod(filepath.Join(dir, name), mode))
			t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, name), 0o755) })
			if os.Geteuid() == 0 { // who lists everything
				for above := filepath.Dir(dir); above != os.TempDir(); above = filepath.Dir(above) {
					require.NoError(t, os.Chmod(above, 0o755))
				}
				run(t, dir, "chown -R 65534:65534 .")
				require.NoError(t, unix.Setfsuid(65534))
				defer func() { _ = unix.Setfsuid(0) }()
			}
			_, err := gitguard.Protected(t.Context(), dir)
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, "chmod u+rwx it")
			_, err = gitguard.Look(t.Context(), dir)
			require.ErrorContains(t, err, "chmod u+rwx it")
		})
	}
}
