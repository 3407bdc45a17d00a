//go:build !linux

package snapshot

import (
	"io/fs"
	"os"
)

func hasHoles(fs.FileInfo) bool { return false }

func holeAt(*os.File, int64) int64 { return 0 }

func stampOf(fs.FileInfo) (Stamp, bool) { return Stamp{}, false }
