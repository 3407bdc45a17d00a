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

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// guard are the protected places of a workspace on the host, see [sandbox.Spec].Protect. It knows
// which files they are: what is put in their place from outside has no mount in the sandbox, which
// is then made anew. It is not safe for concurrent use.
type guard struct {
	dir    string
	places []string // as they were asked for, in canonical form

	protected []string // the places, or what stands for them
	pinned    []string // the directories that they are in
	found     map[string]fs.FileInfo
	made      map[string]fs.FileInfo // what was made, to be removed
}

// newGuard returns nil when there is nothing to protect.
func newGuard(dir string, places []string) (*guard, error) {
	places, err := sandbox.CleanProtected(places)
	if err != nil || len(places) == 0 {
		return nil, err
	}
	g := &guard{dir: dir, places: places, made: map[string]fs.FileInfo{}}
	return g, g.look()
}

// look finds the places, and makes those that are missing.
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
	if g.protected, err = sandbox.CleanProtected(protected); err != nil {
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

// find returns what stands for a place, and notes that and what is above it.
func (g *guard) find(root *os.Root, place string, found map[string]fs.FileInfo) (string, error) {
	parts := strings.Split(place, "/")
	for i := range parts {
		at := path.Join(parts[:i+1]...)
		info, err := root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			if info, err = g.make(root, at); err != nil && i > 0 && (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) {
				return path.Dir(at), nil // nobody writes to that, and with a read-only mount nobody can allow it
			}
		}
		if err != nil {
			return "", err
		}
		if found[at] = info; info.Mode()&fs.ModeSymlink != 0 {
			return "", fmt.Errorf("%s is a symbolic link, which cannot be protected; name what it leads to instead, or protect other places", at)
		}
		if made := g.made[at]; !info.IsDir() || made != nil && os.SameFile(info, made) {
			return at, nil
		}
	}
	return place, nil
}

// make makes an empty directory in the place of something that is missing. Git does not see one,
// and no program takes it for its settings.
func (g *guard) make(root *os.Root, at string) (fs.FileInfo, error) {
	const mode = 0o755
	if err := root.Mkdir(at, mode); err != nil {
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

// wire tells the first process which files places are.
func (g *guard) wire(places []string) []wire.Place {
	all := make([]wire.Place, len(places))
	for i, place := range places {
		all[i].Path = place
		if stat, ok := g.found[place].Sys().(*syscall.Stat_t); ok {
			all[i].Dev, all[i].Ino = stat.Dev, stat.Ino
		}
	}
	return all
}

// stale reports whether something else stands in a place than what was found there.
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
		err = errors.Join(err, removeMade(root, at, made))
	}
	clear(g.made)
	return err
}

// removeMade removes an empty directory if it is the one that was made. What else is there by now
// is somebody's.
func removeMade(root *os.Root, at string, made fs.FileInfo) error {
	info, err := root.Lstat(at)
	if err != nil || !os.SameFile(info, made) {
		return nil // it is gone
	}
	above, err := root.Open(path.Dir(at))
	if err != nil {
		return fmt.Errorf("remove %s: %w", at, err)
	}
	defer above.Close()
	err = unix.Unlinkat(int(above.Fd()), path.Base(at), unix.AT_REMOVEDIR)
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("remove %s: %w", at, err)
	}
	return nil
}
