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

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// protected has the protected paths of a workspace on the host, see [isolation.Spec].Protect, and
// the identities of the files there. A file that replaces one from outside has no mount in the
// sandbox, which is then restarted. It is not safe for concurrent use.
type protected struct {
	dir    string
	places []string          // as they were asked for, in canonical form
	stand  map[string]string // contents of files that are made at missing paths

	paths  []string // those in places, or what is protected instead
	pinned []string // the directories that they are in
	found  map[string]fs.FileInfo
	made   map[string]fs.FileInfo // what was made, to be removed
}

// newProtected returns nil when there is nothing to protect.
func newProtected(dir string, spec *isolation.Spec) (*protected, error) {
	places, err := isolation.CleanProtected(spec.Protect)
	if err != nil || len(places) == 0 {
		return nil, err
	}
	p := &protected{dir: dir, places: places, stand: spec.Missing, made: map[string]fs.FileInfo{}}
	return p, p.update()
}

// update finds the paths, and makes the missing ones.
func (p *protected) update() error {
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		return fmt.Errorf("protect: %w", err)
	}
	defer root.Close()
	found := map[string]fs.FileInfo{}
	var paths []string
	for _, place := range p.places {
		actual, err := p.find(root, place, found)
		if err != nil {
			return fmt.Errorf("protect %s: %w", place, err)
		}
		paths = append(paths, actual)
	}
	if p.paths, err = isolation.CleanProtected(paths); err != nil {
		return err
	}
	p.found, p.pinned = map[string]fs.FileInfo{}, nil
	for _, place := range p.paths {
		p.found[place] = found[place]
		for dir := path.Dir(place); dir != "."; dir = path.Dir(dir) {
			if p.found[dir] == nil {
				p.found[dir] = found[dir]
				p.pinned = append(p.pinned, dir)
			}
		}
	}
	slices.Sort(p.pinned) // outer ones first
	return nil
}

// find returns what is protected for a path, and records its identity and those of its parents.
func (p *protected) find(root *os.Root, place string, found map[string]fs.FileInfo) (string, error) {
	parts := strings.Split(place, "/")
	for i := range parts {
		at := path.Join(parts[:i+1]...)
		info, err := root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			if info, err = p.create(root, at); err != nil && i > 0 && (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) {
				return path.Dir(at), nil // nothing can write to that or, on a read-only mount, allow writes
			}
		}
		if err != nil {
			return "", err
		}
		if found[at] = info; info.Mode()&fs.ModeSymlink != 0 {
			return "", fmt.Errorf("%s is a symbolic link, which cannot be protected; name what it leads to instead, or protect other places", at)
		}
		if p.leftover(root, at, info) {
			p.made[at] = info
		}
		if made := p.made[at]; !info.IsDir() || made != nil && os.SameFile(info, made) {
			return at, nil
		}
	}
	return place, nil
}

// create makes a placeholder at a missing path: an empty directory, unless the caller has given the
// content of a file. Git does not see one, and no program takes it for its settings.
func (p *protected) create(root *os.Root, at string) (fs.FileInfo, error) {
	if err := p.createEntry(root, at); err != nil {
		return nil, err
	}
	info, err := root.Lstat(at)
	if err != nil {
		return nil, err
	}
	p.made[at] = info
	above, err := root.Lstat(path.Dir(at))
	if err != nil {
		return nil, err
	}
	return info, system.OwnerOf(above).GiveIn(root, at)
}

func (p *protected) createEntry(root *os.Root, at string) error {
	content, isFile := p.stand[at]
	if !isFile {
		return root.Mkdir(at, 0o755)
	}
	return system.Owner{}.CreateIn(root, at, 0o644, func(file *os.File) error {
		_, err := file.WriteString(content)
		return err
	})
}

// leftover reports whether a file was made by an earlier sandbox that did not end properly.
func (p *protected) leftover(root *os.Root, at string, info fs.FileInfo) bool {
	content, isFile := p.stand[at]
	if !isFile || !info.Mode().IsRegular() || info.Size() != int64(len(content)) {
		return false
	}
	has, err := regular.ReadIn(root, at, int64(len(content)))
	return err == nil && string(has) == content
}

// identities returns the identities of the protected files for the first process.
func (p *protected) identities(places []string) []initd.Identity {
	all := make([]initd.Identity, len(places))
	for i, place := range places {
		all[i].Path = place
		if stat, ok := p.found[place].Sys().(*syscall.Stat_t); ok {
			all[i].Dev, all[i].Ino = stat.Dev, stat.Ino
		}
	}
	return all
}

// stale reports whether a path has another file or directory than update has found.
func (p *protected) stale() bool {
	if p == nil {
		return false
	}
	for at, was := range p.found {
		info, err := os.Lstat(path.Join(p.dir, at))
		if err != nil || !os.SameFile(was, info) {
			return true
		}
	}
	return false
}

// close removes what was made and is still empty. There must be no sandbox any more.
func (p *protected) close() error {
	if p == nil || len(p.made) == 0 {
		return nil
	}
	root, err := os.OpenRoot(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the places of what is protected: %w", err)
	}
	defer root.Close()
	for at, made := range p.made {
		err = errors.Join(err, p.removeMade(root, at, made))
	}
	clear(p.made)
	return err
}

// removeMade removes what was made, unless it was changed or replaced since.
func (p *protected) removeMade(root *os.Root, at string, made fs.FileInfo) error {
	info, err := root.Lstat(at)
	if err != nil || !os.SameFile(info, made) || !info.IsDir() && !p.leftover(root, at, info) {
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
