//go:build linux && (amd64 || arm64)

package confine

import (
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/calls"
)

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

// Untouchable keeps all threads of this process, and what they start, from changing limits,
// priorities, processors and the like of processes and threads with the ids 1 to last, as they are
// in this process namespace, and of all of a user at once. It takes [Seccomp].
func Untouchable(last int) error {
	return made("seccomp", func(l *calls.List) {
		untouchableFilter(uint32(last)).addTo(l, unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH) //nolint:gosec // an id
	})
}
