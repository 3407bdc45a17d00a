//go:build linux

package initd

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// directories are the host's that are the sandbox's own.
func directories(config wire.Config) []string {
	return []string{config.Workspace, config.Home, config.Temp}
}

// StepTranslate is the step that fails on file systems that cannot show files under another
// owner.
const StepTranslate = "translate owners"

// openTrees opens what only the worker's user may open: the directories, with the sandbox's user in
// the place of their owner, and the mounts. On failure too, what was opened is returned.
func openTrees(config wire.Config, owners int) ([]int, error) {
	var trees []int
	open := func(host string, flags uint) (int, error) {
		tree, err := unix.OpenTree(unix.AT_FDCWD, host, flags|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return -1, &stepError{step: "open " + host, err: err}
		}
		trees = append(trees, tree)
		return tree, nil
	}
	for _, dir := range directories(config) {
		tree, err := open(dir, 0)
		if err != nil {
			return trees, err
		}
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(owners)} //nolint:gosec // a descriptor
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return trees, &stepError{step: StepTranslate, err: fmt.Errorf("%s: %w", dir, err)}
		}
	}
	for _, m := range config.Mounts {
		if _, err := open(m.Host, unix.AT_RECURSIVE); err != nil {
			return trees, err
		}
	}
	return trees, nil
}
