package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toolfleet/toolfleet/internal/system"
)

// Directories in the scratch directory. They stay when it is emptied: a sandbox may have
// them mounted.
const (
	HomeName = "home"
	TempName = "tmp"
)

// Scratch is an open directory for the home and the temporary files of a sandbox. What commands
// leave there may be hard to remove ([system.RemoveTree]), and symbolic links in it are not
// followed.
type Scratch struct {
	dir  string // absolute
	root *os.Root
}

// OpenScratch opens an existing directory and makes home and tmp in it.
func OpenScratch(dir string) (*Scratch, error) {
	abs, err := filepath.Abs(dir)
	if dir == "" || err != nil {
		return nil, errors.Join(errors.New("scratch directory is missing"), err)
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, fmt.Errorf("open scratch directory: %w", err)
	}
	s := &Scratch{dir: abs, root: root}
	if err := s.fill(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return s, nil
}

// Close releases the directory and leaves what is in it.
func (s *Scratch) Close() error { return s.root.Close() }

// Home is the path of the home directory.
func (s *Scratch) Home() string { return filepath.Join(s.dir, HomeName) }

// Temp is the path of the directory for temporary files.
func (s *Scratch) Temp() string { return filepath.Join(s.dir, TempName) }

func (s *Scratch) fill() error {
	for _, name := range []string{HomeName, TempName} {
		if err := s.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("fill scratch directory: %w", err)
		}
	}
	return nil
}

// LinkTemp makes a symbolic link among the temporary files, and replaces what has that name.
func (s *Scratch) LinkTemp(name, target string) error {
	at := filepath.Join(TempName, name)
	if leads, err := s.root.Readlink(at); err == nil && leads == target {
		return nil
	}
	temp, err := s.open(TempName)
	if err != nil {
		return fmt.Errorf("scratch directory: %w", err)
	}
	defer temp.Close()
	if _, err := s.root.Lstat(at); err == nil {
		if err := system.RemoveAt(temp, name); err != nil {
			return fmt.Errorf("scratch directory: %w", err)
		}
	}
	return s.root.Symlink(target, at)
}

// Empty removes everything in home and tmp, and everything next to them.
func (s *Scratch) Empty() error {
	err := s.emptyDir(".", func(name string) bool {
		info, err := s.root.Lstat(name)
		return (name == HomeName || name == TempName) && err == nil && info.IsDir()
	})
	for _, name := range []string{HomeName, TempName} {
		err = errors.Join(err, s.emptyDir(name, func(string) bool { return false }))
	}
	if err != nil {
		return fmt.Errorf("empty scratch directory: %w", err)
	}
	return s.fill()
}

// emptyDir removes what is in a directory and not to be kept. No directory there is an empty one.
func (s *Scratch) emptyDir(name string, keep func(string) bool) error {
	dir, err := s.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, entry := range names {
		if !keep(entry) {
			err = errors.Join(err, system.RemoveAt(dir, entry))
		}
	}
	return err
}

// open opens a directory, which is made accessible to its owner if need be.
func (s *Scratch) open(name string) (*os.File, error) {
	info, err := s.root.Lstat(name)
	if err == nil && info.IsDir() && info.Mode().Perm()&0o700 != 0o700 {
		err = s.root.Chmod(name, 0o700)
	}
	if err != nil {
		return nil, err
	}
	return s.root.Open(name)
}
