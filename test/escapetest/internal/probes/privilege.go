//go:build linux

package probes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// privilegeProbes look whether this process has rights, or can get some.
func privilegeProbes() map[string]probe {
	return map[string]probe{
		"privilege/locked-down": func(canary.Host) canary.Verdict {
			return lockedDown("/proc/self/task/*/status", "CapInh", "CapPrm", "CapEff", "CapAmb")
		},
		"privilege/bounding-set":     func(canary.Host) canary.Verdict { return lockedDown("/proc/self/task/*/status", "CapBnd") },
		"privilege/init-locked-down": initLockedDown,
		"privilege/setuid":           func(canary.Host) canary.Verdict { return become(unix.SYS_SETUID) },
		"privilege/setgid":           func(canary.Host) canary.Verdict { return become(unix.SYS_SETGID) },
		"privilege/setgroups":        func(canary.Host) canary.Verdict { return judge(unix.Setgroups([]int{0})) },
		"privilege/su":               setuidProgram,
		"privilege/capset":           capset,
		"privilege/nice":             func(canary.Host) canary.Verdict { return judge(unix.Setpriority(unix.PRIO_PROCESS, 0, -20)) },
		"privilege/hostname":         func(canary.Host) canary.Verdict { return judge(unix.Sethostname([]byte("probe"))) },
		"privilege/rlimit-core":      noCore,
	}
}

// status reads fields of a status file.
func status(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.TrimSpace(value)
	}
	return fields, nil
}

func noNewPrivs() bool {
	fields, err := status("/proc/self/status")
	return err == nil && fields["NoNewPrivs"] == "1"
}

// lockedDown checks every thread: capabilities and filters are a matter of threads.
func lockedDown(pattern string, sets ...string) canary.Verdict {
	paths, _ := filepath.Glob(pattern) // the pattern is right
	if len(paths) == 0 {
		return unsupported("no threads to be seen")
	}
	want := map[string]string{"NoNewPrivs": "1", "Seccomp": "2"}
	for _, set := range sets {
		want[set] = strings.Repeat("0", 16)
	}
	for _, path := range paths {
		fields, err := status(path)
		if err != nil {
			return unsupported(errnoName(err))
		}
		for key, value := range want {
			if fields[key] != value {
				return escape(fmt.Sprintf("%s: %s is %s", path, key, fields[key]))
			}
		}
	}
	return contained(fmt.Errorf("%d threads", len(paths)))
}

func initLockedDown(h canary.Host) canary.Verdict {
	if !h.Isolated {
		return unsupported("process 1 is the host's")
	}
	return lockedDown("/proc/1/task/*/status", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
}

func become(nr uintptr) canary.Verdict {
	if os.Getuid() == 0 || os.Getgid() == 0 {
		return escape("is root")
	}
	return unlessDone(call(nr, 0))
}

// unlessDone calls success an escape and every errno containment.
func unlessDone(errno syscall.Errno) canary.Verdict {
	if errno == 0 {
		return escape("done")
	}
	return contained(errno)
}

// setuidProgram runs a setuid program.
func setuidProgram(canary.Host) canary.Verdict {
	su, err := exec.LookPath("su")
	if err != nil {
		return unsupported("no su")
	}
	out, err := command(su, "-c", "id -u", "root").CombinedOutput()
	if err == nil && strings.TrimSpace(string(out)) == "0" {
		return escape("is root")
	}
	return contained(cmpErr(err, errors.New("no root")))
}

func capset(canary.Host) canary.Verdict {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_CHROOT, Permitted: 1 << unix.CAP_SYS_CHROOT}}
	return judge(unix.Capset(&header, &data[0]))
}

func noCore(canary.Host) canary.Verdict {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return unsupported(errnoName(err))
	}
	if limit.Cur > 1 || limit.Max > 1 {
		return leak(fmt.Sprintf("core files of %d bytes, %d at most", limit.Cur, limit.Max))
	}
	return contained(fmt.Errorf("%d", limit.Max))
}

// namespaceProbes make or enter namespaces.
func namespaceProbes() map[string]probe {
	return map[string]probe{
		"namespace/unshare-user": func(canary.Host) canary.Verdict {
			return spawn(&syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWUSER})
		},
		"namespace/unshare-mount": func(canary.Host) canary.Verdict {
			return spawn(&syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS})
		},
		"namespace/clone-user": func(canary.Host) canary.Verdict {
			return spawn(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER})
		},
		"namespace/clone-net": func(canary.Host) canary.Verdict {
			return spawn(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET})
		},
		"namespace/clone3":     clone3,
		"namespace/setns-init": setns("/proc/1/ns/mnt", "/proc/1/ns/net", "/proc/1/ns/pid", "/proc/1/ns/user"),
		"namespace/setns-worker": func(h canary.Host) canary.Verdict {
			dir := fmt.Sprintf("/proc/%d/ns/", h.Worker)
			return setns(dir+"user", dir+"mnt", dir+"net")(h)
		},
	}
}

// spawn starts this program in a way that makes namespaces.
func spawn(attr *syscall.SysProcAttr) canary.Verdict {
	cmd := command("/proc/self/exe", "nothing")
	cmd.SysProcAttr = attr
	return judge(cmd.Run())
}

// clone3 asks for a user namespace by the call that filters cannot look into.
func clone3(canary.Host) canary.Verdict {
	args := struct{ flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64 }{
		flags: unix.CLONE_NEWUSER, exitSignal: uint64(unix.SIGCHLD),
	}
	pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno != 0 {
		return contained(errno)
	}
	if pid == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	_, _ = unix.Wait4(int(pid), nil, 0, nil)
	return escape("made a user namespace")
}

// setns enters namespaces that are not this process's own.
func setns(paths ...string) probe {
	return func(canary.Host) canary.Verdict {
		var last error = unix.ENOENT
		for _, path := range paths {
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				last = err
				continue
			}
			last = unix.Setns(fd, 0)
			_ = unix.Close(fd)
			if last == nil {
				return escape("entered " + path)
			}
		}
		return contained(last)
	}
}
