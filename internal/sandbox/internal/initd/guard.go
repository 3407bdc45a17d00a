//go:build linux

package initd

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// A guard is the parent of one command that is not in a sandbox of namespaces: it adopts what the
// command leaves behind, and ends all of it with the command, with the worker, and with the
// worker's lease.
//
//	worker ──exec──► guard ──fork──► command ──► ...
//	   │ ◄─control socket─┘

// fdGroup is the descriptor that follows those of every stage: the control group, if there is one.
const fdGroup = 5

// KillWait is how long killed processes may take to be gone.
const KillWait = 5 * time.Second

// Order is the command that a guard starts. It runs in the guard's directory.
type Order struct {
	Path     string
	Argv     []string
	Env      []string
	Limits   Limits    // the kernel enforces them for each process
	Terminal bool      // the command gets a terminal between its input and its output
	Group    bool      // there is a control group
	Landlock *Landlock // what the command may do; nil is everything
	Deadline int64
}

// guard is the parent of one command, and adopts what loses its parent. So its descendants are the
// command's processes, whatever they do; without a child there are none. It kills them when the
// command has ended, on request, when the worker is gone, and when the worker's lease has ended.
type guard struct {
	conn  *Conn
	lease *start.Watchdog
	main  int           // the command itself
	kill  chan struct{} // closed when everything has to end
	once  sync.Once

	mu    sync.Mutex
	asked bool // the command was, to end: what it has started may take its time
	ended Ended

	screen *start.Terminal // nil without
}

// supervise is the main function of a guard, with its end of the control socket. It returns only if
// the command does not start.
func supervise(conn *Conn) error {
	runtime.LockOSThread() // the kernel ends the command with the thread that starts it
	g := &guard{conn: conn, kill: make(chan struct{})}
	if err := g.begin(); err != nil {
		return err
	}
	_ = conn.Send(0, KindLaunched, Launched{PID: g.main}) // that the worker is gone is noticed by receive
	go g.receive()
	go g.sweep()
	g.reap()
	g.drain()
	g.mu.Lock()
	_ = conn.Send(0, KindExec, g.ended) // as above
	unix.Exit(0)                        // at once: a race detector would wait
	return nil
}

// begin starts the command.
func (g *guard) begin() error {
	m, err := g.conn.Receive()
	if err != nil {
		return err
	}
	var o Order
	if err := m.Decode(&o); err != nil {
		return err
	}
	if err := unix.CloseRange(fdControl, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	if g.lease, err = start.NewWatchdog(func() { g.end(sandbox.ReasonCancelled) }); err != nil {
		return err
	}
	if o.Deadline > 0 {
		if err := g.lease.Extend(start.Deadline(o.Deadline)); err != nil {
			return err
		}
	}
	return g.fork(o)
}

// fork starts the command, and closes what only the command needs.
func (g *guard) fork(o Order) error {
	p := program{path: o.Path, argv: o.Argv, env: o.Env, files: []uintptr{0, 1, 2}, group: -1, ends: true}
	if o.Landlock != nil {
		p.confine = o.Landlock.confine
	}
	if o.Terminal {
		if err := g.openTerminal(); err != nil {
			return err
		}
		for fd := range p.files {
			p.files[fd] = g.screen.Command()
		}
		p.terminal = true
	}
	if o.Group {
		p.group = fdGroup
	}
	c := &command{limits: o.Limits, memory: o.Limits.Memory}
	pid, err := c.fork(p)
	if g.screen != nil {
		g.screen.Started(err == nil)
	}
	if err != nil {
		return err
	}
	g.main = pid
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	for fd := range 3 {
		if err == nil {
			err = unix.Dup3(null, fd, 0)
		}
	}
	return err // the command ends with this process
}

// openTerminal makes a terminal of the host's between the pipes of the command: the command opens
// no other by its name.
func (g *guard) openTerminal() (err error) {
	var pipes [2]int
	for fd := range pipes {
		if pipes[fd], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, fdGroup); err != nil {
			return err
		}
	}
	g.screen, err = start.OpenTerminal(pipes[0], pipes[1])
	return err
}

