//go:build linux

// Package initd is the program inside of a sandbox: its first process, which has started the
// sandbox before it was shut in, and then runs commands and file operations on request.
//
//	worker ──exec──► launch   one for all sandboxes, with the worker's rights; opens what
//	                   │      the sandbox will see
//	                   │ clone: new user, mount, process, network, IPC, host name namespaces
//	                   ▼
//	                 setup    PID 1; a copy of launch that makes a list of system calls: builds its
//	                   │      own root and leaves the old one; gives up every right that it can give up
//	                   │ exec, so that every thread is restricted
//	                   ▼
//	                 serve    tests itself; answers requests until the worker is gone
//
// Where the host allows only bwrap to create namespaces, bwrap does the work of launch and the
// first half of setup; the other half is then a stage that is called shut.
//
// The stages, but for setup, are one binary, see [Main]. It is started from a sealed memory file:
// what runs as the sandbox's first process is no file of the host, and needs none to be reachable.
// Its environment says how many threads it may use and nothing else, and it has these descriptors:
// 0 to 2 are nothing, 3 is the control socket, 4 the binary; from 5 on are directories that launch
// has opened.
//
// A failure before serve is reported to the worker, with the step, and ends the sandbox. When the
// worker is gone, the control socket ends, the first process with it, and the kernel kills the
// rest. The same happens when the worker's lease has ended; the first process is notified of each
// renewal (package start).
package initd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Arg0 is the name under which the binary is the program of this package.
const Arg0 = "toolfleet-sandbox"

// The stages, the second word of the command line.
const (
	StageLaunch = "launch"
	StageShut   = "shut" // what follows when bwrap has made the namespaces
	stageServe  = "serve"
	StageGuard  = "guard" // no stage of a sandbox, see guard
)

// Descriptors of the stages.
const (
	fdControl = 3
	fdImage   = 4
)

// Environments of the stages: few threads, which start faster and can be counted.
const (
	OneThread    = "GOMAXPROCS=1" // at a time
	threeThreads = "GOMAXPROCS=3"
)

// Image is how a stage starts the next one.
const Image = "/proc/self/fd/4"

// User is whom commands are in the sandbox, user and group.
const User = 1000

// stepError says which step failed.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }

func (e *stepError) Unwrap() error { return e.err }

// step runs one step of a stage.
func step(name string, f func() error) error {
	if err := f(); err != nil {
		return &stepError{step: name, err: err}
	}
	return nil
}

// layer adds a step on which what a sandbox promises rests. The tests of this package break
// such steps, by seam.
func layer(l *confine.List, config Config, name string, add func()) {
	l.Step(name)
	if seam.step != nil {
		seam.step(l, config, name, add)
		return
	}
	add()
}

// seam is how the tests of this package make sandboxes from which something is missing, to see
// that those do not serve. Nothing but their code can set it; in a program it is empty.
var seam struct { //nolint:gochecknoglobals // as above
	step  func(l *confine.List, config Config, name string, add func())
	clone func(config Config, c *cloned)
}

// Whole reports that nothing is missing from this package in this program, so that another program
// with it can stand in for this one.
func Whole() bool { return seam.step == nil && seam.clone == nil }

// Main runs the stage that args ask for and never returns.
func Main(args []string) {
	os.Exit(run(args))
}

func run(args []string) int {
	if len(args) != 2 {
		return 2
	}
	conn, err := OpenConn(fdControl)
	if err != nil {
		return 2
	}
	switch args[1] {
	case StageLaunch:
		err = launch(conn)
	case StageShut:
		err = shut(conn)
	case stageServe:
		err = serve(conn)
	case StageGuard:
		err = supervise(conn)
	default:
		return 2
	}
	if err == nil {
		return 0
	}
	_ = conn.Send(0, KindFailed, Failure(args[1], err)) // there is no other way to report it
	return 1
}

// Failure says at which step something went wrong; at a stage as such if err does not say.
func Failure(stage string, err error) Failed {
	failed := Failed{Step: stage, Reason: err.Error()}
	if s, ok := errors.AsType[*stepError](err); ok {
		failed.Step, failed.Reason = s.step, s.err.Error()
	}
	if c, ok := errors.AsType[*confine.Error](err); ok {
		failed.Step, failed.Reason = c.Step, c.Errno.Error()
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		failed.Errno = int(errno)
	}
	return failed
}

// receiveConfig returns the configuration, the first message of a worker to a stage of a sandbox.
func receiveConfig(conn *Conn) (config Config, err error) {
	m, err := conn.Receive()
	if err != nil {
		return config, fmt.Errorf("configuration: %w", err)
	}
	m.CloseFDs() // there are none
	if m.Kind != KindConfig {
		return config, fmt.Errorf("configuration: %w: kind %d", ErrMalformed, m.Kind)
	}
	return config, m.Decode(&config)
}

// launch starts sandboxes until the worker is gone: each is a process in namespaces of its own, a
// child of the worker. It is a separate process because a start in a new user namespace copies the
// page tables of the starting process, and those of a worker are large.
func launch(conn *Conn) error {
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
			err = conn.Send(m.ID, KindFailed, Failure(StageLaunch, err))
		} else {
			err = conn.Send(m.ID, KindLaunched, Launched{PID: pid})
		}
		if err != nil {
			return err
		}
	}
}

// spawn starts a sandbox with the control socket that came with the request, in the control group
// that did, if one did. Its first process reports failures through the socket.
func spawn(m *Message) (pid int, err error) {
	var config Config
	if err := m.Decode(&config); err != nil {
		return 0, err
	}
	if m.Kind != KindConfig || len(m.FDs) < 1 || len(m.FDs) > 2 {
		return 0, fmt.Errorf("%w: kind %d with %d descriptors", ErrMalformed, m.Kind, len(m.FDs))
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
func (from inherited) fork(config Config, group *int) (int, error) {
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
	pid, err := list.Fork(c.flags, from.control, head(KindAborted))
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
func clone(config Config) *cloned {
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
	conn, err := OpenConn(fd)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	return errors.Join(conn.Send(0, KindFailed, Failure(StageLaunch, failed)), conn.Close())
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
