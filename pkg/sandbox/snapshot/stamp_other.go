//go:build !linux

package snapshot

import "io/fs"

func stampOf(fs.FileInfo) (Stamp, bool) { return Stamp{}, false }
