//go:build linux && (amd64 || arm64)

package confine

import (
	"slices"

	"golang.org/x/sys/unix"
)

// setID are the bits of a mode that make a program run as the owner of its file. In a
// sandbox they mean nothing, but the files of a workspace are files of the host too, and
// belong to its owner there.
const setID = unix.S_ISUID | unix.S_ISGID

// modeCall is a system call that gives a file a mode.
type modeCall struct {
	number, mode uint32 // mode is the number of the argument
	flags        uint32 // the argument that says whether a file is made; noFlags for those that always mean it
}

const noFlags = 6

// makes are the flags of open that make a file, without which its mode is ignored.
const makes = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY

// modeCalls are the calls of every architecture. What openat2 is asked for is out of a filter's
// sight; programs do without it on older kernels.
var modeCalls = []modeCall{ //nolint:gochecknoglobals // a constant
	{unix.SYS_FCHMOD, 1, noFlags},
	{unix.SYS_FCHMODAT, 2, noFlags},
	{unix.SYS_FCHMODAT2, 2, noFlags},
	{unix.SYS_MKNODAT, 2, noFlags},
	{unix.SYS_OPENAT, 3, 2},
}

// noSetID denies modes with these bits.
func (t table) noSetID() {
	t.deny(unix.ENOSYS, unix.SYS_OPENAT2)
	for _, c := range slices.Concat(modeCalls, modeCallsHere) {
		t.on(c.number, func(p *program) {
			if c.flags != noFlags {
				p.load(arg(c.flags))
				p.jump(unix.BPF_JSET, makes, 1, 0)
				p.ret(retAllow)
			}
			p.load(arg(c.mode))
			p.returnIf(unix.BPF_JSET, setID, retErrno(unix.EPERM))
			p.ret(retAllow)
		})
	}
}
