package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Directories in the scratch directory.
const (
	homeDir = "home"
	tempDir = "tmp"
)

// scratch is the directory for the home and the temporary files of a sandbox.
type scratch struct {
	dir  string // absolute
	root *os.Root
}

// openScratch opens an existing directory and makes home and tmp in it.
func openScratch(dir string) (*scratch, error) {
	abs, err := filepath.Abs(dir)
	if dir == "" || err != nil {
		return nil, errors.Join(errors.New("scratch directory is missing"), err)
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, fmt.Errorf("open scratch directory: %w", err)
	}
	s := &scratch{dir: abs, root: root}
	if err := s.fill(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return s, nil
}

// Close releases the directory and leaves what is in it.
func (s *scratch) Close() error { return s.root.Close() }

func (s *scratch) home() string { return filepath.Join(s.dir, homeDir) }
func (s *scratch) temp() string { return filepath.Join(s.dir, tempDir) }

func (s *scratch) fill() error {
	for _, name := range []string{homeDir, tempDir} {
		if err := s.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("fill scratch directory: %w", err)
		}
	}
	return nil
}

// empty removes everything, and makes home and tmp anew.
func (s *scratch) empty() error {
	dir, err := s.root.Open(".")
	if err != nil {
		return fmt.Errorf("empty scratch directory: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("empty scratch directory: %w", err)
	}
	for _, name := range names {
		if err := s.remove(name); err != nil {
			return fmt.Errorf("empty scratch directory: %w", err)
		}
	}
	return s.fill()
}

// remove removes a tree, if need be after making its directories accessible.
func (s *scratch) remove(name string) error {
	if err := s.root.RemoveAll(name); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if err := s.unlock(name); err != nil {
		return err
	}
	return s.root.RemoveAll(name)
}

// unlock makes a directory, and those below it, accessible to their owner.
func (s *scratch) unlock(name string) error {
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
