package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const treeWarning = ""

// sweepPause is the time between two scans for what is left of a command; it
// doubles up to sweepMaxPause.
const (
	sweepPause    = time.Millisecond
	sweepMaxPause = 64 * time.Millisecond
)

func prepareTrees() error { return commands.prepare() }

// startDir names an open directory so that nothing on the way to it can be
// exchanged before the command is in it.
func startDir(dir *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) }

// tree is every process of one command. Its methods are called by one goroutine,
// but for await.
type tree struct {
	cmd   *exec.Cmd
	in    *member
	mark  string
	brand brand
	pid   int

	born     uint64           // when the command started, in ticks since boot
	sessions map[int]struct{} // of processes that were seen in the tree
}

func newTree(cmd *exec.Cmd, in *member) *tree {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in.prepare(cmd)
	t := &tree{cmd: cmd, in: in, brand: newBrand(), sessions: make(map[int]struct{})}
	for _, entry := range cmd.Env {
		if value, ok := strings.CutPrefix(entry, MarkVar+"="); ok {
			t.mark = value
		}
	}
	return t
}

func (t *tree) start() error {
	err := commands.start(t.brand, func() (int, error) {
		if err := t.cmd.Start(); err != nil {
			return 0, err
		}
		return t.cmd.Process.Pid, nil
	})
	if err != nil {
		return err
	}
	t.pid = t.cmd.Process.Pid
	t.sessions[t.pid] = struct{}{}
	if p, ok := readProc(t.pid); ok {
		t.born = p.start
	}
	return nil
}

// await blocks until the command itself has ended, and leaves it to be reaped by
// finish: until then its id, and its group's, stand for nothing else.
func (t *tree) await() {
	for {
		err := unix.Waitid(unix.P_PID, t.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// terminate asks every process of the tree to end.
func (t *tree) terminate() {
	members, err := t.scan()
	if err != nil {
		_ = unix.Kill(-t.pid, unix.SIGTERM) // the best that can be done without /proc
		return
	}
	for _, p := range members {
		signal(p, syscall.SIGTERM)
	}
}

// alive reports whether any process of the tree runs.
func (t *tree) alive() bool {
	members, err := t.scan()
	if err != nil {
		return true
	}
	for _, p := range members {
		if !p.ended() {
			return true
		}
	}
	return false
}

// kill kills the tree before the command itself is reaped.
func (t *tree) kill() {
	_ = unix.Kill(-t.pid, unix.SIGKILL) // all of the group at once: forks cannot outrun it
	_ = t.in.KillAlone()                // nor leave this one
	members, err := t.scan()
	if err != nil {
		return // finish reports it
	}
	for _, p := range members {
		signal(p, syscall.SIGKILL)
	}
}

// finish reaps the command itself, which has ended, and sweeps.
func (t *tree) finish() error {
	_ = unix.Kill(-t.pid, unix.SIGKILL) // whoever is left in the group
	err := t.cmd.Wait()
	commands.reaped(t.pid)
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		return fmt.Errorf("wait for process %d: %w", t.pid, err)
	}
	return t.sweep()
}

// sweep kills and reaps until nothing of the tree is left.
func (t *tree) sweep() error {
	deadline := time.Now().Add(killWait)
	for pause := sweepPause; ; pause = min(2*pause, sweepMaxPause) {
		left, err := t.pass()
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %d of the command %q", sandbox.ErrLeftover, left, t.cmd.Args[0])
		}
		<-time.After(pause)
	}
}

// pass kills and reaps once, and returns how many processes were there.
func (t *tree) pass() (int, error) {
	if childless() {
		return 0, nil
	}
	_ = t.in.KillAlone() // who starts others is stopped first
	members, err := t.scan()
	if err != nil {
		return 0, err
	}
	for _, p := range members {
		signal(p, syscall.SIGKILL)
		reap(p)
	}
	return len(members), nil
}

// childless reports that this process has no children at all. As it adopts orphans,
// nothing of any command is left then.
func childless() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return errors.Is(err, unix.ECHILD)
}

// signal sends to exactly the process that was seen, and to none that got its id since.
func signal(p proc, sig syscall.Signal) {
	handle, err := os.FindProcess(p.pid)
	if err != nil {
		return
	}
	defer handle.Release() //nolint:errcheck // cannot fail
	if now, ok := readProc(p.pid); ok && now.start == p.start {
		_ = handle.Signal(sig) // it may have ended
	}
}

// reap waits for p if it is a child of this process that has ended.
func reap(p proc) {
	if p.ppid == os.Getpid() {
		_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil) // not ended: another pass finds it
		commands.reaped(p.pid)
	}
}
