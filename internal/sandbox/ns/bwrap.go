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
	"syscall"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/image"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

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
func startBwrap(config wire.Config, control *os.File, group *cgroup.Group) (*bwrap, *os.Process, error) {
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
		return nil, &startError{wire.Failed{Step: "bwrap", Error: strings.TrimSpace(string(said[:n]))}}
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
func (a *arguments) build(config wire.Config, info *os.File) error {
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
	a.add("--proc", "/proc", "--ro-bind-try", initd.Pressure, initd.Pressure, "--dev", "/dev", "--perms", "1777", "--size", strconv.FormatInt(config.Shm, 10), "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
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
