package doctor

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// freeBytes returns what this user can still write on the disk of a directory that need not exist,
// and the directory above it that does.
func freeBytes(dir string) (string, int64, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", 0, err
	}
	for {
		var found unix.Statfs_t
		err := unix.Statfs(dir, &found)
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return dir, int64(found.Bavail) * found.Bsize, err //nolint:gosec // a size of a disk
		}
		dir = filepath.Dir(dir)
	}
}

// landlockABI asks the kernel; 0 is no Landlock.
func landlockABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}
