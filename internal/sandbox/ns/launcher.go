//go:build linux

package ns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/image"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// launchers starts the sandboxes of this process.
var launchers launcher //nolint:gochecknoglobals // children are the process's, not a driver's

// launcher is a small process that starts sandboxes as children of this one. It is started
// with the first sandbox, and again when it is gone; it ends with this process. It is safe for
// concurrent use.
type launcher struct {
	mu      sync.Mutex
	conn    *initd.Conn // nil when it does not run
	command *exec.Cmd
}

// errLauncher says that the launcher is gone, or does not answer: it has been ended.
var errLauncher = errors.New("the launcher is lost")

// launch starts a sandbox that has one end of a control socket, in a group unless that is nil.
// After [errLauncher] there may be a process that has the socket, and ends with it: the next one
// needs another.
func (l *launcher) launch(config initd.Config, control *os.File, group *cgroup.Group) (*os.Process, error) {
	fds := []int{int(control.Fd())}
	if group != nil {
		fds = append(fds, int(group.Dir().Fd()))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	pid, err := l.ask(config, fds)
	if _, ok := errors.AsType[*initd.Failed](err); err != nil && !ok {
		l.end()
		err = fmt.Errorf("%w: %w", errLauncher, err)
	}
	if err != nil {
		return nil, err
	}
	return os.FindProcess(pid) // a child of this process, so the id is no one else's
}

// ask starts the launcher if need be and has it start a sandbox.
func (l *launcher) ask(config initd.Config, fds []int) (pid int, err error) {
	if l.conn == nil {
		if err := l.start(); err != nil {
			return 0, err
		}
	}
	if err := l.conn.Send(0, initd.KindConfig, config, fds...); err != nil {
		return 0, err
	}
	l.conn.ReceiveUntil(time.Now().Add(startWait))
	m, err := l.conn.Receive()
	if err != nil {
		return 0, err
	}
	m.CloseFDs() // there are none
	if m.Kind == initd.KindFailed {
		return 0, m.Failure()
	}
	var launched initd.Launched
	err = m.Decode(&launched)
	return launched.PID, err
}

func (l *launcher) start() error {
	program, err := image.Open()
	if err != nil {
		return err
	}
	conn, theirs, err := initd.Pair()
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

// bwrapPath is the program of the launcher bwrap. Some hosts let this very file make
// namespaces and no other, so it is not looked for elsewhere.
const bwrapPath = "/usr/bin/bwrap"

// bwrap is a bubblewrap process that has started a sandbox and waits for its end.
type bwrap struct {
	command *exec.Cmd
	errors  *os.File // a memory file with what it has to say
}

// startBwrap starts a sandbox in namespaces that bubblewrap makes, in a group unless that is nil.
// It returns the first process, which is bubblewrap's child.
func startBwrap(config initd.Config, control *os.File, group *cgroup.Group) (*bwrap, *os.Process, error) {
	program, err := image.Open()
	if err != nil {
		return nil, nil, err
	}
	said, err := image.Unsealed("bwrap")
	if err != nil {
		return nil, nil, err
	}
	b := &bwrap{errors: said, command: &exec.Cmd{
		Path: bwrapPath, Env: []string{initd.OneThread}, ExtraFiles: []*os.File{control, program}, Stderr: said,
	}}
	if group != nil {
		b.command.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Dir().Fd())}
	}
	info, theirs, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, said.Close())
	}
	defer info.Close()
	args := arguments{files: &b.command.ExtraFiles}
	err = args.build(config, theirs)
	b.command.Args = append([]string{"bwrap"}, args.list...)
	if err == nil {
		err = b.command.Start()
	}
	for _, file := range b.command.ExtraFiles[2:] {
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start bwrap: %w", err), said.Close())
	}
	process, err := b.child(info)
	if err != nil {
		_ = b.command.Process.Kill() // it may have ended
		return nil, nil, errors.Join(err, b.wait())
	}
	return b, process, nil
}

