//go:build !unix

package files

import (
	"errors"
	"io/fs"
)

var errQuota = errors.New("quota exceeded")

func busy(error) bool { return false }

func otherLinks(fs.FileInfo) int { return 0 }
