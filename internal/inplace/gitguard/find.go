package gitguard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/internal/system"
)

// Bounds of the search for repositories. A directory beyond them is refused: what was not looked
// at would count as harmless.
const (
	maxEntries      = 2_000_000
	maxRepositories = 2000
	maxLevels       = 500
)

// found is what a directory has of git.
type found struct {
	dir          string       // absolute, without symbolic links
	info         fs.FileInfo  // of dir
	git          *reader      // nil without git
	repositories []repository // those that enclose the directory first, then outer ones first
	gitDirs      []string     // in the directory: what has settings and hooks, or says who has
	gitFiles     []string     // in the directory: files .git, which name a repository elsewhere
	attributes   []string     // in the directory: files .gitattributes
	enclosed     bool         // a repository encloses the directory
	own          bool         // the directory has a .git that git uses

	person      []setting // of the person who uses git, and of the system
	personFault error

	entries int
	fault   error // the first of what could not be looked at
}

// find looks for repositories around a directory and in it. It returns an error if it cannot look
// at all of it, with what it has found if it could look at some.
func find(ctx context.Context, dir string, git *reader) (*found, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("look for repositories: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("look for repositories: %w", err)
	}
	f := &found{dir: dir, info: info, git: git}
	for at := dir; at != filepath.Dir(at); at = filepath.Dir(at) {
		r, _, ok, err := dotGit(filepath.Dir(at))
		if err != nil && !errors.Is(err, fs.ErrPermission) { // git cannot use it, or its user neither
			return nil, fmt.Errorf("look for repositories: %w", err)
		}
		if ok && err == nil {
			f.enclosed = true
			f.repositories = append(f.repositories, r)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("look for repositories: %w", err)
	}
	defer func() { _ = root.Close() }() // it was only read
	if git != nil {
		git.walking.Lock()
		defer git.walking.Unlock()
		f.person, f.personFault = git.person(ctx)
	}
	f.own, f.fault = f.dotGit(dir)
	err = f.walk(ctx, root, ".", 0)
	if err = cmp.Or(f.fault, err); err != nil {
		return f, fmt.Errorf("look for repositories: %w", err)
	}
	slices.SortStableFunc(f.gitDirs, func(a, b string) int { return strings.Count(a, "/") - strings.Count(b, "/") })
	return f, nil
}

// walk looks at a directory and all in it. A part that it cannot look at is a fault, and hides no
// other part.
func (f *found) walk(ctx context.Context, root *os.Root, dir string, level int) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	of, err := listed{}, error(nil)
	if level > maxLevels {
		err = fmt.Errorf("%s is below more than %d directories; remove it", filepath.Join(f.dir, dir), maxLevels)
	} else {
		of, err = f.list(root, dir)
	}
	f.fault = cmp.Or(f.fault, err)
	if f.entries += of.entries; f.entries > maxEntries {
		return fmt.Errorf("%s has more than %d files; use a directory in it", f.dir, maxEntries)
	}
	for _, name := range of.named {
		err := f.take(filepath.Join(f.dir, dir), name)
		if f.fault = cmp.Or(f.fault, err); len(f.repositories) > maxRepositories {
			return err
		}
	}
	for _, name := range of.dirs {
		if err := f.walk(ctx, root, filepath.Join(dir, name), level+1); err != nil {
			return err
		}
	}
	return nil
}

// listed is what a directory has.
type listed struct {
	entries int      // how many
	named   []string // those that git knows by name
	dirs    []string
	stamp   stamp
	at      time.Time
}

// settled is the age from which on a stamp changes with the next change of a directory, on file
// systems with a coarse clock, too.
const settled = 3 * time.Second

