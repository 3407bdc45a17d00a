package hostenv_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/hostenv"
)

// fill puts a file of that many bytes into a cache, last used so long ago.
func fill(t *testing.T, c *hostenv.Cache, name string, bytes int, ago time.Duration) string {
	t.Helper()
	path := filepath.Join(c.Files(), name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, make([]byte, bytes), 0o644))
	when := time.Now().Add(-ago)
	require.NoError(t, os.Chtimes(path, when, when))
	return path
}

func cacheOf(t *testing.T, caches hostenv.Caches, name string) *hostenv.Cache {
	t.Helper()
	c, err := caches.Open(t.Context(), name, "/home/ada/"+name)
	require.NoError(t, err)
	return c
}

// age makes a cache one that was last used so long ago.
func age(t *testing.T, caches hostenv.Caches, name string, ago time.Duration) {
	t.Helper()
	when := time.Now().Add(-ago)
	require.NoError(t, os.Chtimes(filepath.Join(caches.Dir, name, "used"), when, when))
}

// TestCaches_TheLeastRecentlyUsedGoes when all are over the bound, and none that is in use.
func TestCaches_TheLeastRecentlyUsedGoes(t *testing.T) {
	t.Parallel()
	caches := hostenv.Caches{Dir: filepath.Join(t.TempDir(), "caches")}
	old, used := cacheOf(t, caches, "old"), cacheOf(t, caches, "used")
	caches.Bytes = 1000
	newer := cacheOf(t, caches, "newer")
	oldFile, usedFile, newFile := fill(t, old, "pip/x", 400, 0), fill(t, used, "pip/x", 400, 0), fill(t, newer, "pip/x", 400, 0)
	require.NoError(t, os.Chmod(filepath.Dir(oldFile), 0o500), "as Go leaves modules")
	require.NoError(t, old.Close())
	require.FileExists(t, oldFile, "0 is no bound")
	age(t, caches, "used", 2*time.Hour)
	age(t, caches, "old", time.Hour)
	require.NoError(t, newer.Close())
	require.NoFileExists(t, oldFile)
	require.FileExists(t, usedFile)
	require.FileExists(t, newFile)
	require.NoError(t, used.Close())
	require.FileExists(t, usedFile)
}

// TestCaches_AnOwnCacheThatIsTooBigLosesParts: the oldest results of the compiler, then what is
// largest.
func TestCaches_AnOwnCacheThatIsTooBigLosesParts(t *testing.T) {
	t.Parallel()
	caches := hostenv.Caches{Dir: t.TempDir(), Bytes: 1000}
	c := cacheOf(t, caches, "own")
	oldest, newest, npm := fill(t, c, "go/build/aa/1-d", 300, time.Hour), fill(t, c, "go/build/bb/2-d", 300, 0), fill(t, c, "npm/x", 600, 0)
	require.NoError(t, c.Close())
	require.NoFileExists(t, oldest)
	require.FileExists(t, newest)
	require.FileExists(t, npm)

	c = cacheOf(t, caches, "own")
	mod, pip := fill(t, c, "go/mod/x@v1/x.go", 300, 0), fill(t, c, "pip/x", 900, 0)
	require.NoError(t, c.Close())
	require.NoFileExists(t, pip)
	require.NoFileExists(t, newest)
	require.FileExists(t, mod, "that was enough")
	require.FileExists(t, npm)
}

// TestCaches_WhatIsTooDeepGoes: nobody can hide bytes, or keep others from being counted.
func TestCaches_WhatIsTooDeepGoes(t *testing.T) {
	t.Parallel()
	caches := hostenv.Caches{Dir: t.TempDir(), Bytes: 1 << 30}
	c := cacheOf(t, caches, "deep")
	require.NoError(t, os.MkdirAll(filepath.Join(c.Files(), "x", strings.Repeat("d/", 200)), 0o755))
	link(t, "/", filepath.Join(c.Files(), "y", "root"))
	require.NoError(t, c.Close())
	require.NoDirExists(t, filepath.Join(c.Files(), "x"))
	require.DirExists(t, filepath.Join(c.Files(), "y"), "a link is not followed")
}

// TestCaches_OneOfAProject: a directory has one cache by whatever path, and others have others.
func TestCaches_OneOfAProject(t *testing.T) {
	t.Parallel()
	home := home(t)
	tree(t, home, "a/project/", "b/project/")
	link(t, "a", filepath.Join(home, "link"))
	name := func(dir string) string {
		t.Helper()
		name, err := hostenv.ProjectCache(filepath.Join(home, dir))
		require.NoError(t, err)
		require.NoError(t, hostenv.CheckCacheName(name))
		return name
	}
	require.Equal(t, name("a/project"), name("link/project"))
	require.NotEqual(t, name("a/project"), name("b/project"))
	_, err := hostenv.ProjectCache(filepath.Join(home, "missing"))
	require.Error(t, err)
}

// TestCaches_TwoSessionsAtOnce: none loses what it has while the other ends.
func TestCaches_TwoSessionsAtOnce(t *testing.T) {
	t.Parallel()
	caches := hostenv.Caches{Dir: t.TempDir(), Bytes: 10}
	first, second := cacheOf(t, caches, "x"), cacheOf(t, caches, "x")
	kept := fill(t, first, "npm/x", 100, 0)
	require.NoError(t, first.Close())
	require.FileExists(t, kept)
	require.NoError(t, second.Close())
	require.NoFileExists(t, kept)
}

func TestCheckCacheName(t *testing.T) {
	t.Parallel()
	require.NoError(t, hostenv.CheckCacheName("shared-1.x"))
	for _, name := range []string{"", ".", "..", "a/b", ".hidden", "a b", strings.Repeat("x", 101)} {
		require.Error(t, hostenv.CheckCacheName(name), name)
	}
}
