//go:build linux

package initd

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// commands are the commands of a sandbox and everything that they have started, which
// becomes a child of this process when its parent ends.
//
// The end of a command is the end of its tree. When no other command runs, that is every process
// but this one: one system call kills them all. Otherwise its processes are those with its tag; one
// that hides from that lives until no command runs.
type commands struct {
	conn *Conn
	born chan struct{} // receives when there may be children

	mu      sync.Mutex // held while processes are started and swept
	running map[uint64]*command
	pids    map[int]*command
}

func newCommands(conn *Conn) *commands {
	return &commands{
		conn: conn, born: make(chan struct{}, 1),
		running: map[uint64]*command{}, pids: map[int]*command{},
	}
}

// start forks a command.
func (t *commands) start(c *command, fork func() (int, error)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return err
	}
	c.pid = pid
	t.running[c.id], t.pids[pid] = c, c
	t.reniceLater(c, time.Now(), reniceSteps())
	if c.limits.Memory > 0 || c.limits.Disk > 0 {
		c.done = make(chan struct{})
		go t.watch(c)
	}
	select {
	case t.born <- struct{}{}:
	default: // reap has been woken already
	}
	return nil
}

// reap waits for children, for ever. A process id is not free before the lock is held: otherwise a
// command that is started meanwhile could get the id of an ended command, and its end.
func (t *commands) reap() {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		t.mu.Lock()
		t.drain()
		t.finishEnded()
		t.mu.Unlock()
		if err != nil { // no children
			<-t.born
		}
	}
}

// reaped notes the end of a process.
func (t *commands) reaped(pid int, status unix.WaitStatus, usage *unix.Rusage) {
	c := t.pids[pid]
	if c == nil {
		return // something that a command has started
	}
	delete(t.pids, pid)
	e := ended(status, usage)
	c.ended = &e
}

// ended describes the end of the first process of a command.
func ended(status unix.WaitStatus, usage *unix.Rusage) Ended {
	return Ended{
		Status: uint32(status),
		CPU:    time.Duration(usage.Utime.Nano() + usage.Stime.Nano()),
		MaxRSS: int64(usage.Maxrss) << 10, //nolint:unconvert // 32 bits on some systems
	}
}

// finishEnded ends the processes that commands have left behind, and reports the ends of the
// commands.
func (t *commands) finishEnded() {
	for _, c := range t.running {
		if c.ended == nil {
			continue
		}
		if c.asked && !c.killed && t.hasProcesses(c) {
			continue // it may clean up; the worker knows how long
		}
		c.ended.Left = !t.sweep(c)
		delete(t.running, c.id)
		if c.done != nil {
			close(c.done)
		}
		c.ended.Over = c.over
		reply(t.conn, &Message{ID: c.id, Kind: KindExec}, *c.ended, nil)
		if len(t.running) == 0 {
			removeShared()
		}
	}
}

// none reports whether no command runs, or is just being dealt with.
func (t *commands) none() bool {
	if !t.mu.TryLock() {
		return false
	}
	defer t.mu.Unlock()
	return len(t.running) == 0
}

// isOnly reports whether every process is c's.
func (t *commands) isOnly(c *command) bool { return len(t.running) == 1 && t.running[c.id] == c }

// childless reports that there is no process but this one.
func childless() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return errors.Is(err, unix.ECHILD)
}

// hasProcesses reports whether a process of c lives.
func (t *commands) hasProcesses(c *command) bool {
	if childless() {
		return false
	}
	return t.isOnly(c) || len(t.members(c)) > 0
}

// Times of a sweep while other commands run.
const (
	sweepPause = 200 * time.Microsecond
	sweepWait  = time.Second
)

// sweep kills and reaps everything of c, which has ended itself. It reports whether nothing is
// left.
func (t *commands) sweep(c *command) bool {
	if childless() {
		return true
	}
	if t.isOnly(c) {
		t.sweepAll()
		return true
	}
	deadline := time.Now().Add(sweepWait)
	for pause := sweepPause; ; pause *= 2 {
		members := t.members(c)
		if len(members) == 0 {
			return true
		}
		for _, pid := range members {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		if t.drain(); time.Now().After(deadline) {
			return false
		}
		<-time.After(pause)
	}
}

// sweepAll kills and reaps every process but this one. New ones cannot be started meanwhile.
func (t *commands) sweepAll() {
	_ = unix.Kill(-1, unix.SIGKILL) // there may be none
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, 0, &usage)
		if errors.Is(err, unix.ECHILD) {
			return
		}
		if err == nil {
			t.reaped(pid, status, &usage)
		}
	}
}

// drain reaps what has ended.
func (t *commands) drain() {
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, &usage)
		if err != nil && !errors.Is(err, unix.EINTR) || pid == 0 {
			return
		}
		t.reaped(pid, status, &usage)
	}
}

// signal sends to everything of a command.
func (t *commands) signal(request Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.running[request.Command]
	if c == nil {
		return // it has ended
	}
	sig := syscall.SIGTERM
	c.asked = true
	if request.Kill {
		sig, c.killed = syscall.SIGKILL, true
	}
	t.send(c, sig)
	t.finishEnded()
}

// send sends a signal to everything of a command.
func (t *commands) send(c *command, sig syscall.Signal) {
	if t.isOnly(c) {
		_ = unix.Kill(-1, sig) // it may have ended
		return
	}
	for _, pid := range t.members(c) {
		_ = unix.Kill(pid, sig) // it may have ended
	}
}

// members are the processes with c's tag, or with that of no running command.
func (t *commands) members(c *command) []int { return t.allMembers(c)[c] }

// allMembers are the processes of each running command, by their tags; those with the tag of no
// running command count as c's.
func (t *commands) allMembers(c *command) map[*command][]int {
	members := map[*command][]int{}
	for _, pid := range processes() {
		var limit unix.Rlimit
		if pid != os.Getpid() && unix.Prlimit(pid, unix.RLIMIT_RTTIME, nil, &limit) == nil {
			owner := t.owner(tag(limit.Cur), c)
			members[owner] = append(members[owner], pid)
		}
	}
	return members
}

// owner is the running command with a tag; c if there is none.
func (t *commands) owner(b tag, c *command) *command {
	for _, other := range t.running {
		if other.tag == b {
			return other
		}
	}
	return c
}
