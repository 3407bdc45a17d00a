//go:build linux && (amd64 || arm64)

package confine

import (
	"slices"

	"golang.org/x/sys/unix"
)

// sharing are the system calls by which processes of one host meet, whatever files they may
// open: System V's shared memory, queues and semaphores, and POSIX queues.
func sharing() []uint32 {
	return []uint32{
		unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL,
		unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK,
	}
}

// aimedCall is a system call that changes another process of the same user.
type aimedCall struct {
	number, at uint32 // at is the number of the argument that says which; 0 is oneself
	everybody  uint32 // says, as the first argument, that the second one is a user; 0 is none
}

func aimed() []aimedCall {
	const ioprioWhoUser = 3
	return []aimedCall{
		{unix.SYS_SETPRIORITY, 1, unix.PRIO_USER},
		{unix.SYS_IOPRIO_SET, 1, ioprioWhoUser},
		{unix.SYS_SCHED_SETAFFINITY, 0, 0},
		{unix.SYS_SCHED_SETSCHEDULER, 0, 0},
		{unix.SYS_SCHED_SETPARAM, 0, 0},
		{unix.SYS_SCHED_SETATTR, 0, 0},
		{unix.SYS_PRLIMIT64, 0, 0},
	}
}

// hostFilter is for processes that have no namespaces of their own.
func hostFilter(families []uint32) program {
	var p program
	p.nativeOnly()
	t := table{}
	t.deny(unix.EPERM, sharing()...)
	for _, c := range aimed() {
		t.match(c.number, c.at, unix.BPF_JEQ, []uint32{0}, retAllow, retErrno(unix.EPERM))
	}
	t.match(unix.SYS_SOCKET, 0, unix.BPF_JEQ, families, retAllow, retErrno(unix.EACCES))
	p.dispatch(t)
	return p
}

// AddHost adds to a list what restricts a thread without namespaces: no sockets but those of the
// given families and pairs, no shared memory and queues, and no changes of other processes of its
// user. It takes [AddSeccomp].
func AddHost(l *List, families []uint32) { hostFilter(families).add(l) }

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

// untouchableFilter keeps processes and threads with the ids 1 to last from being changed. It is
// made whenever a sandbox starts.
func untouchableFilter(last uint32) program {
	p := make(program, 0, 64)
	p.load(dataNumber)
	for _, c := range aimed() {
		p.on(c.number, func(p *program) {
			if c.everybody != 0 {
				p.load(arg(0))
				p.returnIf(unix.BPF_JEQ, c.everybody, retErrno(unix.EPERM))
			}
			p.load(arg(c.at))
			p.returnIf(unix.BPF_JEQ, 0, retAllow)
			p.returnIf(unix.BPF_JGT, last, retAllow)
			p.ret(retErrno(unix.EPERM))
		})
	}
	p.ret(retAllow)
	return p
}

// Untouchable prevents this process and its children from changing limits, priorities, processors
// and the like of the processes and threads 1 to last of this process namespace, and of all of a
// user at once. It takes [AddSeccomp].
func Untouchable(last int) error {
	var l List
	l.Step("seccomp")
	untouchableFilter(uint32(last)).addTo(&l, unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH) //nolint:gosec // an id
	return l.Make()
}

// denied are the system calls that no process of a sandbox has any use for, on every architecture.
var denied = []uint32{ //nolint:gochecknoglobals // a constant
	// Namespaces and mounts.
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_SETNS, unix.SYS_UNSHARE,
	unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG,
	unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
	// Large attack surfaces of the kernel.
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_USERFAULTFD, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_FANOTIFY_INIT,
	// Other processes.
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE,
	unix.SYS_PIDFD_GETFD, unix.SYS_KCMP, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES,
	// The host.
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_ACCT,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_REBOOT, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME,
	unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_SYSLOG, unix.SYS_VHANGUP, unix.SYS_NFSSERVCTL, unix.SYS_LOOKUP_DCOOKIE,
	// What the whole host has a number of: one command could take all (fs.aio-max-nr).
	unix.SYS_IO_SETUP,
}

// changes are the system calls that change files in ways that Landlock does not know, on every
// architecture.
var changes = []uint32{ //nolint:gochecknoglobals // a constant
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_SETXATTRAT,
	unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, unix.SYS_REMOVEXATTRAT, unix.SYS_FILE_SETATTR,
}
