//go:build linux

package probes

import (
	"errors"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// setIDProbes make files that run as their owner. In the sandbox such bits mean nothing; on
// the host, where the files belong to the workspace's owner, they mean that user's rights.
func setIDProbes() map[string]probe {
	make4755 := func(f func(path string) error) probe {
		return func(canary.Host) canary.Verdict { return setID(f) }
	}
	return map[string]probe{
		"set-id/chmod":  make4755(func(path string) error { return errors.Join(touch(path), unix.Chmod(path, 0o4755)) }),
		"set-id/group":  make4755(func(path string) error { return errors.Join(touch(path), unix.Chmod(path, 0o2755)) }),
		"set-id/fchmod": make4755(fchmod),
		"set-id/fchmodat": make4755(func(path string) error {
			return errors.Join(touch(path), unix.Fchmodat(unix.AT_FDCWD, path, 0o4755, 0))
		}),
		"set-id/fchmodat2": make4755(func(path string) error {
			return errors.Join(touch(path), unix.Fchmodat(unix.AT_FDCWD, path, 0o4755, unix.AT_SYMLINK_NOFOLLOW))
		}),
		"set-id/open": make4755(func(path string) error { return create(unix.Open(path, unix.O_CREAT|unix.O_WRONLY, 0o4755)) }),
		"set-id/openat": make4755(func(path string) error {
			return create(unix.Openat(unix.AT_FDCWD, path, unix.O_CREAT|unix.O_WRONLY, 0o4755))
		}),
		"set-id/creat":        make4755(func(path string) error { return create(unix.Creat(path, 0o4755)) }),
		"set-id/openat2":      make4755(openat2),
		"set-id/mknod":        make4755(func(path string) error { return unix.Mknod(path, unix.S_IFREG|0o4755, 0) }),
		"set-id/mknodat":      make4755(func(path string) error { return unix.Mknodat(unix.AT_FDCWD, path, unix.S_IFREG|0o4755, 0) }),
		"set-id/no-name":      make4755(noName),
		"set-id/capabilities": make4755(fileCapability),
	}
}

// setID makes a file by f and looks at its mode and its capabilities.
func setID(f func(path string) error) canary.Verdict {
	const path = "set-id"
	_ = os.Remove(path)
	err := f(path)
	var st unix.Stat_t
	capability := make([]byte, 64)
	_, noCapability := unix.Getxattr(path, "security.capability", capability)
	if unix.Lstat(path, &st) == nil && (st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 || noCapability == nil) {
		_ = os.Remove(path)
		return escape("the file is there")
	}
	return contained(cmpErr(err, errors.New("without the bit")))
}

// touch makes a plain file.
func touch(path string) error { return open(path, unix.O_CREAT|unix.O_WRONLY) }

func create(fd int, err error) error {
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func fchmod(path string) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o755)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, 0o4755)
}

func openat2(path string) error {
	return create(unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: 0o4755}))
}

// noName makes a file without a name, and gives it one.
func noName(path string) error {
	fd, err := unix.Open(".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o4755)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
}

// fileCapability gives a file a capability.
func fileCapability(path string) error {
	if err := touch(path); err != nil {
		return err
	}
	data := struct{ magic, permitted, inheritable, permitted2, inheritable2 uint32 }{magic: 0x02000001, permitted: 1 << unix.CAP_SETUID}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&data)), unsafe.Sizeof(data))
	return unix.Setxattr(path, "security.capability", bytes, 0)
}
