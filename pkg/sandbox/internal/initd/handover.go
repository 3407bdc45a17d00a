//go:build linux

package initd

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// A sandbox gets its own directories last, when everything else around it is made: so it can be made before anybody
// knows them, and wait. It has no program yet, nothing in it has run, and it has rights in its own namespaces alone.
//
// What waits is a list of system calls: it can read a message, but not look into it. So all messages are alike. When the worker
// is root it opens the directories itself, for nobody else may translate their owner, and hands over the descriptors of
// what it has opened. Otherwise it hands over paths: who is not root can mount nothing but what its own
// namespace has, which it leaves after that; the first process of root's sandbox has left it already. When the worker is gone the wait ends, too, with neither, and the next call fails.

// ownDirectories is how many directories a sandbox has of its own.
const ownDirectories = 3

// pathSize is the longest path there is, with the zero byte at its end.
const pathSize = unix.PathMax

// directories are the host's that are the sandbox's own.
func directories(config wire.Config) [ownDirectories]string {
	return [ownDirectories]string{config.Workspace, config.Home, config.Temp}
}

// handover is where a sandbox that waits for its directories has them written.
type handover struct {
	header  unix.Msghdr
	iovec   unix.Iovec
	message [wire.HeadSize + ownDirectories*pathSize]byte
	control struct { // as the kernel writes a message of descriptors
		unix.Cmsghdr

		trees [ownDirectories]int32
	}
}

func newHandover() *handover {
	h := &handover{}
	h.iovec.Base = &h.message[0]
	h.iovec.SetLen(len(h.message))
	h.header.Iov = &h.iovec
	h.header.SetIovlen(1)
	h.header.Control = (*byte)(unsafe.Pointer(&h.control))
	h.header.SetControllen(int(unsafe.Sizeof(h.control)))
	for i := range h.control.trees {
		h.control.trees[i] = -1 // which is no descriptor
	}
	return h
}

// path is where a directory's path is written, if it is handed over by that.
func (h *handover) path(i int) []byte {
	return h.message[wire.HeadSize+i*pathSize:][:pathSize]
}

// receiveDirectories waits for the directories.
func (v *view) receiveDirectories() {
	from := newHandover()
	v.Do(unix.SYS_RECVMSG, fdControl, unsafe.Pointer(&from.header), unix.MSG_CMSG_CLOEXEC)
	for i, host := range directories(v.config) {
		if v.config.Privileged {
			v.dirs[i].fd = &from.control.trees[i]
			continue
		}
		v.Step("open " + host)
		v.dirs[i].fd = v.Do(unix.SYS_OPEN_TREE, unix.AT_FDCWD, from.path(i), unix.AT_RECURSIVE|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	}
}

// HandOver hands its directories over to a sandbox that was started for this configuration, or one that differs in nothing
// but them. owners is the user namespace that came with it, when the worker is root. An error is about the directories: a
// sandbox that is gone has said why.
func HandOver(conn *wire.Conn, config wire.Config, owners int) error {
	if !config.Privileged {
		paths, err := paths(config)
		if err != nil {
			return err
		}
		_ = conn.SendPlain(wire.KindDirectories, paths) // as above
		return nil
	}
	trees, err := openDirectories(config, owners)
	defer closeAll(trees)
	if err != nil {
		return err
	}
	_ = conn.SendPlain(wire.KindDirectories, nil, trees...) // as above
	return nil
}

// paths are the directories as a sandbox reads them.
func paths(config wire.Config) ([]byte, error) {
	all := make([]byte, ownDirectories*pathSize)
	for i, dir := range directories(config) {
		if len(dir) >= pathSize {
			return nil, &stepError{step: "open " + dir, err: unix.ENAMETOOLONG}
		}
		copy(all[i*pathSize:], dir)
	}
	return all, nil
}

// openDirectories opens the directories with the sandbox's user in the place of their owner. On failure too, what was opened
// is returned.
func openDirectories(config wire.Config, owners int) ([]int, error) {
	var trees []int
	for _, dir := range directories(config) {
		tree, err := openTree(dir, 0)
		if err != nil {
			return trees, &stepError{step: "open " + dir, err: err}
		}
		trees = append(trees, tree)
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(owners)} //nolint:gosec // a descriptor
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return trees, &stepError{step: StepTranslate, err: fmt.Errorf("%s: %w", dir, err)}
		}
	}
	return trees, nil
}

// StepTranslate is the step that fails on file systems that cannot show files under another
// owner.
const StepTranslate = "translate owners"
