//go:build linux

package initd

import (
	"errors"
	"math"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/walk"
)

const (
	blockSize = 512     // what stat(2) counts in
	leastSize = 4 << 10 // of a file with nothing in it: a file system has room for so many
)

// diskUsage is how much the workspace and the scratch directory take up.
func diskUsage() uint64 {
	var total uint64
	for _, dir := range []string{GuestWorkspace, GuestHome, GuestTemp} {
		used := treeUsage(dir, walk.MaxLevels)
		if used > math.MaxUint64-total {
			return math.MaxUint64
		}
		total += used
	}
	return total
}

// treeUsage is how much a directory and everything in it takes up: of a file with several names the
// part that is found, and of each 4 KiB at least. What cannot be read counts as nothing, and trees
// deeper than most as endless.
func treeUsage(dir string, most int) uint64 {
	var total uint64
	err := walk.Tree(dir, most, func(_ int, _ string, stat *unix.Stat_t) {
		names := uint64(1)
		if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
			names = max(uint64(stat.Nlink), 1) //nolint:unconvert // 32 bits elsewhere
		}
		total += max(uint64(stat.Blocks)*blockSize, leastSize) / names //nolint:gosec // not negative
	})
	if errors.Is(err, walk.ErrDeep) {
		return math.MaxUint64
	}
	return total
}
