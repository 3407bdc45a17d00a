//go:build !unix

package system

import (
	"io/fs"
	"os/exec"
)

// Flags that make opening safe, which this system does not have.
const (
	NonBlock = 0
	NoFollow = 0
)

// Unopenable reports whether an open failed because of what the file is.
func Unopenable(error) bool { return false }

func ids(fs.FileInfo) (uid, gid int, known bool) { return 0, 0, false }

// OpenFiles is how many files this process may have open: here the system has no such limit.
func OpenFiles() int { return 1 << 20 }

// Detach does nothing on this system.
func Detach(*exec.Cmd) {}
