//go:build linux

package probes

import (
	"errors"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// rootProbes change the system's files or the tree of mounts.
func rootProbes() map[string]probe {
	all := map[string]probe{
		"root/mount-tmpfs":   func(canary.Host) canary.Verdict { return judge(mountTmpfs()) },
		"root/mount-proc":    func(canary.Host) canary.Verdict { return judge(mountAt("proc", "proc")) },
		"root/bind":          func(canary.Host) canary.Verdict { return judge(bindRoot()) },
		"root/remount-usr":   func(canary.Host) canary.Verdict { return judge(remountUsr()) },
		"root/umount-proc":   func(canary.Host) canary.Verdict { return judge(unix.Unmount("/proc", unix.MNT_DETACH)) },
		"root/pivot":         func(canary.Host) canary.Verdict { return judge(unix.PivotRoot(".", ".")) },
		"root/chroot":        func(canary.Host) canary.Verdict { return judge(unix.Chroot(".")) },
		"root/open-tree":     func(canary.Host) canary.Verdict { return judge(openTree()) },
		"root/fsopen":        func(canary.Host) canary.Verdict { return judge(fsopen()) },
		"root/mount-setattr": func(canary.Host) canary.Verdict { return judge(setattr()) },
		"root/file-handle":   fileHandle,
		"root/core-pattern":  func(canary.Host) canary.Verdict { return judge(open("/proc/sys/kernel/core_pattern", unix.O_WRONLY)) },
		"root/modprobe-path": func(canary.Host) canary.Verdict { return judge(open("/proc/sys/kernel/modprobe", unix.O_WRONLY)) },
		"root/sysrq":         func(canary.Host) canary.Verdict { return judge(open("/proc/sysrq-trigger", unix.O_WRONLY)) },
		"root/cgroup":        cgroupRelease,
	}
	for _, dir := range []string{"/usr", "/etc", "/bin", "/lib", "/sbin", "/var", "/opt", "/"} {
		all["root/write"+suffix(dir)] = func(canary.Host) canary.Verdict { return createIn(dir) }
	}
	return all
}

func suffix(dir string) string {
	if dir == "/" {
		return "-root"
	}
	return "-" + filepath.Base(dir)
}

// createIn makes a file and removes it.
func createIn(dir string) canary.Verdict {
	path := filepath.Join(dir, ".toolfleet-probe")
	err := open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err == nil {
		_ = os.Remove(path)
	}
	return judge(err)
}

// mountPoint makes a directory to mount on.
func mountPoint(name string) (string, error) {
	if err := os.Mkdir(name, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return name, nil
}

func mountAt(kind, name string) error {
	point, err := mountPoint("mount-" + name)
	if err != nil {
		return err
	}
	return unix.Mount(kind, point, kind, 0, "")
}

func mountTmpfs() error { return mountAt("tmpfs", "tmpfs") }

func bindRoot() error {
	point, err := mountPoint("mount-bind")
	if err != nil {
		return err
	}
	return unix.Mount("/", point, "", unix.MS_BIND|unix.MS_REC, "")
}

func remountUsr() error {
	return unix.Mount("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND, "")
}

func openTree() error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func fsopen() error {
	fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func setattr() error {
	return unix.MountSetattr(unix.AT_FDCWD, "/usr", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
}

// fileHandle opens a file by its handle, past every path (CAP_DAC_READ_SEARCH).
func fileHandle(canary.Host) canary.Verdict {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, ".", 0)
	if err != nil { // a filter, or a file system without handles: make one by hand
		made := unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0}) // the root of an ext4
		handle = made
	}
	dir, err := unix.Open(".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return contained(err)
	}
	defer unix.Close(dir)
	fd, err := unix.OpenByHandleAt(dir, handle, unix.O_RDONLY)
	if errors.Is(err, unix.ESTALE) {
		return escape("handles are looked up")
	}
	if err == nil {
		_ = unix.Close(fd)
	}
	return judge(err)
}

// cgroupRelease opens for writing what would run a program on the host.
func cgroupRelease(canary.Host) canary.Verdict {
	var last error = unix.ENOENT
	for _, pattern := range []string{"/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/*/release_agent", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/*/cgroup.procs"} {
		paths, _ := filepath.Glob(pattern) // the pattern is right
		for _, path := range paths {
			if last = open(path, unix.O_WRONLY); last == nil {
				return escape("opened " + path)
			}
		}
	}
	return contained(last)
}

// deviceProbes reach for devices.
func deviceProbes() map[string]probe {
	all := map[string]probe{
		"device/mknod-char": func(canary.Host) canary.Verdict {
			return judge(unix.Mknod("char", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		},
		"device/mknod-block": func(canary.Host) canary.Verdict {
			return judge(unix.Mknod("block", unix.S_IFBLK|0o666, int(unix.Mkdev(254, 0))))
		},
		"device/whiteout":  whiteout,
		"device/tty":       func(canary.Host) canary.Verdict { return judge(open("/dev/tty", unix.O_RDWR)) },
		"device/disk":      openAny(unix.O_RDONLY, "/dev/vd?", "/dev/sd?", "/dev/nvme?n?", "/dev/xvd?", "/dev/loop*", "/dev/mapper/*"),
		"device/memory":    openAny(unix.O_RDONLY, "/dev/mem", "/dev/port", "/dev/kmem", "/proc/kcore", "/dev/kmsg"),
		"device/machines":  openAny(unix.O_RDWR, "/dev/kvm", "/dev/vhost-net", "/dev/vhost-vsock", "/dev/vsock", "/dev/net/tun", "/dev/fuse", "/dev/uinput"),
		"device/tiocsti":   func(canary.Host) canary.Verdict { return tioc(unix.TIOCSTI) },
		"device/tioclinux": func(canary.Host) canary.Verdict { return tioc(0x541c) },
		// A filter that compares 64 bits lets this one through, and the kernel looks at 32.
		"device/tiocsti-high-bits": func(canary.Host) canary.Verdict { return tioc(highBits(unix.TIOCSTI)) },
	}
	return all
}

// whiteout moves a file so that a device takes its place.
func whiteout(canary.Host) canary.Verdict {
	const from, to = "whiteout", "whiteout-moved"
	if err := os.WriteFile(from, nil, 0o600); err != nil {
		return unsupported(errnoName(err))
	}
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_WHITEOUT)
	_, _ = os.Remove(from), os.Remove(to)
	return judge(err)
}

// openAny opens whatever matches; opening one is an escape.
func openAny(flags int, patterns ...string) probe {
	return func(canary.Host) canary.Verdict {
		var last error = unix.ENOENT
		for _, pattern := range patterns {
			paths, _ := filepath.Glob(pattern) // the patterns are right
			for _, path := range paths {
				if last = open(path, flags); last == nil {
					return escape("opened " + path)
				}
			}
		}
		return contained(last)
	}
}

// tioc asks a terminal for what only filters refuse. Without a terminal only the errno
// tells whether there is a filter.
func tioc(request uintptr) canary.Verdict {
	letter := byte('x')
	return denied(call(unix.SYS_IOCTL, 0, request, uintptr(unsafe.Pointer(&letter))))
}

// highBits is a number with a bit more than the kernel looks at, where there are so many.
func highBits(n uint64) uintptr { return uintptr(n | 1<<32) }
