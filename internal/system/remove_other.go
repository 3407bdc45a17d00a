//go:build !linux

package system

import (
	"os"
	"path/filepath"
)

// RemoveAt is RemoveTree for an entry of an open directory. On this system it is no more than
// [os.RemoveAll].
func RemoveAt(parent *os.File, name string) error {
	return os.RemoveAll(filepath.Join(parent.Name(), name))
}

func at(may func() error, parent *os.File, name string) error {
	if err := may(); err != nil {
		return err
	}
	return RemoveAt(parent, name)
}

// RemoveIn is RemoveTree for a path below a root. On this system it is no more than
// [os.Root.RemoveAll].
func RemoveIn(root *os.Root, name string) error { return root.RemoveAll(name) }
