//go:build linux

package initd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// launch starts sandboxes until the worker is gone: each is setup in namespaces of its own, a
// child of the worker. It is a process of its own because starting one in a new user
// namespace copies the page tables of the one that starts it, and those of a worker are big.
func launch(conn *wire.Conn) error {
	for _, fd := range []int{fdControl, fdImage} {
		unix.CloseOnExec(fd)
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
			err = conn.Send(m.ID, wire.KindFailed, failure(StageLaunch, err), nil)
		} else {
			err = conn.Send(m.ID, wire.KindLaunched, wire.Launched{PID: pid}, nil)
		}
		if err != nil {
			return err
		}
	}
}

// spawn starts a sandbox with the control socket that came with the request.
func spawn(m *wire.Message) (int, error) {
	var config wire.Config
	if err := m.Decode(&config); err != nil {
		return 0, err
	}
	if m.Kind != wire.KindConfig || len(m.FDs) != 1 {
		return 0, fmt.Errorf("%w: kind %d with %d descriptors", wire.ErrMalformed, m.Kind, len(m.FDs))
	}
	files := []uintptr{0, 1, 2, uintptr(m.FDs[0]), fdImage}
	if config.Privileged {
		trees, err := openTrees(config)
		defer closeAll(trees)
		if err != nil {
			return 0, err
		}
		files = append(files, trees...)
	}
	flags := uintptr(syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC |
		syscall.CLONE_NEWUTS | unix.CLONE_NEWCGROUP | syscall.CLONE_PARENT)
	if config.Network != sandbox.NetworkAll {
		flags |= syscall.CLONE_NEWNET
	}
	attr := &syscall.SysProcAttr{
		Setsid: true, Cloneflags: flags,
		UidMappings:                []syscall.SysProcIDMap{{ContainerID: User, HostID: config.HostUID, Size: 1}},
		GidMappings:                []syscall.SysProcIDMap{{ContainerID: User, HostID: config.HostGID, Size: 1}},
		GidMappingsEnableSetgroups: config.Privileged,
		// The sandbox's user is not its root: what setup may do has to be handed over.
		AmbientCaps: []uintptr{
			unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETPCAP,
			unix.CAP_SYS_CHROOT, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_CHOWN,
		},
	}
	if seam.clone != nil {
		seam.clone(config, attr)
	}
	pid, err := syscall.ForkExec(Image, //nolint:gosec // the program that this is
		[]string{Arg0, stageSetup}, &syscall.ProcAttr{Env: []string{OneThread}, Files: files, Sys: attr})
	if err != nil {
		return 0, &stepError{step: "new namespaces", err: err}
	}
	return pid, nil
}

func closeAll(fds []uintptr) {
	for _, fd := range fds {
		_ = unix.Close(int(fd))
	}
}

// openTrees opens what only the worker's user may open or translate: the directories of the
// sandbox, with its user in the place of their owner, and the mounts. On failure too, what
// was opened is returned.
func openTrees(config wire.Config) ([]uintptr, error) {
	owners := -1
	if config.Map {
		fd, err := mapping(config)
		if err != nil {
			return nil, &stepError{step: "user namespace of the directories", err: err}
		}
		defer unix.Close(fd)
		owners = fd
	}
	var trees []uintptr
	for _, dir := range []string{config.Workspace, config.Home, config.Temp} {
		tree, err := openTree(dir, 0)
		if err != nil {
			return trees, &stepError{step: "open " + dir, err: err}
		}
		trees = append(trees, uintptr(tree))
		if owners >= 0 {
			attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(owners)}
			if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
				return trees, &stepError{step: StepTranslate, err: fmt.Errorf("%s: %w", dir, err)}
			}
		}
	}
	for _, m := range config.Mounts {
		tree, err := openTree(m.Host, unix.AT_RECURSIVE)
		if err != nil {
			return trees, &stepError{step: "open " + m.Host, err: err}
		}
		trees = append(trees, uintptr(tree))
	}
	return trees, nil
}

// StepTranslate is the step that fails on file systems that cannot show files under another
// owner.
const StepTranslate = "translate owners"

func openTree(path string, flags uint) (int, error) {
	return unix.OpenTree(unix.AT_FDCWD, path, flags|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
}

// mapping returns a user namespace that says who on disk is whom on the host. It is that
// of a process that does nothing, and lives only until the namespace is open.
func mapping(config wire.Config) (int, error) {
	pid, err := idle()
	if err != nil {
		return -1, err
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil) // it is ours and dies
	}()
	proc := "/proc/" + strconv.Itoa(pid)
	for name, ids := range map[string][2]int{"uid_map": {config.OwnerUID, config.HostUID}, "gid_map": {config.OwnerGID, config.HostGID}} {
		if err := os.WriteFile(proc+"/"+name, fmt.Appendf(nil, "%d %d 1\n", ids[0], ids[1]), 0); err != nil {
			return -1, err
		}
	}
	return unix.Open(proc+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// idle forks a process in a new user namespace that waits for being killed. It is a copy
// of this one with a single thread, in which the Go runtime does not work: only system
// calls do.
//
//go:norace
func idle() (int, error) {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	if pid != 0 {
		return int(pid), nil
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0)
	for {
		_, _, _ = syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}
