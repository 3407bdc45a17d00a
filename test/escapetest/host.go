//go:build linux

package escapetest

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
	"github.com/toolfleet/toolfleet/test/escapetest/internal/probes"
)

// newHost puts everything on the host that must not be reached.
func newHost(t *testing.T, program string) canary.Host {
	t.Helper()
	secret := os.Getenv(secretVariable)
	require.NotEmpty(t, secret)
	h := canary.Host{Secret: secret, Self: os.Getpid(), Marker: "marker-" + rand.Text(), ShmID: -1, MsgID: -1, SemID: -1}
	var err error
	h.Hostname, err = os.Hostname()
	require.NoError(t, err)
	putFiles(t, &h)
	putSockets(t, &h)
	putIPC(t, &h)
	putWorker(t, &h, program)
	useShared(t)
	inheritable(t, filepath.Join(h.Dir, "private"))
	return h
}

func putFiles(t *testing.T, h *canary.Host) {
	t.Helper()
	h.Name = filepath.Base(filepath.Dir(os.Getenv(probeVariable)))
	h.Dir = filepath.Join(t.TempDir(), "host")
	require.NoError(t, os.Mkdir(h.Dir, 0o755))
	for name, mode := range map[string]os.FileMode{"public": 0o644, "private": 0o600, "victim": 0o644, "to-unlink": 0o644, "to-rename": 0o644} {
		require.NoError(t, os.WriteFile(filepath.Join(h.Dir, name), []byte(h.Secret), mode))
	}
	for path, dir := range map[*string]string{&h.TmpFile: "/tmp", &h.ShmFile: "/dev/shm"} {
		f, err := os.CreateTemp(dir, "toolfleet-canary-")
		if errors.Is(err, os.ErrNotExist) {
			continue // a host without /dev/shm
		}
		require.NoError(t, err)
		*path = f.Name()
		t.Cleanup(func() { _ = os.Remove(f.Name()) })
		_, err = f.WriteString(h.Secret)
		require.NoError(t, err)
		require.NoError(t, f.Chmod(0o644))
		require.NoError(t, f.Close())
	}
}

// useShared locks a file of the system, and opens it again and again.
func useShared(t *testing.T) {
	t.Helper()
	f, err := os.Open(canary.Shared)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_SH))
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		<-done
		_ = f.Close()
	})
	go func() {
		defer close(done)
		for again := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-stop:
				again.Stop()
				return
			case <-again.C:
				if other, err := os.Open(canary.Shared); err == nil {
					_ = other.Close()
				}
			}
		}
	}()
}

// listen serves the secret to whoever connects.
func listen(t *testing.T, h *canary.Host, network, address string) (string, error) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	if err != nil {
		return "", err
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, h.Secret)
			_ = c.Close()
		}
	}()
	return l.Addr().String(), nil
}

func putSockets(t *testing.T, h *canary.Host) {
	t.Helper()
	path := filepath.Join(h.Dir, "socket")
	_, err := listen(t, h, "unix", path)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o777))
	h.Abstract = "toolfleet-" + rand.Text()
	_, err = listen(t, h, "unix", "@"+h.Abstract)
	require.NoError(t, err)
	h.TCP, err = listen(t, h, "tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	if h.TCP6, err = listen(t, h, "tcp6", "[::1]:0"); err != nil {
		h.TCP6 = ""
	}
	udp, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	require.NoError(t, err)
	h.UDP = udp.LocalAddr().String()
	done := make(chan struct{})
	t.Cleanup(func() { _ = udp.Close(); <-done })
	go func() {
		defer close(done)
		for buffer := make([]byte, 1); ; {
			_, from, err := udp.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo([]byte(h.Secret), from)
		}
	}()
}

// putIPC makes shared memory and queues where the kernel has them.
func putIPC(t *testing.T, h *canary.Host) {
	t.Helper()
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o666)
	if err == nil {
		h.ShmID = id
		t.Cleanup(func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
		data, err := unix.SysvShmAttach(id, 0, 0)
		require.NoError(t, err)
		copy(data, h.Secret)
		require.NoError(t, unix.SysvShmDetach(data))
	}
	if id, _, errno := unix.Syscall(unix.SYS_MSGGET, unix.IPC_PRIVATE, unix.IPC_CREAT|0o666, 0); errno == 0 {
		h.MsgID = int(id)
		t.Cleanup(func() { _, _, _ = unix.Syscall(unix.SYS_MSGCTL, id, unix.IPC_RMID, 0) })
	}
	if id, _, errno := unix.Syscall(unix.SYS_SEMGET, unix.IPC_PRIVATE, 1, unix.IPC_CREAT|0o666); errno == 0 {
		h.SemID = int(id)
		t.Cleanup(func() { _, _, _ = unix.Syscall(unix.SYS_SEMCTL, id, 0, unix.IPC_RMID) })
	}
	queue := "toolfleet-" + rand.Text()
	name, err := unix.BytePtrFromString(queue)
	require.NoError(t, err)
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR, 0o666, 0, 0, 0)
	if errno == 0 {
		h.Queue = queue
		_ = unix.Close(int(fd))
		t.Cleanup(func() { _, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0) })
	}
}

// putWorker starts a process with the secret in its environment, memory, a descriptor and a key.
func putWorker(t *testing.T, h *canary.Host, program string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, program, "worker", h.Marker)
	cmd.Env = []string{secretVariable + "=" + h.Secret, "CANARY_FILE=" + filepath.Join(h.Dir, "private")}
	describe(t, *h, filepath.Dir(h.Dir))
	if hasFeature(t, program, filepath.Dir(h.Dir), probes.Keyrings).Outcome == canary.Works {
		cmd.Env = append(cmd.Env, "CANARY_KEY=1")
	}
	cmd.Dir = h.Dir
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = stdin.Close(); cancel(); _ = cmd.Wait() })
	h.Worker = cmd.Process.Pid
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	_, err = fmt.Sscan(line, &h.Address, &h.FD)
	require.NoError(t, err)
}

// inheritable opens a file so that programs that are started inherit it.
func inheritable(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd())) // without close-on-exec
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
}
