//go:build linux

package ns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// guard has the protected paths of a workspace on the host, see [isolation.Spec].Protect, and the
// identities of the files there. A file that replaces one from outside has no mount in the sandbox,
// which is then restarted. It is not safe for concurrent use.
type guard struct {
	dir    string
	places []string          // as they were asked for, in canonical form
	stand  map[string]string // contents of files that are made at missing paths

	protected []string // the paths, or what is protected instead
	pinned    []string // the directories that they are in
	found     map[string]fs.FileInfo
	made      map[string]fs.FileInfo // what was made, to be removed
}

// newGuard returns nil when there is nothing to protect.
func newGuard(dir string, spec *isolation.Spec) (*guard, error) {
	places, err := isolation.CleanProtected(spec.Protect)
	if err != nil || len(places) == 0 {
		return nil, err
	}
	g := &guard{dir: dir, places: places, stand: spec.Missing, made: map[string]fs.FileInfo{}}
	return g, g.look()
}

// look finds the paths, and makes those that are missing.
func (g *guard) look() error {
	root, err := os.OpenRoot(g.dir)
	if err != nil {
		return fmt.Errorf("protect: %w", err)
	}
	defer root.Close()
	found := map[string]fs.FileInfo{}
	var protected []string
	for _, place := range g.places {
		actual, err := g.find(root, place, found)
		if err != nil {
			return fmt.Errorf("protect %s: %w", place, err)
		}
		protected = append(protected, actual)
	}
	if g.protected, err = isolation.CleanProtected(protected); err != nil {
		return err
	}
	g.found, g.pinned = map[string]fs.FileInfo{}, nil
	for _, place := range g.protected {
		g.found[place] = found[place]
		for dir := path.Dir(place); dir != "."; dir = path.Dir(dir) {
			if g.found[dir] == nil {
				g.found[dir] = found[dir]
				g.pinned = append(g.pinned, dir)
			}
		}
	}
	slices.Sort(g.pinned) // outer ones first
	return nil
}

// find returns what is protected for a path, and records its identity and those of its parents.
func (g *guard) find(root *os.Root, place string, found map[string]fs.FileInfo) (string, error) {
	parts := strings.Split(place, "/")
	for i := range parts {
		at := path.Join(parts[:i+1]...)
		info, err := root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			if info, err = g.make(root, at); err != nil && i > 0 && (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) {
				return path.Dir(at), nil // nothing can write to that or, on a read-only mount, allow writes
			}
		}
		if err != nil {
			return "", err
		}
		if found[at] = info; info.Mode()&fs.ModeSymlink != 0 {
			return "", fmt.Errorf("%s is a symbolic link, which cannot be protected; name what it leads to instead, or protect other places", at)
		}
		if g.left(root, at, info) {
			g.made[at] = info
		}
		if made := g.made[at]; !info.IsDir() || made != nil && os.SameFile(info, made) {
			return at, nil
		}
	}
	return place, nil
}

// make makes what replaces a missing path: an empty directory, unless the caller has given the
// content of a file. Git does not see one, and no program takes it for its settings.
func (g *guard) make(root *os.Root, at string) (fs.FileInfo, error) {
	if err := g.makeEntry(root, at); err != nil {
		return nil, err
	}
	info, err := root.Lstat(at)
	if err != nil {
		return nil, err
	}
	g.made[at] = info
	above, err := root.Lstat(path.Dir(at))
	if err != nil {
		return nil, err
	}
	if owner, ok := above.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		err = root.Lchown(at, int(owner.Uid), int(owner.Gid))
	}
	return info, err
}

func (g *guard) makeEntry(root *os.Root, at string) error {
	content, isFile := g.stand[at]
	if !isFile {
		return root.Mkdir(at, 0o755)
	}
	file, err := root.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Close())
}

// left reports whether a file is one that a sandbox has made which came to no end.
func (g *guard) left(root *os.Root, at string, info fs.FileInfo) bool {
	content, isFile := g.stand[at]
	if !isFile || !info.Mode().IsRegular() || info.Size() != int64(len(content)) {
		return false
	}
	has, err := regular.ReadIn(root, at, int64(len(content)))
	return err == nil && string(has) == content
}

// wire returns the identities of the protected files for the first process.
func (g *guard) wire(places []string) []wire.Identity {
	all := make([]wire.Identity, len(places))
	for i, place := range places {
		all[i].Path = place
		if stat, ok := g.found[place].Sys().(*syscall.Stat_t); ok {
			all[i].Dev, all[i].Ino = stat.Dev, stat.Ino
		}
	}
	return all
}

// stale reports whether a path has another file or directory than the one that was found.
func (g *guard) stale() bool {
	if g == nil {
		return false
	}
	for at, was := range g.found {
		info, err := os.Lstat(path.Join(g.dir, at))
		if err != nil || !os.SameFile(was, info) {
			return true
		}
	}
	return false
}

// close removes what was made and is still empty. There must be no sandbox any more.
func (g *guard) close() error {
	if g == nil || len(g.made) == 0 {
		return nil
	}
	root, err := os.OpenRoot(g.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the places of what is protected: %w", err)
	}
	defer root.Close()
	for at, made := range g.made {
		err = errors.Join(err, g.removeMade(root, at, made))
	}
	clear(g.made)
	return err
}

// removeMade removes what was made, unless it was changed or replaced since.
func (g *guard) removeMade(root *os.Root, at string, made fs.FileInfo) error {
	info, err := root.Lstat(at)
	if err != nil || !os.SameFile(info, made) || !info.IsDir() && !g.left(root, at, info) {
		return nil
	}
	flags := unix.AT_REMOVEDIR
	if !info.IsDir() {
		flags = 0
	}
	above, err := root.Open(path.Dir(at))
	if err != nil {
		return fmt.Errorf("remove %s: %w", at, err)
	}
	defer above.Close()
	err = unix.Unlinkat(int(above.Fd()), path.Base(at), flags)
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("remove %s: %w", at, err)
	}
	return nil
}
