//go:build linux

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if _, err := os.Stat(planFile); err == nil && os.Getpid() == 1 {
		guest()
	}
	os.Exit(m.Run())
}

// guest is the first process of a virtual machine: it runs the steps of a plan, tells how they
// ended on the console, and turns the machine off.
func guest() {
	if err := runPlan(); err != nil {
		fmt.Println("guest:", err)
	}
	fmt.Println(Down)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

func runPlan() error {
	if err := setUp(); err != nil {
		return err
	}
	fmt.Println(Up)
	text, err := os.ReadFile(planFile)
	if err != nil {
		return err
	}
	var p Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("%s: %w", planFile, err)
	}
	for _, s := range p.Steps {
		fmt.Printf("=== step %s\n", s.Name)
		start := time.Now()
		err := runStep(s)
		if err != nil {
			fmt.Printf("step %s: %v\n", s.Name, err)
		}
		fmt.Println(Result{Name: s.Name, OK: err == nil, Took: time.Since(start)})
	}
	return nil
}

// groups is where the control groups are.
const groups = "/sys/fs/cgroup"

// mounts are what a system has. The order counts.
func mounts() [][3]string {
	return [][3]string{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", ""},
		{"devpts", "/dev/pts", ""},
		{"tmpfs", "/dev/shm", "mode=1777"},
		{"tmpfs", "/tmp", "mode=1777"},
		{"tmpfs", "/run", "mode=755"},
		{"cgroup2", groups, "nsdelegate"},
		{"securityfs", "/sys/kernel/security", ""},
		{"mqueue", "/dev/mqueue", ""},
	}
}

// setUp makes a system of a kernel and the files that came with it.
func setUp() error {
	// The file system that a kernel starts with cannot be left by pivot_root; the same one, mounted
	// over it, can.
	if err := errors.Join(os.MkdirAll("/self", 0o755), unix.Mount("/", "/self", "", unix.MS_BIND, ""), os.Chdir("/self"),
		unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), os.Chdir("/")); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	for _, m := range mounts() {
		if err := os.MkdirAll(m[1], 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m[0], m[1], m[0], 0, m[2]); err != nil {
			fmt.Printf("guest: mount %s: %v\n", m[1], err)
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, "/dev/"+name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return errors.Join(unix.Sethostname([]byte("guest")), loopback(), os.Setenv("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"))
}

func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// runStep runs a step and says what was not as the plan has it.
func runStep(s Step) error {
	restore, err := set(s.Settings)
	defer restore()
	if err != nil {
		return err
	}
	home := filepath.Join("/tmp", s.Name)
	if err := errors.Join(os.Mkdir(home, 0o755), os.Chown(home, s.UID, s.UID)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, s.Argv[0], s.Argv[1:]...)
	cmd.Dir, cmd.Stdout = home, io.MultiWriter(os.Stdout, &said)
	cmd.Stderr = cmd.Stdout
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home}, s.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.UID)}}
	cmd.WaitDelay = time.Second
	if s.Group != "" {
		fd, err := group(s.Group, s.UID)
		if err != nil {
			return fmt.Errorf("control group %s: %w", s.Group, err)
		}
		defer unix.Close(fd)
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, fd
	}
	err = cmd.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && (!ended || ctx.Err() != nil) {
		return errors.Join(err, ctx.Err())
	}
	return fits(s, cmd.ProcessState.ExitCode(), said.String())
}

// fits compares how a step has ended with the plan.
func fits(s Step, exit int, said string) error {
	var errs []error
	if exit != s.Exit {
		errs = append(errs, fmt.Errorf("exit code %d, want %d", exit, s.Exit))
	}
	for _, want := range s.Says {
		if !strings.Contains(said, want) {
			errs = append(errs, fmt.Errorf("it did not say %q", want))
		}
	}
	return errors.Join(errs...)
}

// set writes settings and returns what puts them back.
func set(settings map[string]string) (restore func(), err error) {
	was := map[string][]byte{}
	restore = func() {
		for name, value := range was {
			if err := os.WriteFile(name, value, 0); err != nil {
				fmt.Printf("guest: put back %s: %v\n", name, err)
			}
		}
	}
	for name, value := range settings {
		if was[name], err = os.ReadFile(name); err != nil {
			return restore, err
		}
		if err := os.WriteFile(name, []byte(value), 0); err != nil {
			return restore, err
		}
	}
	return restore, nil
}

// group makes a control group as a system hands one to a user, and opens it.
func group(name string, uid int) (int, error) {
	const controllers = "+cpu +memory +pids"
	for dir := name; dir != "."; dir = filepath.Dir(dir) {
		if err := os.MkdirAll(filepath.Join(groups, dir), 0o755); err != nil {
			return -1, err
		}
		for _, file := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(groups, dir, file), uid, uid); err != nil {
				return -1, err
			}
		}
	}
	// From the top on, but not in the group itself: what is to be in it could not be then.
	at := groups
	for part := range strings.SplitSeq(name, "/") {
		if err := os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte(controllers), 0); err != nil {
			return -1, err
		}
		at = filepath.Join(at, part)
	}
	return unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}
