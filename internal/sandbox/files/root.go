package files

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxLinks bounds how many symbolic links one path goes through, as in Linux.
const maxLinks = 40

// root is an [os.Root] in which absolute symbolic links that name a place in it work. What
// such a path stands for is found out by reading the links, and then used as any other path:
// the os.Root resolves it once more, so that an exchange in between leads nowhere outside.
type root struct {
	*os.Root

	escape error      // what it says of a path that leads outside
	names  [][]string // what it is called in absolute links, by the parts of paths
}

func newRoot(opened *os.Root, called []string) *root {
	r := &root{Root: opened, escape: escapeError(opened)}
	called = append([]string{mount, opened.Name()}, called...)
	if actual, err := filepath.EvalSymlinks(opened.Name()); err == nil {
		called = append(called, actual)
	}
	for _, name := range called {
		if parts := partsOf(filepath.ToSlash(name)); path.IsAbs(filepath.ToSlash(name)) && len(parts) > 0 {
			r.names = append(r.names, parts)
		}
	}
	return r
}

// escapeError gets the unexported error of package os by provoking it.
func escapeError(opened *os.Root) error {
	_, err := opened.Lstat("..")
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}

// Stat is [os.Root.Stat].
func (r *root) Stat(name string) (fs.FileInfo, error) {
	return through(r, name, r.resolve, r.Root.Stat)
}

// Lstat is [os.Root.Lstat].
func (r *root) Lstat(name string) (fs.FileInfo, error) {
	return through(r, name, r.resolveDir, r.Root.Lstat)
}

// OpenFile is [os.Root.OpenFile].
func (r *root) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return through(r, name, r.resolve, func(name string) (*os.File, error) { return r.Root.OpenFile(name, flag, perm) })
}

// through operates on a name, and when an absolute link is in the way on what that stands for.
func through[T any](r *root, name string, resolve func(string) (string, error), operate func(string) (T, error)) (T, error) {
	result, err := operate(name)
	if !errors.Is(err, r.escape) {
		return result, err
	}
	actual, err := resolve(name)
	if err != nil {
		return result, err
	}
	return operate(actual)
}

// outsideError is the error of a path that a link leads out of the root.
type outsideError struct {
	error // the root's

	link, target string
}

func (e *outsideError) Unwrap() error { return e.error }

// resolve returns the path that name stands for once every symbolic link in it is
// followed. What does not exist is kept as it is. The answer may be out of date when
// it is used: that can name another place in the workspace, and none outside.
func (r *root) resolve(name string) (string, error) {
	out := &outsideError{error: r.escape}
	done, todo := ".", partsOf(name)
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		if part == ".." {
			if done == "." {
				return "", out
			}
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		info, err := r.Root.Lstat(next)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", syscall.ELOOP
		}
		if out.target, err = r.Readlink(next); err != nil {
			return "", err
		}
		out.link = next
		parts := partsOf(filepath.ToSlash(out.target))
		if filepath.IsAbs(out.target) {
			called := r.calledIn(parts)
			if called == 0 {
				return "", out
			}
			done, parts = ".", parts[called:]
		}
		todo = slices.Concat(parts, todo)
	}
	return done, nil
}

// resolveDir is resolve for the directory of a name: what stands at the name is not followed.
func (r *root) resolveDir(name string) (string, error) {
	dir, err := r.resolve(path.Dir(name))
	return path.Join(dir, path.Base(name)), err
}

// calledIn is how many parts of an absolute path name the root; 0 when it is outside of it.
func (r *root) calledIn(parts []string) int {
	for _, name := range r.names {
		if len(parts) >= len(name) && slices.Equal(parts[:len(name)], name) {
			return len(name)
		}
	}
	return 0
}

// partsOf returns the names in a path.
func partsOf(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(part string) bool { return part == "" || part == "." })
}
