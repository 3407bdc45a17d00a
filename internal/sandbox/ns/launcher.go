//go:build linux

package ns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/image"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
)

// launchers starts the sandboxes of this process.
var launchers launcher //nolint:gochecknoglobals // children are the process's, not a driver's

// launcher is a small process that starts sandboxes as children of this one. It is started
// with the first sandbox, and again when it is gone; it ends with this process. It is safe for
// concurrent use.
type launcher struct {
	mu      sync.Mutex
	conn    *wire.Conn // nil when it does not run
	command *exec.Cmd
}

// errLauncher says that the launcher is gone, or does not answer: it has been ended.
var errLauncher = errors.New("the launcher is lost")

// launch starts a sandbox that has one end of a control socket, in a group unless that is nil.
// After [errLauncher] there may be a process that has the socket, and ends with it: the next one
// needs another.
func (l *launcher) launch(config wire.Config, control *os.File, group *cgroup.Group) (*os.Process, error) {
	fds := []int{int(control.Fd())}
	if group != nil {
		fds = append(fds, int(group.Dir().Fd()))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	pid, err := l.ask(config, fds)
	if _, ok := errors.AsType[*startError](err); err != nil && !ok {
		l.end()
		err = fmt.Errorf("%w: %w", errLauncher, err)
	}
	if err != nil {
		return nil, err
	}
	return os.FindProcess(pid) // a child of this process, so the id is no one else's
}

// ask starts the launcher if need be and has it start a sandbox.
func (l *launcher) ask(config wire.Config, fds []int) (pid int, err error) {
	if l.conn == nil {
		if err := l.start(); err != nil {
			return 0, err
		}
	}
	if err := l.conn.Send(0, wire.KindConfig, config, fds...); err != nil {
		return 0, err
	}
	l.conn.ReceiveUntil(time.Now().Add(startWait))
	m, err := l.conn.Receive()
	if err != nil {
		return 0, err
	}
	m.CloseFDs() // there are none
	if m.Kind == wire.KindFailed {
		return 0, failed(m)
	}
	var launched wire.Launched
	err = m.Decode(&launched)
	return launched.PID, err
}

func (l *launcher) start() error {
	program, err := image.Open()
	if err != nil {
		return err
	}
	conn, theirs, err := wire.Pair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	command := &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", program.Fd()), Args: []string{initd.Arg0, initd.StageLaunch},
		Env: []string{initd.OneThread}, ExtraFiles: []*os.File{theirs, program},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}, // what is typed at a terminal does not end it
	}
	if err := command.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the launcher: %w", err), conn.Close())
	}
	l.conn, l.command = conn, command
	return nil
}

// end ends the launcher; the sandboxes that it has started stay.
func (l *launcher) end() {
	if l.conn == nil {
		return
	}
	_ = l.conn.Close()
	_ = l.command.Process.Kill() // it may have ended
	_ = l.command.Wait()         // it was killed
	l.conn, l.command = nil, nil
}
