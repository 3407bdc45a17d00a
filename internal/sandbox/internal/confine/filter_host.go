//go:build linux && (amd64 || arm64)

package confine

import "golang.org/x/sys/unix"

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
		t.on(c.number, func(p *program) {
			p.load(arg(c.at))
			p.returnIf(unix.BPF_JEQ, 0, retAllow)
			p.ret(retErrno(unix.EPERM))
		})
	}
	t.on(unix.SYS_SOCKET, func(p *program) {
		p.load(arg(0))
		for _, family := range families {
			p.returnIf(unix.BPF_JEQ, family, retAllow)
		}
		p.ret(retErrno(unix.EACCES))
	})
	p.dispatch(t)
	return p
}

// SeccompHost cuts the calling thread off from what it shares with the host when it has no
// namespaces of its own: sockets but of the given families, shared memory and queues, and
// the settings of other processes of its user. Pairs of sockets can be made still.
func SeccompHost(families ...uint32) error { return install(hostFilter(families)) }
