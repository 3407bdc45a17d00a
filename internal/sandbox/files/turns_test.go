//go:build unix

package files_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Edits of one file under several names all hold.
func TestFS_EditsUnderSeveralNamesAllHold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fs := open(t, dir)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	require.NoError(t, os.Symlink("real", filepath.Join(dir, "dir")))
	require.NoError(t, os.Symlink("dir/file", filepath.Join(dir, "link")))
	const edits = 60
	var before, after strings.Builder
	for i := range edits {
		fmt.Fprintf(&before, "<%d>\n", i)
		fmt.Fprintf(&after, "[%d]\n", i)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "real", "file"), []byte(before.String()), 0o644))
	names := []string{"real/file", "dir/file", "link"}
	var group sync.WaitGroup
	for i := range edits {
		group.Go(func() {
			_, err := fs.Edit(t.Context(), protocol.FilesEdit{Path: names[i%len(names)], Edits: []protocol.FileEdit{{Old: fmt.Sprintf("<%d>", i), New: fmt.Sprintf("[%d]", i)}}})
			if err != nil {
				t.Errorf("edit %d: %v", i, err)
			}
		})
	}
	group.Wait()
	content, err := os.ReadFile(filepath.Join(dir, "real", "file"))
	require.NoError(t, err)
	require.Equal(t, after.String(), string(content))
}
