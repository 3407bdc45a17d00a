package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// openRegular opens a regular file and never blocks. It looks before it opens, for
// opening a device may have effects, and again at what it opened.
func (f *FS) openRegular(name string, flag int) (*os.File, fs.FileInfo, error) {
	info, err := f.root.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if err := requireRegular(name, info); err != nil {
		return nil, nil, err
	}
	file, err := f.root.OpenFile(name, flag|system.NonBlock, 0)
	if err != nil {
		if system.Unopenable(err) {
			err = notRegular(name, fs.ModeSocket)
		}
		return nil, nil, err
	}
	info, err = file.Stat()
	if err == nil {
		err = requireRegular(name, info)
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, info, nil
}

func requireRegular(name string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return isDirectory(name)
	case !info.Mode().IsRegular():
		return notRegular(name, info.Mode())
	default:
		return nil
	}
}

// load returns the whole content of a regular file of at most [isolation.MaxFileSize].
func (f *FS) load(ctx context.Context, name string, flag int) ([]byte, fs.FileInfo, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	file, info, err := f.openRegular(name, flag)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if info.Size() > isolation.MaxFileSize {
		return nil, info, tooLarge(name, info.Size(), isolation.MaxFileSize)
	}
	content := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	if _, err := content.ReadFrom(io.LimitReader(file, isolation.MaxFileSize+1)); err != nil {
		return nil, nil, err
	}
	if content.Len() > isolation.MaxFileSize {
		return nil, info, tooLarge(name, int64(content.Len()), isolation.MaxFileSize)
	}
	return content.Bytes(), info, nil
}

// Bounds of paths, in bytes.
const (
	maxPath = 4096
	maxName = 255
)

// mount is the name that the workspace has in paths that start with a slash.
const mount = "/workspace"

// clean returns the canonical relative form of a request's path: "." or names
// joined by slashes, without ".." among them. base is the host's name of the
// workspace and is used for a hint only.
func clean(base, p string) (string, error) {
	if err := checkText(p); err != nil {
		return "", err
	}
	name := path.Clean(p)
	if p == "" {
		name = "."
	}
	if path.IsAbs(name) {
		if !system.Within(mount, name) {
			return "", outside(base, p)
		}
		name = path.Clean("." + name[len(mount):])
	}
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", outside(base, p)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > maxName {
			return "", protocol.Errorf(codes.InvalidPath,
				"a name in the path has %d bytes, at most %d are possible: %q...", len(part), maxName, part[:32])
		}
	}
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", protocol.Errorf(codes.InvalidPath, "%q is not a path that this system allows", p)
	}
	return name, nil
}

func checkText(p string) error {
	switch {
	case len(p) > maxPath:
		return protocol.Errorf(codes.InvalidPath, "the path has %d bytes, at most %d are possible", len(p), maxPath)
	case strings.ContainsRune(p, 0):
		return protocol.Errorf(codes.InvalidPath, "%q contains a NUL byte", p)
	case !utf8.ValidString(p):
		return protocol.Errorf(codes.InvalidPath, "%q is not valid UTF-8", p)
	default:
		return nil
	}
}

// outside is the fault of a path that leaves the workspace by its text alone.
func outside(base, p string) error {
	hint := `, such as "src/main.go"`
	if rel, ok := strings.CutPrefix(path.Clean(p), filepath.ToSlash(base)+"/"); ok && base != "" {
		hint = fmt.Sprintf(": %q", rel)
	}
	return protocol.Errorf(codes.PathEscape,
		"%q is outside of the workspace; use a path relative to the workspace%s", p, hint)
}

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
