//go:build !linux

package gitguard

import (
	"io/fs"
	"time"
)

// stamp is not known here: directories are listed each time.
type stamp struct{ changed time.Time }

func stampOf(fs.FileInfo) (stamp, bool) { return stamp{}, false }
