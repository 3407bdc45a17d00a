//go:build !unix

package shared

import (
	"io/fs"
	"os/exec"
)

// detach does nothing on this system.
func detach(*exec.Cmd) {}

// owned does not know who a directory belongs to.
func owned(string, fs.FileInfo) error { return nil }

// CloseInherited does nothing: no descriptors are inherited here.
func CloseInherited() {}
