//go:build !unix

package files

import (
	"errors"
	"io/fs"
	"os"
)

const nonblock = 0

var errQuota = errors.New("quota exceeded")

func unopenable(error) bool { return false }

func busy(error) bool { return false }

func adopt(*os.File, fs.FileInfo) error { return nil }

func otherLinks(fs.FileInfo) int { return 0 }

func adoptDir(*os.Root, string, fs.FileInfo) error { return nil }
