//go:build linux

package initd

import (
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
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
func openTrees(config wire.Config, owners *translations) ([]int, error) {
	var trees []int
	own := owner{config.OwnerUID, config.OwnerGID}
	if _, err := owners.namespace(own); err != nil { // first: where there is none, nothing else works
		return nil, &stepError{step: StepNamespaces, err: err}
	}
	for _, dir := range directories(config) {
		tree, err := openTree(&trees, dir)
		if err == nil {
			err = owners.translate(tree, dir, own)
		}
		if err != nil {
			return trees, err
		}
	}
	for _, m := range config.Mounts {
		tree, err := openTree(&trees, m.Host)
		if err == nil && (m.Write || m.AsOwner) {
			err = owners.translateOwn(tree, m)
		}
		if err != nil {
			return trees, err
		}
	}
	return trees, nil
}

// openTree opens a path, with all that is mounted below, as something to mount, and adds it to
// trees. It does not follow the mounts of the host any more.
func openTree(trees *[]int, host string) (int, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, host, unix.AT_RECURSIVE|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, &stepError{step: "open " + host, err: err}
	}
	*trees = append(*trees, tree)
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	if err != nil {
		return -1, &stepError{step: "private mounts of " + host, err: err}
	}
	return tree, nil
}
