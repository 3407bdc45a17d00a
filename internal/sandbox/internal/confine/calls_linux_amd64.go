package confine

import "golang.org/x/sys/unix"

const (
	nativeArch = unix.AUDIT_ARCH_X86_64
	foreignBit = 0x40000000 // of the calls of x32
)

//nolint:gochecknoglobals // constants
var (
	deniedHere = []uint32{
		unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS__SYSCTL, unix.SYS_CREATE_MODULE,
		unix.SYS_GET_KERNEL_SYMS, unix.SYS_QUERY_MODULE, unix.SYS_USTAT, unix.SYS_SYSFS,
	}
	modeCallsHere = []modeCall{
		{unix.SYS_CHMOD, 1, noFlags}, {unix.SYS_CREAT, 1, noFlags}, {unix.SYS_MKNOD, 1, noFlags}, {unix.SYS_OPEN, 2, 1},
	}
	changesHere = []uint32{
		unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT,
	}
)
