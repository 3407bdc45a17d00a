//go:build linux

package initd

import (
	"fmt"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// A protected place is mounted on itself, read-only. Nothing can take the place of a mount, nor can it
// be moved or removed; but a directory that one is in could be, with the mount, and another be made in
// its place. So the directories between it and the workspace are mounted on themselves, too.

// protect makes the protected places read-only and keeps them where they are.
func (v *view) protect() {
	const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	for _, dir := range v.config.Pinned {
		v.Step("keep in its place " + dir)
		v.mountOnItself(dir, attributes)
	}
	for _, place := range v.config.Protected {
		v.Step("protect " + place)
		v.mountOnItself(place, attributes|unix.MOUNT_ATTR_RDONLY)
	}
}

// mountOnItself mounts a place of the workspace in its own place. Symbolic links on the way would lead
// to another one, which the self-test notices.
func (v *view) mountOnItself(place string, attributes uint64) {
	at := path.Join(GuestWorkspace[1:], place)
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE | unix.AT_SYMLINK_NOFOLLOW
	tree := v.Do(unix.SYS_OPEN_TREE, unix.AT_FDCWD, at, flags)
	v.set(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attributes)
	v.Do(unix.SYS_MOVE_MOUNT, tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
	v.Do(unix.SYS_CLOSE, tree)
}

// guarded are the mounts of protected places.
func guarded(config wire.Config) []placement {
	var all []placement
	for _, dir := range config.Pinned {
		all = append(all, placement{path: path.Join(GuestWorkspace, dir), writable: true})
	}
	for _, place := range config.Protected {
		all = append(all, placement{path: path.Join(GuestWorkspace, place)})
	}
	return all
}

// testProtected wants a mount in every place that is protected.
func testProtected(config wire.Config, all []mount) error {
	for _, p := range guarded(config) {
		if !slices.ContainsFunc(all, func(m mount) bool { return m.point == p.path }) {
			return fmt.Errorf("%s is not protected", p.path)
		}
	}
	return nil
}
