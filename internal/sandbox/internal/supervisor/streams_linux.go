package supervisor

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// slot is the size of a pipe that holds one write: a page, the least that there is.
const slot = 4096

// looks is how often the next write is looked for before sleeping, which takes some
// 20 us in all. A command that writes line by line runs 5 times as fast for it.
const looks = 100

// pipes are read in the order in which they were written to. Both are in packet mode
// with room for one packet, so at most one write of each waits; and an
// edge-triggered epoll reports files in the order in which they became readable.
type pipes struct {
	fds    [2]int   // our ends of stdout and stderr; -1 when closed
	epoll  *os.File // known to Go's poller, so that waiting blocks no thread
	fd     int      // of it
	events syscall.RawConn
	end    atomic.Pointer[time.Time]
}

func openPipes() (_ *pipes, stdout, stderr *os.File, err error) {
	p := &pipes{fds: [2]int{-1, -1}}
	if p.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, nil, nil, os.NewSyscallError("epoll_create1", err)
	}
	err = os.NewSyscallError("fcntl", unix.SetNonblock(p.fd, true)) // a file that is not is unknown to Go's poller
	p.epoll = os.NewFile(uintptr(p.fd), "output")
	if err == nil {
		p.events, err = p.epoll.SyscallConn()
	}
	if err == nil {
		stdout, err = p.add(sandbox.Stdout)
	}
	if err == nil {
		stderr, err = p.add(sandbox.Stderr)
	}
	if err != nil {
		p.close()
		_ = stdout.Close() // it may be nil
		return nil, nil, nil, err
	}
	return p, stdout, stderr, nil
}

// add makes the pipe of a stream and returns the command's end.
func (p *pipes) add(stream sandbox.Stream) (*os.File, error) {
	var ends [2]int
	err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_DIRECT)
	if errors.Is(err, unix.EINVAL) { // no packet mode: what is written at once may be read as one
		err = unix.Pipe2(ends[:], unix.O_CLOEXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	theirs := os.NewFile(uintptr(ends[1]), "command")
	p.fds[stream-1] = ends[0]
	_, _ = unix.FcntlInt(uintptr(ends[1]), unix.F_SETPIPE_SZ, slot) // a larger one loses the order, no bytes
	if err := unix.SetNonblock(ends[0], true); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl", err), theirs.Close())
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(stream)}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, ends[0], &event); err != nil {
		return nil, errors.Join(os.NewSyscallError("epoll_ctl", err), theirs.Close())
	}
	return theirs, nil
}

// lastWrites is how many writes are handed over at endAt's time: those that wait, and some of a
// process that continues to write.
const lastWrites = 32

// copy hands over what is written until both streams have ended, or endAt's time; also what was
// written by then but has not been read.
func (p *pipes) copy(keep func(sandbox.Stream, []byte)) {
	buf := make([]byte, readSize)
	_ = p.events.Read(func(uintptr) bool { // fails at endAt's time
		for idle := looks; p.fds != [2]int{-1, -1} && !p.timedOut(); {
			switch {
			case p.readNext(buf, keep):
				idle = 0
			case idle >= looks:
				return false // sleep until there is more
			default:
				idle++
			}
		}
		return true
	})
	for range lastWrites {
		if !p.readNext(buf, keep) {
			return
		}
	}
}

// timedOut reports whether it is endAt's time.
func (p *pipes) timedOut() bool {
	end := p.end.Load()
	return end != nil && time.Now().After(*end)
}

// readNext hands over what was written next, and reports whether there was something.
func (p *pipes) readNext(buf []byte, keep func(sandbox.Stream, []byte)) bool {
	var event [1]unix.EpollEvent // one by one: a later one may be overtaken meanwhile
	n, err := unix.EpollWait(p.fd, event[:], 0)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.EpollWait(p.fd, event[:], 0)
	}
	if n <= 0 {
		return false
	}
	p.readEvent(sandbox.Stream(event[0].Fd), event[0].Events, buf, keep) //nolint:gosec // 1 or 2
	return true
}

// readEvent reads what an event has announced: one write, or all when there will be no more.
func (p *pipes) readEvent(stream sandbox.Stream, events uint32, buf []byte, keep func(sandbox.Stream, []byte)) {
	fd := p.fds[stream-1]
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if n <= 0 {
			p.closeEnd(stream)
			return
		}
		keep(stream, buf[:n])
		if n < len(buf) && events&unix.EPOLLHUP == 0 {
			return
		}
	}
}

// closeEnd closes our end of a stream, which also takes it off the epoll.
func (p *pipes) closeEnd(stream sandbox.Stream) {
	if fd := p.fds[stream-1]; fd >= 0 {
		_ = unix.Close(fd) // nothing is written there
		p.fds[stream-1] = -1
	}
}

// endAt makes copy return at that time.
func (p *pipes) endAt(t time.Time) {
	p.end.Store(&t)
	_ = p.epoll.SetReadDeadline(t)
}

// close must not run concurrently with copy.
func (p *pipes) close() {
	p.closeEnd(sandbox.Stdout)
	p.closeEnd(sandbox.Stderr)
	_ = p.epoll.Close() // as there
}
