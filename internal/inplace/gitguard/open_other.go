//go:build !unix

package gitguard

import (
	"io/fs"
	"strings"
)

// onlyDirectory does not exist here; no sandbox protects a path here.
const onlyDirectory = 0

func closed(string, fs.FileInfo) bool { return true }

// identity is what a directory is known by.
type identity struct {
	Dev  uint64 `json:"-"`
	Path string `json:"path"`
}

func identityOf(_ fs.FileInfo, path string) identity { return identity{Path: strings.ToLower(path)} }
