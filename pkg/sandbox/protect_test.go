package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func TestCleanProtected(t *testing.T) {
	t.Parallel()
	for want, places := range map[string][]string{
		"":           nil,
		"a":          {"a", "./a/", "a/b/c", "a/../a"},
		"a b c/d ab": {"b", "c/d", "ab", "a"},
		"...":        {"..."},
	} {
		got, err := sandbox.CleanProtected(places)
		require.NoError(t, err, places)
		require.ElementsMatch(t, strings.Fields(want), got, places)
	}
	for place, fault := range map[string]string{
		"": "the workspace itself", ".": "the workspace itself", "a/..": "the workspace itself", "..": "relative to it", "a/../../b": "relative to it",
		"/a": "relative to it", "a\x00": "without NUL", "\xff": "UTF-8", strings.Repeat("a", 256): "256 bytes", strings.Repeat("a/", 3000) + "a": "6001 bytes",
	} {
		_, err := sandbox.CleanProtected([]string{"fine", place})
		require.ErrorContains(t, err, "protected place", "%.10q", place)
		require.ErrorContains(t, err, fault, "%.10q", place)
	}
	_, err := sandbox.CleanProtected(make([]string, sandbox.MaxProtected+1))
	require.ErrorContains(t, err, "257 protected places: at most 256")
}

func TestDefaultProtected(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files []string
		want  []string
	}{
		"nothing":    {want: nil},
		"a file":     {files: []string{"main.go"}, want: nil},
		"repository": {files: []string{".git/HEAD"}, want: []string{".git/config", ".git/hooks"}},
		"with modules and an editor": {
			files: []string{".git/config", ".git/modules/m/config", ".git/worktrees/w/HEAD", ".git/config.worktree", ".vscode/tasks.json"},
			want:  []string{".git/config", ".git/config.worktree", ".git/hooks", ".git/modules", ".git/worktrees", ".vscode"},
		},
		"worktree of another": {files: []string{".git", ".idea/x"}, want: []string{".git", ".idea"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, file := range c.files {
				path := filepath.Join(dir, file)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				require.NoError(t, os.WriteFile(path, nil, 0o600))
			}
			got, err := sandbox.DefaultProtected(dir)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	t.Run("submodules, and those of submodules", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		for file, content := range map[string]string{
			".git/config": "", ".gitmodules": "[submodule \"a b\"]\n\tpath = libs/a b\n\turl = x\n[submodule \"gone\"]\n\tpath = gone\n[submodule \"evil\"]\n\tPath=../evil\n",
			"libs/a b/.git": "gitdir: ../../.git/modules/a", "libs/a b/.gitmodules": "[submodule \"c\"]\npath=\"c\"\n", "libs/a b/c/.git": "gitdir: x",
			"other/.git": "gitdir: y",
		} {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600))
		}
		got, err := sandbox.DefaultProtected(dir)
		require.NoError(t, err)
		require.Equal(t, []string{".git/config", ".git/hooks", "libs/a b/.git", "libs/a b/c/.git"}, got)
	})
	_, err := sandbox.DefaultProtected(filepath.Join(t.TempDir(), "missing"))
	require.Error(t, err)
}
