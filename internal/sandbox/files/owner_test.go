//go:build unix

package files_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestWrite_TheOwnerStays(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	dir := t.TempDir()
	f := open(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "theirs"), []byte("old"), 0o600))
	require.NoError(t, os.Chown(dir, 1234, 2345))
	require.NoError(t, os.Chown(filepath.Join(dir, "theirs"), 3456, 4567))
	for _, path := range []string{"theirs", "new", "a/b/new"} {
		_, err := f.Write(t.Context(), protocol.FilesWrite{Path: path, Content: []byte("x")})
		require.NoError(t, err)
	}
	owner := func(name string) [2]uint32 {
		var stat syscall.Stat_t
		require.NoError(t, syscall.Lstat(filepath.Join(dir, name), &stat))
		return [2]uint32{stat.Uid, stat.Gid}
	}
	require.Equal(t, [2]uint32{3456, 4567}, owner("theirs"))
	for _, name := range []string{"new", "a", "a/b", "a/b/new"} {
		require.Equal(t, [2]uint32{1234, 2345}, owner(name), name)
	}
}
