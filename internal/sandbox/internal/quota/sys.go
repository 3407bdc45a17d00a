//go:build linux

package quota

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests for the attributes of files that all file systems have, and the one that new files
// inherit the project.
const (
	getAttributes = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	inherits      = 0x200      // FS_XFLAG_PROJINHERIT
)

// attributes is struct fsxattr.
type attributes struct {
	flags, extentSize, extents, project, cowExtentSize uint32

	_ [8]byte
}

func attributesOf(fd int) (a attributes, err error) {
	return a, ioctl(fd, getAttributes, unsafe.Pointer(&a))
}

// change gives a file to a project.
func change(fd int, project uint32, inherit bool) error {
	a, err := attributesOf(fd)
	if err != nil {
		return err
	}
	is := a
	a.project, a.flags = project, a.flags&^inherits
	if inherit {
		a.flags |= inherits
	}
	if a == is {
		return nil
	}
	return ioctl(fd, setAttributes, unsafe.Pointer(&a))
}

func ioctl(fd int, request uintptr, value unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(value))
	if errno != 0 {
		return errno
	}
	return nil
}

// Commands of quotactl_fd, for project quotas.
const (
	projects = 2 // PRJQUOTA

	commandGet     = 0x800007<<8 | projects // Q_GETQUOTA
	commandSet     = 0x800008<<8 | projects // Q_SETQUOTA
	commandGetNext = 0x800009<<8 | projects // Q_GETNEXTQUOTA
	commandState   = 0x5805<<8 | projects   // Q_XGETQSTAT
)

// block is what limits of space are counted in.
const block = 1 << 10

// numbers is struct if_nextdqblk, which begins as struct if_dqblk does.
type numbers struct {
	spaceLimit, spaceSoft, space uint64 // limits in blocks, usage in bytes
	filesLimit, filesSoft, files uint64
	_, _                         uint64
	valid                        uint32
	id                           uint32
}

// Bits of numbers.valid.
const validLimits = 1 | 4 // QIF_BLIMITS, QIF_ILIMITS

// limited reports whether there is a limit.
func (n *numbers) limited() bool { return n.spaceLimit|n.spaceSoft|n.filesLimit|n.filesSoft != 0 }

// unused reports whether nothing is counted.
func (n *numbers) unused() bool { return n.space|n.files == 0 }

// state is struct fs_quota_stat.
type state struct {
	version int8
	flags   uint16
	_       [76]byte
}

// enforced is the flag of project quotas that hold, FS_QUOTA_PDQ_ENFD.
const enforced = 1 << 5

func control(fd int, command, id uint32, value unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(command), uintptr(id), uintptr(value), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// get reads the numbers of a project; they are zero if the file system does not know it.
func get(dir *os.File, id uint32) (n numbers, err error) {
	err = control(int(dir.Fd()), commandGet, id, unsafe.Pointer(&n))
	if errors.Is(err, unix.ENOENT) {
		return numbers{}, nil
	}
	return n, err
}

// next reads the numbers of the first project from id on; found is false when there is none.
func next(dir *os.File, id uint32) (n numbers, found bool, err error) {
	err = control(int(dir.Fd()), commandGetNext, id, unsafe.Pointer(&n))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return n, false, nil
	}
	return n, err == nil, err
}

// limit sets the limits of a project.
func limit(dir *os.File, id uint32, l Limits) error {
	n := numbers{valid: validLimits}
	if l.Bytes > 0 {
		n.spaceLimit = max(uint64(l.Bytes)/block, 1)
	}
	n.filesLimit = uint64(max(l.Files, 0))
	return control(int(dir.Fd()), commandSet, id, unsafe.Pointer(&n))
}

// enforces reports whether project quotas hold on the file system of dir.
func enforces(dir *os.File) (bool, error) {
	s := state{version: 1}
	err := control(int(dir.Fd()), commandState, 0, unsafe.Pointer(&s))
	return s.flags&enforced != 0, err
}

// known reports whether the kernel has quotactl_fd.
func known() bool { return !errors.Is(control(-1, commandState, 0, nil), unix.ENOSYS) }
