// Package removal removes directories in which somebody may have made that hard: trees that are
// deeper than there may be files open, or than a path may be long, and directories that not even
// their owner may enter. What commands have left in a workspace or a scratch directory may be like
// that, and so may what an archive has.
//
// A tree is walked from directory to directory, of which few are open at once: what is too deep is
// moved up first. So it takes as long as there are entries, however they are nested. Symbolic links
// are removed and never followed, and what is mounted from another file system is left, which is an
// error.
package removal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Tree removes a file, or a directory and everything in it. It goes on after a failure and returns
// the first one; nothing there is none. Whoever changes the tree meanwhile may make it fail, and
// has nothing removed that is elsewhere.
func Tree(path string) error { return TreeWhile(always, path) }

// TreeWhile is [Tree] as long as may, which is asked before each step and may be the Err of a
// context, returns nil. What it returns else is the error, and what is left by then stays.
func TreeWhile(may func() error, path string) error {
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