// list lists a directory, unless it is as it was. It is empty if it is gone, or if neither this
// user nor a command of this user's can enter it.
func (f *found) list(root *os.Root, name string) (of listed, err error) {
	info, err := os.Lstat(filepath.Join(f.dir, name))
	if errors.Is(err, syscall.ENAMETOOLONG) {
		info, err = root.Lstat(name)
	}
	if missing(err) || err == nil && !info.IsDir() { // replaced meanwhile
		return listed{}, nil
	}
	if err != nil {
		return listed{}, err
	}
	is, known := stampOf(info)
	if f.git != nil && known {
		if of := f.git.lists[name]; of.stamp == is && of.at.After(is.changed.Add(settled)) && f.git.listsOf == f.dir {
			return of, nil
		}
	}
	of = listed{stamp: is, at: time.Now()}
	dir, err := root.OpenFile(name, os.O_RDONLY|system.NonBlock|onlyDirectory, 0)
	switch {
	case missing(err):
		return listed{}, nil
	case errors.Is(err, fs.ErrPermission) && closed(filepath.Join(f.dir, name), info):
		return listed{}, nil
	case errors.Is(err, fs.ErrPermission):
		return listed{}, fmt.Errorf("%w: git can use repositories in it; chmod u+rwx it", err)
	case err != nil:
		return listed{}, err
	}
	entries, err := dir.ReadDir(-1)
	opened, statErr := dir.Stat()
	if err = errors.Join(err, statErr, dir.Close()); err != nil || !os.SameFile(info, opened) {
		return listed{}, err
	}
	of.entries = len(entries)
	for _, entry := range entries {
		for _, name := range []string{".git", ".gitattributes", "attributes", "HEAD"} {
			if strings.EqualFold(name, entry.Name()) { // which are one on some systems
				of.named = append(of.named, name)
			}
		}
		if entry.IsDir() {
			of.dirs = append(of.dirs, entry.Name())
		}
	}
	slices.Sort(of.dirs)
	if f.git != nil && known {
		if f.git.listsOf != f.dir {
			f.git.lists, f.git.listsOf = map[string]listed{}, f.dir
		}
		f.git.lists[name] = of
	}
	return of, nil
}

// take notes one entry of a directory.
func (f *found) take(dir, name string) (err error) {
	switch name {
	case ".git":
		if dir != f.dir { // its own was the first
			_, err = f.dotGit(dir)
		}
	case ".gitattributes", "attributes":
		f.attributes = append(f.attributes, filepath.Join(dir, name))
	case "HEAD":
		if filepath.Base(dir) != ".git" && isGitDir(dir) {
			r := repository{dir: dir, gitDir: dir}
			if r.common, err = commonOf(dir); err == nil {
				err = f.add(r, true)
			}
		}
	}
	return err
}

// dotGit notes what .git in a directory is. It says whether git uses it.
func (f *found) dotGit(dir string) (bool, error) {
	r, isDir, ok, err := dotGit(dir)
	if !ok || err != nil {
		return false, err
	}
	if !isDir {
		f.gitFiles = append(f.gitFiles, filepath.Join(dir, ".git"))
	}
	return true, f.add(r, isDir)
}

// add notes a repository, and its directories if they are in this one.
func (f *found) add(r repository, isDir bool) error {
	if f.repositories = append(f.repositories, r); len(f.repositories) > maxRepositories {
		return fmt.Errorf("%s has more than %d repositories, such as %s; use a directory in it", f.dir, maxRepositories, r.dir)
	}
	if isDir {
		f.gitDirs = append(f.gitDirs, r.gitDir)
	}
	if _, here := f.inside(r.common); here && !slices.Contains(f.gitDirs, r.common) {
		f.gitDirs = append(f.gitDirs, r.common) // without a HEAD of its own nothing else shows it
	}
	return nil
}

// isGitDir reports whether git takes a directory for that of a repository or of a worktree.
func isGitDir(dir string) bool {
	if !exists(filepath.Join(dir, "HEAD")) {
		return false
	}
	return exists(filepath.Join(dir, "commondir")) || exists(filepath.Join(dir, "objects")) && exists(filepath.Join(dir, "refs"))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// inside returns a path relative to the directory; ok is false when it lies elsewhere, or is the
// directory itself. A path may have another name of the directory, as on file systems without case.
func (f *found) inside(path string) (name string, ok bool) {
	name, err := filepath.Rel(f.dir, path)
	if err == nil && filepath.IsLocal(name) {
		return name, name != "."
	}
	for at := filepath.Dir(path); f.info != nil && at != filepath.Dir(at); at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && os.SameFile(info, f.info) {
			name, err = filepath.Rel(at, path)
			return name, err == nil
		}
	}
	return name, false
}

// name is how reports name a path: relative to the directory if it is below it.
func (f *found) name(path string) string {
	if name, ok := f.inside(path); ok {
		return name
	}
	return path
}
