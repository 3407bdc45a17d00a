//go:build !unix

package gitguard

import "io/fs"

// noWait is nothing that other systems have; no sandbox protects a place here.
const noWait = 0

func ownerOf(fs.FileInfo) (uid, gid int, known bool) { return 0, 0, false }
