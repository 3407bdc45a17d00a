//go:build !linux

package removal

import (
	"os"
	"path/filepath"
)

// At is Tree for an entry of an open directory. On this system it is no more than [os.RemoveAll].
func At(parent *os.File, name string) error { return os.RemoveAll(filepath.Join(parent.Name(), name)) }

func at(may func() error, parent *os.File, name string) error {
	if err := may(); err != nil {
		return err
	}
	return At(parent, name)
}

// In is Tree for a path below a root. On this system it is no more than [os.Root.RemoveAll].
func In(root *os.Root, name string) error { return root.RemoveAll(name) }
