package hostenv_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/test/processtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tree makes files below a directory: a name that ends in a slash is a directory, and "a -> b" is a
// link to b.
func tree(t *testing.T, root string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if name[len(name)-1] == '/' {
			require.NoError(t, os.MkdirAll(path, 0o755))
			continue
		}
		processtest.WriteProgram(t, path, []byte("#!/bin/sh\necho "+name+"\n"))
	}
}

func link(t *testing.T, to, at string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.Symlink(to, at))
}

// home is a home directory without symbolic links in its path.
func home(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	return dir
}
