package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

var _ sandbox.FS = (*FS)(nil)

// FS is the file operations of one workspace. It is safe for concurrent use.
type FS struct {
	root   *os.Root
	escape error           // what root says of a path that leads outside
	turns  *turns          // of those who change a file
	bounds []sandbox.Roots // see Within
}

// New returns the file operations of root, which the FS then owns.
func New(root *os.Root) *FS {
	return &FS{root: root, escape: escapeError(root), turns: &turns{}}
}

// Open returns the file operations of a host directory.
func Open(dir string) (*FS, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	return New(root), nil
}

// Close ends the FS; operations that run finish, later ones return [sandbox.ErrClosed].
func (f *FS) Close() error {
	if err := f.root.Close(); err != nil {
		return fmt.Errorf("close workspace: %w", err)
	}
	return nil
}

// escapeError gets the unexported error of package os by provoking it.
func escapeError(root *os.Root) error {
	_, err := root.Lstat("..")
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}
