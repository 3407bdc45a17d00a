//go:build !unix

package gitguard

import (
	"io/fs"
	"strings"
)

// Flags that do not exist here; no sandbox protects a path here.
const (
	noWait        = 0
	onlyDirectory = 0
)

func ownerOf(fs.FileInfo) (uid, gid int, known bool) { return 0, 0, false }

func closed(string, fs.FileInfo) bool { return true }

// identity is what a directory is known by.
type identity struct {
	Dev  uint64 `json:"-"`
	Path string `json:"path"`
}

func identityOf(_ fs.FileInfo, path string) identity { return identity{Path: strings.ToLower(path)} }
