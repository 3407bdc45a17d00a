//go:build linux

package quota

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/pkg/sandbox/escapetest"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/quota/quotatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onDisk runs a test as root, with a file system that has quotas.
func onDisk(t *testing.T, test func(t *testing.T, disk string)) {
	t.Helper()
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		if os.Geteuid() != 0 {
			return // only root sets quotas
		}
		test(t, quotatest.Mount(t, "prjquota"))
	})
}

// below makes directories.
func below(t *testing.T, disk string, names ...string) (dirs []string) {
	t.Helper()
	for _, name := range names {
		dir := filepath.Join(disk, name)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		dirs = append(dirs, dir)
	}
	return dirs
}
