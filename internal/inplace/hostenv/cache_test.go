package hostenv_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
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

	info, err := os.Stat(filepath.Join(caches.Dir, "used", "used"))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), info.ModTime(), time.Hour, "it was used until now")
	foreign := filepath.Join(caches.Dir, ".others", "files")
	require.NoError(t, os.MkdirAll(foreign, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "x"), make([]byte, 2000), 0o644))
	caches.Bytes = 500
	cacheOf(t, caches, "next")
	require.NoFileExists(t, newFile, "a session that begins makes room")
	require.FileExists(t, usedFile, "but no more than is needed")
	require.FileExists(t, filepath.Join(foreign, "x"), "what is no cache is left alone")
}

// TestCaches_OpenWaitsForARemoval, and then has a directory all the same.
func TestCaches_OpenWaitsForARemoval(t *testing.T) {
	t.Parallel()
	caches := hostenv.Caches{Dir: t.TempDir()}
	first := cacheOf(t, caches, "x")
	require.NoError(t, first.Close())
	removing := flock.New(filepath.Join(caches.Dir, "x", "lock"))
	require.NoError(t, removing.Lock())
	opened := make(chan error)
	require.NoError(t, os.Remove(filepath.Join(caches.Dir, "x", "used")))
	go func() {
		c, err := caches.Open(t.Context(), "x", "/home/ada/x")
		if err == nil {
			_, err = os.Stat(c.Files())
			err = errors.Join(err, c.Close())
		}
		opened <- err
	}()
	require.Eventually(t, func() bool { // it is on its way
		_, err := os.Stat(filepath.Join(caches.Dir, "x", "used"))
		return err == nil
	}, time.Minute, time.Millisecond)
	require.NoError(t, os.RemoveAll(first.Files()))
	require.NoError(t, removing.Close())
	require.NoError(t, <-opened)
}

// TestCache_IsFoundByPrograms where sandboxes have it.
func TestCache_IsFoundByPrograms(t *testing.T) {
	t.Parallel()
	c := cacheOf(t, hostenv.Caches{Dir: t.TempDir()}, "x")
	for view, at := range map[*hostenv.View]string{&isolated: "/cache", &paths: c.Files()} {
		require.Equal(t, isolation.Mount{Host: c.Files(), Guest: at, Write: true, Cache: true}, c.Mount(*view))
		require.Equal(t, map[string]string{
			"GOMODCACHE": at + "/go/mod", "GOCACHE": at + "/go/build", "npm_config_cache": at + "/npm", "PIP_CACHE_DIR": at + "/pip", "UV_CACHE_DIR": at + "/uv",
			"CARGO_HOME": at + "/cargo", "GRADLE_USER_HOME": at + "/gradle", "YARN_CACHE_FOLDER": at + "/yarn", "COREPACK_HOME": at + "/corepack",
			"MAVEN_OPTS": "-Dmaven.repo.local=" + at + "/maven",
		}, c.Env(*view))
	}
}

// TestCaches_AnOwnCacheThatIsTooBigLosesParts: the oldest results of the compiler, then what is
// largest.
func TestCaches_AnOwnCacheThatIsTooBigLosesParts(t *testing.T) {
	t.Parallel()
	caches := hostenv.Caches{Dir: t.TempDir(), Bytes: 1000}
	c := cacheOf(t, caches, "own")
	oldest, newest, npm := fill(t, c, "go/build/bb/1-d", 300, time.Hour), fill(t, c, "go/build/aa/2-d", 300, 0), fill(t, c, "npm/x", 600, 0)
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