// child reads which process is the sandbox's first. A bubblewrap that fails says why before it
// ends, and so before info does.
func (b *bwrap) child(info io.Reader) (*os.Process, error) {
	var child struct {
		PID int `json:"child-pid"` //nolint:tagliatelle // bubblewrap's word
	}
	if err := json.NewDecoder(info).Decode(&child); err != nil {
		said := make([]byte, 1<<10)
		n, _ := b.errors.ReadAt(said, 0)
		return nil, &initd.Failed{Step: "bwrap", Reason: strings.TrimSpace(string(said[:n]))}
	}
	return os.FindProcess(child.PID)
}

// wait waits for the end of bubblewrap, which is that of the sandbox.
func (b *bwrap) wait() error {
	err := b.command.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); ok || errors.Is(err, os.ErrProcessDone) {
		err = nil // it was killed, with the sandbox
	}
	return errors.Join(err, b.errors.Close())
}

// arguments are bubblewrap's command line, and the files that it refers to.
type arguments struct {
	list  []string
	files *[]*os.File
}

func (a *arguments) add(args ...string) { a.list = append(a.list, args...) }

// file adds a file to be inherited and returns its descriptor there.
func (a *arguments) file(file *os.File) string {
	*a.files = append(*a.files, file)
	return strconv.Itoa(2 + len(*a.files))
}

// build describes the same sandbox that package initd builds by itself.
func (a *arguments) build(config initd.Config, info *os.File) error {
	user := strconv.Itoa(initd.User)
	a.add("--info-fd", a.file(info), "--unshare-user", "--uid", user, "--gid", user, "--unshare-pid", "--unshare-ipc", "--unshare-uts",
		"--unshare-cgroup-try", "--hostname", initd.HostName, "--new-session", "--die-with-parent", "--as-pid-1")
	if config.Network != isolation.NetworkAll {
		a.add("--unshare-net")
	}
	for _, name := range initd.System {
		if link, err := os.Readlink("/" + name); err == nil {
			a.add("--symlink", link, "/"+name)
		} else {
			a.add("--ro-bind-try", "/"+name, "/"+name)
		}
	}
	for _, name := range initd.SettingsOf(config) {
		a.add("--ro-bind-try", "/etc/"+name, "/etc/"+name)
	}
	made := initd.Made(config)
	for _, name := range slices.Sorted(maps.Keys(made)) {
		content, err := image.Memfd(name, strings.NewReader(made[name]))
		if err == nil {
			_, err = content.Seek(0, io.SeekStart)
		}
		if err != nil {
			return err
		}
		a.add("--perms", "0444", "--ro-bind-data", a.file(content), "/etc/"+name)
	}
	a.add("--proc", "/proc", "--ro-bind-try", initd.Pressure, initd.Pressure, "--dev", "/dev", "--perms", "1777",
		"--size", strconv.FormatInt(config.Shm, 10), "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
	if initd.Has(initd.Keys) {
		a.add("--ro-bind", os.DevNull, initd.Keys)
	}
	a.add("--dir", "/run", "--dir", "/var/tmp",
		"--bind", config.Workspace, initd.GuestWorkspace, "--bind", config.Home, initd.GuestHome, "--bind", config.Temp, initd.GuestTemp)
	for _, dir := range config.Pinned {
		a.add("--bind", path.Join(config.Workspace, dir.Path), path.Join(initd.GuestWorkspace, dir.Path))
	}
	for _, place := range config.Protected {
		a.add("--ro-bind", path.Join(config.Workspace, place.Path), path.Join(initd.GuestWorkspace, place.Path))
	}
	for _, m := range config.Mounts {
		bind := "--ro-bind"
		if m.Write {
			bind = "--bind"
		}
		a.add(bind, m.Host, initd.Guest(m))
	}
	a.add("--remount-ro", "/", "--chdir", initd.GuestWorkspace, "--", initd.Image, initd.StageShut)
	return nil
}
