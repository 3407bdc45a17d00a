//go:build unix

package regular_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system/regular"
)

func TestRead_NeverWaits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	require.NoError(t, os.Symlink("pipe", filepath.Join(dir, "link")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "dir"), 0o755))
	for _, name := range []string{"pipe", "link", "dir"} {
		_, err := regular.Read(filepath.Join(dir, name), 10)
		require.ErrorIs(t, err, regular.ErrNot, name)
		_, err = regular.ReadIn(root, name, 10)
		require.ErrorIs(t, err, regular.ErrNot, name)
		require.Error(t, regular.Append(filepath.Join(dir, name), []byte("x")), name)
	}
	require.ErrorIs(t, regular.Append("/dev/null", nil), regular.ErrNot)
	_, err = regular.Read("/dev/zero", 10)
	require.ErrorIs(t, err, regular.ErrNot)
	_, err = regular.Read(filepath.Join(dir, "missing"), 10)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestRead_IsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(name, []byte(strings.Repeat("x", 2048)), 0o600))
	content, err := regular.Read(name, 2048)
	require.NoError(t, err)
	require.Len(t, content, 2048)
	_, err = regular.Read(name, 1024)
	require.ErrorContains(t, err, "is larger than 1 KiB")
	require.Equal(t, "is larger than 1 KiB", errors.Unwrap(err).Error(), "commands name the file themselves")
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	_, err = regular.ReadIn(root, "out", 1<<20)
	require.Error(t, err)
}

// A shell's --system <(command) is a pipe that the process was started with.
func TestRead_APipeOfThisProcess(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	go func() {
		_, _ = write.WriteString("from a command") // read below
		_ = write.Close()
	}()
	content, err := regular.Read(fmt.Sprintf("/dev/fd/%d", read.Fd()), 1<<10)
	require.NoError(t, err)
	require.Equal(t, "from a command", string(content))
}
