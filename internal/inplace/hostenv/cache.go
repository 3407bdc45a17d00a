package hostenv

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
)

// Caches is a user's directory of caches. Each has a directory there:
//
//	NAME/lock     held shared by every session that uses the cache
//	NAME/used     whose time is that of the last use
//	NAME/project  the workspace it is of
//	NAME/files    what sandboxes see, and can write to
//
// Nothing is removed from a cache that a session uses, so no session misses a file.
type Caches struct {
	// Dir is the directory; it is made when it is needed.
	Dir string
	// Bytes is how much all caches may take up; 0 is no bound. It is seen to when a session begins
	// and when it ends: while it runs its cache may be larger.
	Bytes int64
}

// Cache is a cache in use, until Close.
type Cache struct {
	Name string // of the cache

	caches Caches
	dir    string
	lock   *flock.Flock
}

// DefaultCacheBytes is how much the caches of a user may take up.
const DefaultCacheBytes = 10 << 30

var cacheName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// CheckCacheName returns an error that says what a name of a cache may be.
func CheckCacheName(name string) error {
	if !cacheName.MatchString(name) {
		return errors.New("a name is 1 to 100 letters, digits, dots, dashes and underscores, and begins with a letter or digit")
	}
	return nil
}

// ProjectCache is the name of the cache of a workspace: that of the directory, and a hash of its
// path without symbolic links.
func ProjectCache(workspace string) (string, error) {
	path, err := filepath.EvalSymlinks(workspace)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(path))
	base := regexp.MustCompile(`[^A-Za-z0-9._-]`).ReplaceAllString(filepath.Base(path), "_")
	return "project." + base[:min(len(base), 50)] + "." + hex.EncodeToString(sum[:8]), nil
}

// lockPause is the time between attempts to get a lock that another process holds.
const lockPause = 50 * time.Millisecond

// Open makes a cache if there is none, brings all of them below their bound, and holds it. While
// another session removes it, it waits.
func (c Caches) Open(ctx context.Context, name, project string) (*Cache, error) {
	cache := &Cache{Name: name, caches: c, dir: filepath.Join(c.Dir, name)}
	if err := os.MkdirAll(filepath.Join(cache.dir, "files"), 0o700); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	_, _ = cache.touch(), c.trim(name) // a cache that is too big is one all the same
	cache.lock = flock.New(filepath.Join(cache.dir, "lock"))
	if _, err := cache.lock.TryRLockContext(ctx, lockPause); err != nil {
		return nil, fmt.Errorf("cache %s: %w", name, err)
	}
	err := errors.Join(
		os.MkdirAll(cache.Files(), 0o700), // it may have been removed in between
		os.WriteFile(filepath.Join(cache.dir, "project"), []byte(project+"\n"), 0o600),
		cache.touch(),
	)
	if err != nil {
		return nil, fmt.Errorf("cache %s: %w", name, errors.Join(err, cache.lock.Close()))
	}
	return cache, nil
}

// Files is the directory that sandboxes write to.
func (c *Cache) Files() string { return filepath.Join(c.dir, "files") }

func (c *Cache) touch() error {
	return os.WriteFile(filepath.Join(c.dir, "used"), nil, 0o600)
}

// Close ends the use of the cache and brings all below their bound.
func (c *Cache) Close() error {
	return errors.Join(c.touch(), c.lock.Close(), c.caches.trim(c.Name))
}

// guestCache is where sandboxes with a root of their own have the cache.
const guestCache = "/cache"

// Mount is the cache as sandboxes with that view see it.
func (c *Cache) Mount(v View) isolation.Mount {
	if v.Root {
		return isolation.Mount{Host: c.Files(), Guest: guestCache, Write: true, Cache: true}
	}
	return isolation.Mount{Host: c.Files(), Guest: c.Files(), Write: true, Cache: true}
}

// Env are the variables by which programs find the cache.
func (c *Cache) Env(v View) map[string]string {
	env := map[string]string{}
	at := c.Mount(v).Guest
	for name, dir := range map[string]string{
		"GOMODCACHE": "go/mod", "GOCACHE": "go/build", "npm_config_cache": "npm", "PIP_CACHE_DIR": "pip", "UV_CACHE_DIR": "uv",
		"CARGO_HOME": "cargo", "GRADLE_USER_HOME": "gradle", "YARN_CACHE_FOLDER": "yarn", "COREPACK_HOME": "corepack",
	} {
		env[name] = filepath.Join(at, filepath.FromSlash(dir))
	}
	env["MAVEN_OPTS"] = "-Dmaven.repo.local=" + filepath.Join(at, "maven")
	return env
}

