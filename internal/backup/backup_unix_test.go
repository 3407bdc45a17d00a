//go:build unix

package backup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The changes since a copy are shown, and undone.
func TestCopy_DiffersAndIsRestored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, content string) { require.NoError(t, os.WriteFile(at(name), []byte(content), 0o600)) }
	write("changed", "old\n")
	write("gone", "was here\n")
	write("binary", "a\xff")
	write("mode", "same\n")
	require.NoError(t, os.Mkdir(at(".git"), 0o700))
	write(".git/index", "before")
	require.NoError(t, os.Symlink("changed", at("link")))
	c := Of(t.Context(), dir, true, nil)
	t.Cleanup(c.Remove)
	require.NoError(t, c.err)
	text, err := c.Diff(t.Context())
	require.NoError(t, err)
	require.Empty(t, text)

	write("changed", "new\n")
	write("binary", "b\xff")
	write("made", "now\n")
	write(".git/index", "after")
	require.NoError(t, os.Remove(at("gone")))
	require.NoError(t, os.Chmod(at("mode"), 0o700))
	require.NoError(t, os.Remove(at("link")))
	require.NoError(t, os.Symlink("made", at("link")))
	text, err = c.Diff(t.Context())
	require.NoError(t, err)
	require.Equal(t, `Binary or large file binary differs
--- a/changed
+++ b/changed
@@ -1 +1 @@
-old
+new
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-was here
--- a/link
+++ b/link
@@ -1 +1 @@
-changed
\ No newline at end of file
+made
\ No newline at end of file
--- /dev/null
+++ b/made
@@ -0,0 +1 @@
+now
Mode of mode differs
`, text)

	changes, err := c.Restore(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"made"}, changes.Removed)
	require.ElementsMatch(t, []string{"binary", "changed", "gone", "link", "mode"}, changes.Written)
	for name, want := range map[string]string{"changed": "old\n", "gone": "was here\n", "binary": "a\xff", ".git/index": "after"} {
		content, err := os.ReadFile(at(name))
		require.NoError(t, err)
		require.Equal(t, want, string(content), name)
	}
	contents := string(c.contents)
	c.Remove()
	require.NoDirExists(t, contents)
	for reason, c := range map[string]*Copy{"--workspace": Of(t.Context(), "", true, nil), "--nats": Of(t.Context(), dir, false, nil)} {
		_, err := c.Restore(t.Context())
		require.ErrorContains(t, err, "not possible with")
		require.ErrorContains(t, err, reason)
		_, err = c.Diff(t.Context())
		require.ErrorContains(t, err, reason)
	}
}
