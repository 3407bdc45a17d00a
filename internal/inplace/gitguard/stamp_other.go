//go:build !linux

package gitguard

import (
	"io/fs"
	"time"
)

// stamp is not known here: directories are listed each time.
type stamp struct{ changed time.Time }

func stampOf(fs.FileInfo) (stamp, bool) { return stamp{}, false }

// bornAt is when a file was made; 0: it is not known here.
func bornAt(string) int64 { return 0 }
