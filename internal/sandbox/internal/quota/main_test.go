//go:build linux

package quota

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
