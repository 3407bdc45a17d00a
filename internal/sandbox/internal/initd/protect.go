//go:build linux

package initd

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/internal/system/mountinfo"
)

// A protected place is mounted on itself, read-only. Nothing can take the place of a mount, nor can
// it be moved or removed; but a directory that one is in could be, with the mount, and another be
// made in its place. So the directories between it and the workspace are mounted on themselves,
// too.

// protect makes the protected places read-only and keeps them where they are. The workspace is the
// working directory.
func (v *view) protect() {
	const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	for _, dir := range v.config.Pinned {
		v.Step("keep in its place " + dir.Path)
		v.mountAt(dir.Path, dir.Path, attributes)
	}
	for i, place := range v.config.Protected {
		from := place.Path
		if place.Link != "" {
			from = "/" + shownLink(i)
		}
		v.Step("protect " + place.Path)
		v.mountAt(from, place.Path, attributes|unix.MOUNT_ATTR_RDONLY)
	}
}

// shownLink is where the root has the link that a protected place shows.
func shownLink(i int) string { return "run/protected-" + strconv.Itoa(i) }

// makeLinks makes the links for protected paths in the root, where commands cannot change them.
func (v *view) makeLinks() {
	for i, place := range v.config.Protected {
		if place.Link != "" {
			v.symlink(place.Link, shownLink(i))
		}
	}
}

// mountAt mounts from, which may be a link itself, at place, which may be the same path. The
// self-test finds what another process puts there in this moment.
func (v *view) mountAt(from, place string, attributes uint64) {
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE | unix.AT_SYMLINK_NOFOLLOW
	tree := v.Do(unix.SYS_OPEN_TREE, unix.AT_FDCWD, from, flags)
	v.set(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attributes)
	v.Do(unix.SYS_MOVE_MOUNT, tree, "", unix.AT_FDCWD, place, unix.MOVE_MOUNT_F_EMPTY_PATH)
	v.Do(unix.SYS_CLOSE, tree)
}

// guarded are the mounts of protected places.
func guarded(config wire.Config) []placement {
	var all []placement
	for _, dir := range config.Pinned {
		all = append(all, placement{path: path.Join(GuestWorkspace, dir.Path), writable: true})
	}
	for _, place := range config.Protected {
		all = append(all, placement{path: path.Join(GuestWorkspace, place.Path)})
	}
	return all
}

// testProtected wants a mount in every place that is protected, of what the worker has found there:
// something else may be of the host, by a link that was there for a moment.
func testProtected(config wire.Config, all []mountinfo.Mount) error {
	for _, place := range slices.Concat(config.Pinned, config.Protected) {
		at := path.Join(GuestWorkspace, place.Path)
		if !slices.ContainsFunc(all, func(m mountinfo.Mount) bool { return m.Point == at }) {
			return fmt.Errorf("%s is not protected", at)
		}
		if place.Link != "" {
			if leads, err := os.Readlink(at); leads != place.Link {
				return errors.Join(fmt.Errorf("%s leads to %q instead of %s", at, leads, place.Link), err)
			}
			continue
		}
		var stat unix.Stat_t
		if err := unix.Lstat(at, &stat); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if found := (wire.Identity{Path: place.Path, Dev: stat.Dev, Ino: stat.Ino}); found != place {
			return fmt.Errorf("%s is not what the workspace has there: %+v instead of %+v", at, found, place)
		}
	}
	return nil
}
