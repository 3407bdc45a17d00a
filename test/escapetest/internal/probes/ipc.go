//go:build linux

package probes

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// ipcProbes reach for processes of the host by its means of communication.
func ipcProbes() map[string]probe {
	return map[string]probe{
		"ipc/unix":     func(h canary.Host) canary.Verdict { return unixSecret(filepath.Join(h.Dir, "socket"), h.Secret) },
		"ipc/abstract": func(h canary.Host) canary.Verdict { return unixSecret("@"+h.Abstract, h.Secret) },
		"ipc/unix-by-link": func(h canary.Host) canary.Verdict {
			_ = os.Remove("socket-link")
			if err := os.Symlink(filepath.Join(h.Dir, "socket"), "socket-link"); err != nil {
				return unsupported(errnoName(err))
			}
			return unixSecret("socket-link", h.Secret)
		},
		"ipc/docker":       connectAny("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock"),
		"ipc/system":       connectAny("/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket", "/dev/log", "/run/udev/control"),
		"ipc/sysv-shm":     sysvShm,
		"ipc/sysv-msg":     func(h canary.Host) canary.Verdict { return sysv(unix.SYS_MSGCTL, h.MsgID, 0) },
		"ipc/sysv-sem":     func(h canary.Host) canary.Verdict { return sysv(unix.SYS_SEMCTL, h.SemID, 1) },
		"ipc/posix-mq":     posixQueue,
		"ipc/shm-create":   func(h canary.Host) canary.Verdict { return visible(h.ShmFile) },
		"ipc/tmp-create":   func(h canary.Host) canary.Verdict { return visible(h.TmpFile) },
		"ipc/sysv-listing": sysvListing,
	}
}

// unixSecret connects to a socket of the host, which answers with the secret.
func unixSecret(path, secret string) canary.Verdict {
	conn, err := dial("unix", path)
	if err != nil {
		return contained(err)
	}
	return hear(conn, secret)
}

// hear reads the secret from a connection.
func hear(conn net.Conn, secret string) canary.Verdict {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerWait))
	data, err := io.ReadAll(conn)
	if bytes.Contains(data, []byte(secret)) {
		return escape("connected")
	}
	return contained(cmpErr(err, errors.New("somebody else answers")))
}

func connectAny(paths ...string) probe {
	return func(canary.Host) canary.Verdict {
		var last error = unix.ENOENT
		for _, path := range paths {
			for _, network := range []string{"unix", "unixgram"} {
				conn, err := dial(network, path)
				if err == nil {
					_ = conn.Close()
					return escape("connected to " + path)
				}
				last = err
			}
		}
		return contained(last)
	}
}

func sysvShm(h canary.Host) canary.Verdict {
	if h.ShmID < 0 {
		return unsupported("the host has none")
	}
	data, err := unix.SysvShmAttach(h.ShmID, 0, unix.SHM_RDONLY)
	if err != nil {
		return contained(err)
	}
	defer func() { _ = unix.SysvShmDetach(data) }()
	if bytes.HasPrefix(data, []byte(h.Secret)) {
		return escape("attached")
	}
	return contained(errors.New("another segment"))
}

// sysv asks for the state of a queue or semaphore of the host.
func sysv(nr uintptr, id int, at int) canary.Verdict {
	if id < 0 {
		return unsupported("the host has none")
	}
	const ipcStat = 2
	var state [256]byte
	args := []uintptr{uintptr(id), ipcStat, uintptr(unsafe.Pointer(&state))}
	if at == 1 { // the index of a semaphore
		args = []uintptr{uintptr(id), 0, ipcStat, uintptr(unsafe.Pointer(&state))}
	}
	return unlessDone(call(nr, args...))
}

func posixQueue(h canary.Host) canary.Verdict {
	if h.Queue == "" {
		return unsupported("the host has none")
	}
	name, err := unix.BytePtrFromString(h.Queue)
	if err != nil {
		return unsupported(err.Error())
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_RDONLY|unix.O_NONBLOCK, 0, 0, 0, 0)
	if errno != 0 {
		return contained(errno)
	}
	_ = unix.Close(int(fd))
	return escape("opened")
}

// visible looks for a file of the host in a directory that sandboxes have of their own.
func visible(path string) canary.Verdict {
	if path == "" {
		return unsupported("the host has no such directory")
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	for _, entry := range entries {
		if entry.Name() == filepath.Base(path) {
			return leak("names in " + filepath.Dir(path))
		}
	}
	return contained(cmpErr(err, unix.ENOENT))
}

func sysvListing(h canary.Host) canary.Verdict {
	if h.ShmID < 0 {
		return unsupported("the host has none")
	}
	return listing("/proc/sysvipc/shm")
}

// listing calls any line but the heading a leak.
func listing(path string) canary.Verdict {
	data, err := os.ReadFile(path)
	if err == nil && bytes.Count(data, []byte("\n")) > 1 {
		return leak(path)
	}
	return contained(cmpErr(err, errors.New("empty")))
}
