//go:build unix

package files_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/sandbox/files"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFS(t *testing.T) {
	t.Parallel()
	sandboxtest.RunFS(t, func(t *testing.T) (sandbox.FS, string) {
		t.Helper()
		dir := t.TempDir()
		return open(t, dir), dir
	})
}

func open(tb testing.TB, dir string) sandbox.FS {
	tb.Helper()
	fs, err := files.Open(dir)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, fs.Close()) })
	return sandbox.NewFS(fs.Do)
}
