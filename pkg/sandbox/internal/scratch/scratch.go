// Package scratch is the directory for the home and the temporary files of a sandbox.
// What commands leave there may be hard to remove, and symbolic links in it are not followed.
package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Directories in the scratch directory. They stay when it is emptied: a sandbox may have
// them mounted.
const (
	HomeName = "home"
	TempName = "tmp"
)

// Dir is an open scratch directory.
type Dir struct {
	dir  string // absolute
	root *os.Root
}

// Open opens an existing directory and makes home and tmp in it.
func Open(dir string) (*Dir, error) {
	abs, err := filepath.Abs(dir)
	if dir == "" || err != nil {
		return nil, errors.Join(errors.New("scratch directory is missing"), err)
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, fmt.Errorf("open scratch directory: %w", err)
	}
	s := &Dir{dir: abs, root: root}
	if err := s.fill(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return s, nil
}

// Close releases the directory and leaves what is in it.
func (s *Dir) Close() error { return s.root.Close() }

// Home is the path of the home directory.
func (s *Dir) Home() string { return filepath.Join(s.dir, HomeName) }

// Temp is the path of the directory for temporary files.
func (s *Dir) Temp() string { return filepath.Join(s.dir, TempName) }

func (s *Dir) fill() error {
	for _, name := range []string{HomeName, TempName} {
		if err := s.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("fill scratch directory: %w", err)
		}
	}
	return nil
}

// Empty removes everything in home and tmp, and everything beside them.
func (s *Dir) Empty() error {
	names, err := s.names(".")
	if err != nil {
		return fmt.Errorf("empty scratch directory: %w", err)
	}
	for _, name := range names {
		info, statErr := s.root.Lstat(name)
		if name != HomeName && name != TempName || statErr != nil || !info.IsDir() {
			err = errors.Join(err, s.remove(name))
			continue
		}
		below, listErr := s.names(name)
		err = errors.Join(err, listErr)
		for _, entry := range below {
			err = errors.Join(err, s.remove(filepath.Join(name, entry)))
		}
	}
	if err != nil {
		return fmt.Errorf("empty scratch directory: %w", err)
	}
	return s.fill()
}

// names lists a directory, which is made accessible for it if need be.
func (s *Dir) names(name string) ([]string, error) {
	dir, err := s.root.Open(name)
	if errors.Is(err, fs.ErrPermission) {
		if err = s.root.Chmod(name, 0o700); err == nil {
			dir, err = s.root.Open(name)
		}
	}
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	return names, errors.Join(err, dir.Close())
}

// remove removes a tree, if need be after making its directories accessible.
func (s *Dir) remove(name string) error {
	if err := s.root.RemoveAll(name); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if err := s.unlock(name); err != nil {
		return err
	}
	return s.root.RemoveAll(name)
}

// unlock makes a directory, and those below it, accessible to their owner.
func (s *Dir) unlock(name string) error {
	info, err := s.root.Lstat(name)
	if err != nil || !info.IsDir() {
		return err
	}
	if err := s.root.Chmod(name, 0o700); err != nil {
		return err
	}
	return fs.WalkDir(s.root.FS(), filepath.ToSlash(name), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || path == name {
			return err
		}
		return s.root.Chmod(path, 0o700)
	})
}