// stored is a cache as it lies there.
type stored struct {
	name  string
	used  time.Time
	bytes int64
}

// trim removes caches that no session uses, the least recently used first, until all are below the
// bound. Of last, which is as a rule the newest, it removes parts before the whole.
func (c Caches) trim(last string) error {
	if c.Bytes <= 0 {
		return nil
	}
	all, total, err := c.list()
	for _, s := range all {
		if total <= c.Bytes {
			break
		}
		freed, removeErr := c.shrink(s, total-c.Bytes, s.name == last)
		total, err = total-freed, errors.Join(err, removeErr)
	}
	return err
}

// list are the caches, the least recently used first, and how much they take up together.
func (c Caches) list() (all []stored, total int64, err error) {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, 0, err
	}
	for _, entry := range entries {
		if !entry.IsDir() || CheckCacheName(entry.Name()) != nil {
			continue
		}
		s := stored{name: entry.Name()}
		if info, err := os.Stat(filepath.Join(c.Dir, s.name, "used")); err == nil {
			s.used = info.ModTime()
		}
		for _, f := range filesBelow(filepath.Join(c.Dir, s.name)) {
			s.bytes += f.bytes
		}
		total += s.bytes
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b stored) int { return a.used.Compare(b.used) })
	return all, total, nil
}

// shrink removes a cache that no session uses, or as much of it as is too much: the results of Go's
// compiler one by one, as these may be, then what each program has, the largest first.
func (c Caches) shrink(s stored, tooMuch int64, parts bool) (freed int64, err error) {
	dir := filepath.Join(c.Dir, s.name)
	lock := flock.New(filepath.Join(dir, "lock"))
	if locked, err := lock.TryLock(); err != nil || !locked {
		return 0, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	if !parts {
		return s.bytes, system.RemoveIn(root, "files")
	}
	built := below(root, "files/go/build")
	slices.SortFunc(built, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range built {
		if freed >= tooMuch {
			return freed, nil
		}
		if root.Remove(f.path) == nil {
			freed += f.bytes
		}
	}
	areas, err := areasOf(root)
	for _, area := range areas {
		if freed >= tooMuch {
			break
		}
		err = errors.Join(err, system.RemoveIn(root, area.path))
		freed += area.bytes
	}
	return freed, err
}

// file is one, or what a directory has.
type file struct {
	path  string // in its root
	used  time.Time
	bytes int64
}

// areasOf are what each program has in a cache, the largest first.
func areasOf(root *os.Root) ([]file, error) {
	entries, err := fs.ReadDir(root.FS(), "files") // what was read counts
	var areas []file
	for _, entry := range entries {
		area := file{path: "files/" + entry.Name()}
		for _, f := range below(root, area.path) {
			area.bytes += f.bytes
		}
		areas = append(areas, area)
	}
	slices.SortFunc(areas, func(a, b file) int { return cmp.Compare(b.bytes, a.bytes) })
	return areas, err
}

func filesBelow(dir string) []file {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil
	}
	defer root.Close()
	return below(root, ".")
}

// Bounds of a cache's tree: a deeper or larger one counts as larger than any cache may be, and is
// removed.
const (
	deepest   = 64
	mostFiles = 1 << 20
	beyondAll = 1 << 50
)

// below are the files below a directory. Nothing is followed, and what cannot be read is left out.
func below(root *os.Root, dir string) []file {
	var all []file
	_ = fs.WalkDir(root.FS(), dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case len(all) >= mostFiles:
			all = append(all, file{path: path, bytes: beyondAll})
			return fs.SkipAll
		case err != nil:
			return nil //nolint:nilerr // it is left out
		case d.IsDir() && strings.Count(path, "/") > deepest:
			all = append(all, file{path: path, bytes: beyondAll})
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		if info, err := d.Info(); err == nil {
			all = append(all, file{path: path, used: info.ModTime(), bytes: info.Size()})
		}
		return nil
	})
	return all
}
