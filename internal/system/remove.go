package system

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// RemoveTree removes a file, or a directory and everything in it, also one that resists: a tree
// that is deeper than the limits of open files and of the length of a path, and directories that
// not even their owner may enter. Commands may leave such trees in a workspace or a scratch
// directory, and archives may contain them. It continues after a failure and returns the first one;
// a missing path is no failure. A concurrent change of the tree may make it fail, but never removes
// anything elsewhere.
//
// A tree is walked with few directories open at once: what is too deep is moved up first. So the
// time depends on the number of entries, not on their nesting. Symbolic links are removed and never
// followed, and what is mounted from another file system is left, which is an error.
func RemoveTree(path string) error { return RemoveTreeWhile(always, path) }

// RemoveTreeWhile is [RemoveTree] as long as may, which is asked before each step and may be the
// Err of a context, returns nil. Any other value ends the removal, and is its error.
func RemoveTreeWhile(may func() error, path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return at(may, parent, filepath.Base(path))
}

func always() error { return nil }