// drainWait is for the worker to read the rest of the screen of a command that has ended:
// longer than any busy machine takes.
const drainWait = 2 * time.Second

// drain waits for that.
func (g *guard) drain() {
	if g.screen == nil {
		return
	}
	select {
	case <-g.screen.Done():
	case <-time.After(drainWait):
	}
}

// receive does what the worker asks for. When the worker is gone, everything ends.
func (g *guard) receive() {
	defer g.end("")
	for {
		m, err := g.conn.Receive()
		if err != nil {
			return
		}
		var signal Signal
		var lease Lease
		switch {
		case m.Kind == KindLease && m.Decode(&lease) == nil && g.lease.Extend(start.Deadline(lease.Deadline)) == nil:
		case m.Kind == KindSignal && m.Decode(&signal) == nil && !signal.Kill:
			g.mu.Lock()
			g.asked = true
			g.mu.Unlock()
			signalAll(unix.SIGTERM)
		default:
			return
		}
	}
}

// end has everything killed.
func (g *guard) end(why sandbox.Reason) {
	g.once.Do(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.ended.Over = why
		close(g.kill)
	})
}

// reap waits for children until there is none.
func (g *guard) reap() {
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, 0, &usage)
		if errors.Is(err, unix.ECHILD) {
			return
		}
		if err != nil || pid != g.main {
			continue
		}
		g.mu.Lock()
		over := g.ended.Over
		g.ended = ended(status, &usage)
		g.ended.Over = over
		asked := g.asked
		g.mu.Unlock()
		if !asked {
			g.end("")
		}
	}
}

// guardPause is the time between two searches for processes of a command that has to end; it
// doubles up to guardMaxPause.
const (
	guardPause    = time.Millisecond
	guardMaxPause = 64 * time.Millisecond
)

// sweep kills everything, again and again, once it has to end. It says so when it does not succeed.
func (g *guard) sweep() {
	<-g.kill
	told, deadline := false, time.Now().Add(KillWait)
	for pause := guardPause; ; pause = min(2*pause, guardMaxPause) {
		signalAll(unix.SIGKILL)
		if !told && time.Now().After(deadline) {
			told = true
			g.mu.Lock()
			left := g.ended
			g.mu.Unlock()
			left.Left = true
			_ = g.conn.Send(0, KindExec, left) // as in supervise
		}
		<-time.After(pause)
	}
}

// signalAll sends to all descendants of this process, a process group at a time: forks cannot
// outrun that. The groups are theirs alone, as they are in sessions of their own.
func signalAll(sig syscall.Signal) {
	parents, groups := map[int][]int{}, map[int]int{}
	for _, p := range readProcs() {
		parents[p.ppid] = append(parents[p.ppid], p.pid)
		groups[p.pid] = p.pgrp
	}
	done := map[int]bool{}
	for next := parents[os.Getpid()]; len(next) > 0; {
		pid := next[0]
		next = append(next[1:], parents[pid]...)
		if group := groups[pid]; !done[group] {
			done[group] = true
			_ = unix.Kill(-group, sig) // it may have ended, or belong to another user by now
		}
	}
}

// proc is a process as /proc describes it.
type proc struct{ pid, ppid, pgrp int }

// readProcs returns every process that /proc shows.
func readProcs() []proc {
	var procs []proc
	for _, pid := range processes() {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if p, ok := parseStat(pid, stat); ok && err == nil {
			procs = append(procs, p)
		}
	}
	return procs
}

// processes are the ids of the processes that /proc shows; none when it cannot be read.
func processes() []int {
	entries, _ := os.ReadDir("/proc") // as above
	pids := make([]int, 0, len(entries))
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parseStat reads /proc/PID/stat: a name, which may contain anything, the state, the parent and the
// group.
func parseStat(pid int, stat []byte) (proc, bool) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 3 {
		return proc{}, false
	}
	ppid, err1 := strconv.Atoi(fields[1])
	pgrp, err2 := strconv.Atoi(fields[2])
	return proc{pid: pid, ppid: ppid, pgrp: pgrp}, errors.Join(err1, err2) == nil
}
