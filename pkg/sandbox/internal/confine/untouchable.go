//go:build linux && (amd64 || arm64)

package confine

import (
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/calls"
)

// everybody says, as the first argument of some of them, that the second one is a user.
var everybody = map[uint32]uint32{unix.SYS_SETPRIORITY: unix.PRIO_USER, unix.SYS_IOPRIO_SET: ioprioWhoUser} //nolint:gochecknoglobals // a constant

const ioprioWhoUser = 3

// untouchableFilter keeps processes and threads with the ids 1 to last from being changed.
func untouchableFilter(last uint32) program {
	var p program
	p.load(dataNumber)
	t := table{}
	for number, argument := range aimed() {
		t.on(number, func(p *program) {
			if user, is := everybody[number]; is {
				p.load(arg(0))
				p.returnIf(unix.BPF_JEQ, user, retErrno(unix.EPERM))
			}
			p.load(arg(argument))
			p.returnIf(unix.BPF_JEQ, 0, retAllow)
			p.returnIf(unix.BPF_JGT, last, retAllow)
			p.ret(retErrno(unix.EPERM))
		})
	}
	p.dispatch(t)
	return p
}

// Untouchable keeps all threads of this process, and what they start, from changing limits, priorities, processors and the like
// of processes and threads with the ids 1 to last, as they are in this process namespace, and of all of a user at once. It takes [Seccomp].
func Untouchable(last int) error {
	return made("seccomp", func(l *calls.List) {
		untouchableFilter(uint32(last)).addTo(l, unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH) //nolint:gosec // an id
	})
}
