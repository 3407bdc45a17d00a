//go:build linux

package initd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// launch starts sandboxes until the worker is gone: each is a process in namespaces of its own, a
// child of the worker. It is a separate process because a start in a new user namespace copies the
// page tables of the starting process, and those of a worker are large.
func launch(conn *wire.Conn) error {
	for _, fd := range []int{fdControl, fdImage} {
		unix.CloseOnExec(fd)
	}
	if err := leaveProcesses(); err != nil {
		return err
	}
	for {
		m, err := conn.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		pid, err := spawn(m)
		m.CloseFDs()
		if err != nil {
			err = conn.Send(m.ID, wire.KindFailed, Failure(StageLaunch, err))
		} else {
			err = conn.Send(m.ID, wire.KindLaunched, wire.Launched{PID: pid})
		}
		if err != nil {
			return err
		}
	}
}

// spawn starts a sandbox with the control socket that came with the request, in the control group
// that did, if one did. Its first process reports failures through the socket.
func spawn(m *wire.Message) (pid int, err error) {
	var config wire.Config
	if err := m.Decode(&config); err != nil {
		return 0, err
	}
	if m.Kind != wire.KindConfig || len(m.FDs) < 1 || len(m.FDs) > 2 {
		return 0, fmt.Errorf("%w: kind %d with %d descriptors", wire.ErrMalformed, m.Kind, len(m.FDs))
	}
	from := inherited{control: m.FDs[0]}
	if config.Privileged {
		owners := newTranslations()
		defer owners.close()
		config.HostUID, config.HostGID = owners.host, owners.host
		from.trees, err = openTrees(config, owners)
		defer closeAll(from.trees)
		if err != nil {
			return 0, err
		}
	}
	var group *int
	if len(m.FDs) > 1 {
		group = &m.FDs[1]
	}
	return from.fork(config, group)
}

// fork makes the first process of a sandbox, in a control group unless that is nil.
func (from inherited) fork(config wire.Config, group *int) (int, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, &stepError{step: "pipe", err: err}
	}
	defer closeAll(ends[:])
	from.mapped, from.mapping = ends[0], ends[1]
	list, err := setup(config, from)
	if err != nil {
		return 0, err
	}
	if group != nil {
		list.ForkInto(*group)
	}
	c := clone(config)
	pid, err := list.Fork(c.flags, from.control, wire.Head(wire.KindAborted))
	runtime.KeepAlive(list)
	if err != nil {
		return 0, &stepError{step: StepNamespaces, err: err}
	}
	if err := c.mapUsers(pid); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // it waits; the worker reaps it when it reads of this
		return pid, tell(from.control, &stepError{step: StepNamespaces, err: err})
	}
	_, err = unix.Write(from.mapping, []byte{0})
	return pid, err
}

// StepNamespaces is the step that fails on hosts that let this user make no namespaces.
const StepNamespaces = "new namespaces"

// cloned is how a first process is made.
type cloned struct {
	flags      uintptr
	uids, gids []ids
	setgroups  bool // it may change its groups
}

// ids maps a user or a group of a namespace to one of the host.
type ids struct{ id, host int }

// clone has a process get namespaces of its own. It is a child of the worker.
func clone(config wire.Config) *cloned {
	c := &cloned{
		flags: uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC |
			unix.CLONE_NEWUTS | unix.CLONE_PARENT),
		uids: []ids{{User, config.HostUID}}, gids: []ids{{User, config.HostGID}}, setgroups: config.Privileged,
	}
	if config.Network != isolation.NetworkAll {
		c.flags |= unix.CLONE_NEWNET
	}
	if seam.clone != nil {
		seam.clone(config, c)
	}
	return c
}

// mapUsers says who the users of a process's namespace are on the host.
func (c *cloned) mapUsers(pid int) error {
	if c.flags&unix.CLONE_NEWUSER == 0 {
		return nil
	}
	if !c.setgroups { // who is not privileged may not map groups otherwise
		if err := writeProc(pid, "setgroups", "deny"); err != nil {
			return err
		}
	}
	return errors.Join(writeProc(pid, "uid_map", text(c.uids)), writeProc(pid, "gid_map", text(c.gids)))
}

// text is a map as the kernel reads it.
func text(all []ids) string {
	var lines []byte
	for _, m := range all {
		lines = strconv.AppendInt(lines, int64(m.id), 10)
		lines = strconv.AppendInt(append(lines, ' '), int64(m.host), 10)
		lines = append(lines, " 1\n"...)
	}
	return string(lines)
}

// tell sends a failure to the worker in the name of a sandbox that could not.
func tell(control int, failed error) error {
	fd, err := unix.FcntlInt(uintptr(control), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	conn, err := wire.Open(fd)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	return errors.Join(conn.Send(0, wire.KindFailed, Failure(StageLaunch, failed)), conn.Close())
}

func writeProc(pid int, name, value string) error {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/"+name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	_, err = unix.Write(fd, []byte(value))
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
