package files

import (
	"fmt"
	"os"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

var _ sandbox.FS = (*FS)(nil)

// FS is the file operations of one workspace. It is safe for concurrent use.
type FS struct {
	root   *root
	turns  *turns           // of those who change a file
	bounds []protocol.Roots // see Within

	protected []string // see Protect
}

// Open returns the file operations of a directory. Absolute symbolic links work that begin
// with its name, with [mount], or with one of the names by which others call it.
func Open(dir string, called ...string) (*FS, error) {
	opened, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	return &FS{root: newRoot(opened, called), turns: &turns{}}, nil
}

// Protect has operations refuse to change what is at or below places, as [isolation.Spec].Protect
// has them in canonical form, with the fault [protocol.CodeProtected]. It is called before any
// operation. That a command cannot exchange a link meanwhile is up to who makes the places
// read-only.
func (f *FS) Protect(places []string) { f.protected = places }

// Close ends the FS; operations that run finish, later ones return [sandbox.ErrClosed].
func (f *FS) Close() error {
	if err := f.root.Close(); err != nil {
		return fmt.Errorf("close workspace: %w", err)
	}
	return nil
}
