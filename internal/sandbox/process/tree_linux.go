package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/image"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const treeWarning = ""

// terminals says whether commands can have one.
const terminals = true

// startDir names an open directory so that nothing on the way to it can be
// exchanged before the command is in it.
func startDir(dir *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) }

// guardProgram is what guards are; this program will do where the system lets no memory file be
// one.
var guardProgram = sync.OnceValues(func() (*os.File, error) { //nolint:gochecknoglobals // one for all, read-only
	if program, err := image.Open(); err == nil {
		return program, nil
	}
	return os.Open("/proc/self/exe")
})

// tree is every process of one command, by their guard.
type tree struct {
	cmd   *exec.Cmd // the command
	in    *supervisor.Bound
	guard *exec.Cmd // who starts it
	conn  *initd.Conn
	gone  chan struct{} // closed when nothing is left, or the guard has given up
	pid   int
	ended initd.Ended // set before gone is closed
}

func newTree(cmd *exec.Cmd, in *supervisor.Bound) *tree {
	return &tree{cmd: cmd, in: in, gone: make(chan struct{})}
}

// start starts the command of a sandbox under limits. It may run until the lease of the sandbox
// ends.
func (t *tree) start(s *Sandbox, cmd sandbox.Cmd, limits sandbox.Limits) error {
	program, err := guardProgram()
	if err != nil {
		return err
	}
	conn, theirs, err := initd.Pair()
	if err != nil {
		return err
	}
	c, group := t.cmd, t.in.Group()
	t.conn, t.guard = conn, &exec.Cmd{
		Path: initd.Image, Args: []string{initd.Arg0, initd.StageGuard}, Env: []string{initd.OneThread}, Dir: c.Dir,
		Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, ExtraFiles: []*os.File{theirs, program},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}, // what is typed at a terminal does not stop it
	}
	if group != nil {
		t.guard.ExtraFiles = append(t.guard.ExtraFiles, group.Dir())
	}
	err = t.guard.Start()
	if err = errors.Join(err, theirs.Close()); err != nil {
		return errors.Join(fmt.Errorf("start the guard of a command: %w", err), conn.Close())
	}
	o := initd.Order{Path: c.Path, Argv: c.Args, Env: c.Env, Limits: initd.NewLimits(limits), Terminal: cmd.Typed != nil, Group: group != nil}
	if s.confined {
		o.Landlock = &initd.Landlock{
			Workspace: s.spec.Workspace, Scratch: s.spec.Scratch, Mounts: s.spec.Mounts,
			ReadOnly: cmd.ReadOnly, Network: s.spec.Network.Mode == isolation.NetworkAll,
		}
	}
	leaseEnd := s.spec.LeaseEnd
	var last time.Time
	if leaseEnd != nil {
		last = leaseEnd()
		o.Deadline = int64(start.DeadlineAt(last))
	}
	if err := t.order(o); err != nil {
		_ = t.conn.Close() // it ends by that
		_ = t.guard.Wait() // as above
		return err
	}
	if leaseEnd != nil {
		go start.SendDeadlines(leaseEnd, last, t.gone, func(d start.Deadline) error {
			return t.conn.Send(0, initd.KindLease, initd.Lease{Deadline: int64(d)})
		})
	}
	return nil
}

// order has the guard start the command.
func (t *tree) order(o initd.Order) error {
	if err := t.conn.Send(0, initd.KindExec, o); err != nil {
		return err
	}
	m, err := t.conn.Receive()
	if err != nil {
		return fmt.Errorf("the guard of a command: %w", err)
	}
	var launched initd.Launched
	if m.Kind == initd.KindFailed {
		err = m.Failure()
		if failed, ok := errors.AsType[*initd.Failed](err); ok && failed.Errno != 0 {
			return syscall.Errno(failed.Errno)
		}
	} else {
		err = m.Decode(&launched)
	}
	if err != nil {
		return fmt.Errorf("the guard of a command: %w", err)
	}
	t.pid = launched.PID
	return nil
}

// await blocks until nothing of the command is left, or its guard has given up.
func (t *tree) await() {
	defer close(t.gone)
	m, err := t.conn.Receive()
	if err == nil {
		err = m.Decode(&t.ended)
	}
	if err != nil { // it was killed, and the command with it
		t.ended = initd.Ended{Status: uint32(syscall.SIGKILL), Over: sandbox.ReasonLost}
		_ = unix.Kill(-t.pid, unix.SIGKILL) // as far as is known
	}
}

// signal asks every process of the command to end, or kills them.
func (t *tree) signal(kill bool) {
	_ = t.conn.Send(0, initd.KindSignal, initd.Signal{Kill: kill}) // if it cannot be sent, nothing is left
	if kill {
		_ = t.in.KillAlone() // at once, where there is a control group
	}
}

// finish reaps the guard.
func (t *tree) finish() error {
	if t.ended.Left {
		return fmt.Errorf("%w: of the command %q", isolation.ErrLeftover, t.cmd.Args[0])
	}
	_ = t.guard.Wait() // it has said all
	return t.conn.Close()
}

// sweep waits for a guard that has given up once, and tries again.
func (t *tree) sweep() error {
	_ = t.in.KillAlone()
	t.conn.ReceiveUntil(time.Now().Add(initd.KillWait))
	m, err := t.conn.Receive()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return t.finish()
	}
	if err == nil {
		err = m.Decode(&t.ended)
	}
	t.ended.Left = false
	return errors.Join(err, t.finish())
}

// describe puts how the command ended under its limits, and what it used, into result.
func (t *tree) describe(result *sandbox.Result, limits sandbox.Limits) {
	result.CPU, result.MaxRSS = t.ended.CPU, t.ended.MaxRSS
	start.Describe(result, syscall.WaitStatus(t.ended.Status), t.ended.Over, limits)
}

// newBounds makes a control group for a sandbox, if there can be one.
func newBounds(limits sandbox.Limits) (*supervisor.Bounds, error) {
	var groups *cgroup.Tree
	if !ungrouped.Load() {
		groups, _ = cgroup.Find() // limits are enforced in other ways then, and published so
	}
	return supervisor.NewBounds(groups, supervisor.Spare{}, limits)
}

func limitKinds() isolation.LimitKinds {
	return isolation.LimitKinds{
		CPU: isolation.LimitRlimit, Memory: isolation.LimitRlimit, OpenFiles: isolation.LimitRlimit, FileSize: isolation.LimitRlimit,
		Processes: isolation.LimitNone, // the system counts all processes of the user, the worker's too
		Disk:      isolation.LimitNone,
	}
}
