//go:build linux

package ns_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/escapetest"
)

func TestProbe_SaysWhichDirectoryItNeeds(t *testing.T) {
	t.Parallel()
	_, err := ns.New(&ns.Options{Dir: filepath.Join(t.TempDir(), "missing")}).Probe(t.Context())
	require.ErrorContains(t, err, "where --data is or in TMPDIR")
	require.NotErrorIs(t, err, isolation.ErrLevel, "it says nothing about the host")
}

// onlyBwrap says that this process is where no other program may make user namespaces.
const onlyBwrap = "TOOLFLEET_TEST_ONLY_BWRAP"

// TestProbe_TakesBwrapWhereOnlyThatMay: on a host that lets /usr/bin/bwrap make user namespaces and
// no other program, the probe finds that out. The host is this one with a system call filter that
// asks this test, which looks at who calls: as AppArmor does on Ubuntu.
func TestProbe_TakesBwrapWhereOnlyThatMay(t *testing.T) { //nolint:paralleltest // its arm is a process of its own
	requireBwrap(t)
	escapetest.InArms(t, false, func(t *testing.T) {
		t.Helper()
		if os.Getenv(onlyBwrap) != "" {
			testOnlyBwrap(t)
			return
		}
		var allowed, refused atomic.Int64
		type ended struct {
			out []byte
			err error
		}
		result, listeners, watched := make(chan ended, 1), make(chan int, 1), make(chan struct{})
		go func() {
			runtime.LockOSThread() // which ends with this function: it alone is under the filter
			listener, err := askAboutNamespaces()
			if err != nil {
				close(listeners)
				result <- ended{err: err}
				return
			}
			listeners <- listener
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestProbe_TakesBwrapWhereOnlyThatMay$", "-test.v")
			cmd.Env = append(os.Environ(), onlyBwrap+"=1")
			out, err := cmd.CombinedOutput()
			result <- ended{out, err}
		}()
		over, end, err := os.Pipe()
		require.NoError(t, err)
		defer over.Close()
		go func() {
			defer close(watched)
			if listener, ok := <-listeners; ok {
				answerForBwrap(listener, int(over.Fd()), &allowed, &refused)
			}
		}()
		arm := <-result
		require.NoError(t, end.Close())
		<-watched
		t.Logf("%s", arm.out)
		require.NoError(t, arm.err)
		require.Positive(t, refused.Load(), "the native launcher was never tried")
		require.Positive(t, allowed.Load(), "bwrap was never tried")
	})
}

func testOnlyBwrap(t *testing.T) {
	t.Helper()
	_, err := ns.New(&ns.Options{Launcher: ns.LauncherNative}).Probe(t.Context())
	require.ErrorIs(t, err, isolation.ErrLevel)
	require.ErrorContains(t, err, "does not let this user make namespaces")
	d, caps, err := drivers.Open(t.Context(), drivers.Auto, nil)
	require.NoError(t, err)
	require.Equal(t, ns.Name, d.Name())
	require.Equal(t, ns.LauncherBwrap, caps.Launcher)
	require.Equal(t, isolation.LevelFull, caps.Level)
	s, err := d.Open(t.Context(), isolation.Spec{ID: "bwrap", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"}})
	require.NoError(t, err)
	require.Equal(t, "1000\n", string(run(t, s, "id -u").Stdout.Data))
	require.NoError(t, s.Close())
}

// askAboutNamespaces puts the calling thread, and what it starts, under a filter that asks
// whoever has the returned listener about new user namespaces.
func askAboutNamespaces() (int, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	const number, flags = 0, 16 // of the call and of its first argument
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	jump := func(op uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | op, Jt: yes, Jf: no, K: k}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	program := []unix.SockFilter{
		load(number),
		jump(unix.BPF_JEQ, unix.SYS_CLONE3, 5, 0),
		jump(unix.BPF_JEQ, unix.SYS_CLONE, 1, 0),
		jump(unix.BPF_JEQ, unix.SYS_UNSHARE, 0, 4),
		load(flags),
		jump(unix.BPF_JSET, unix.CLONE_NEWUSER, 0, 2),
		ret(unix.SECCOMP_RET_USER_NOTIF),
		ret(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)),
		ret(unix.SECCOMP_RET_ALLOW),
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return -1, fmt.Errorf("seccomp: %w", errno)
	}
	return int(fd), nil
}

// question is seccomp(2)'s seccomp_notif, and verdict seccomp_notif_resp.
type question struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type verdict struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// answerForBwrap answers until the descriptor over says so.
func answerForBwrap(listener, over int, allowed, refused *atomic.Int64) {
	defer unix.Close(listener)
	for {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}, {Fd: int32(over), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) || ready[1].Revents != 0 {
			return
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			continue // interrupted
		}
		var q question
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&q))); errno != 0 {
			continue // whoever asked has been killed
		}
		v := verdict{id: q.id, errno: -int32(unix.EPERM)}
		if who, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", q.pid)); err == nil && who == "/usr/bin/bwrap" {
			v = verdict{id: q.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
			allowed.Add(1)
		} else {
			refused.Add(1)
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&v)))
	}
}

// TestLimits_HoldFromTheFirstInstruction: a command and what it starts at once have hard limits,
// however late this process and the first one of the sandbox get to run: the processors are busy.
func TestLimits_HoldFromTheFirstInstruction(t *testing.T) { //nolint:paralleltest // it needs the processors
	s, err := ns.New(nil).Open(t.Context(), isolation.Spec{
		ID: "limits", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
		Limits: sandbox.Limits{FileSize: 1 << 20, OpenFiles: 64},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	var busy sync.WaitGroup
	for range 2 * runtime.NumCPU() {
		busy.Go(func() {
			_, _ = s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", "while [ ! -e done ]; do :; done"}})
		})
	}
	defer busy.Wait()
	defer func() {
		_, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: "done"})
		require.NoError(t, err)
	}()
	const script = `one() { ulimit -Hf; ulimit -Hn; }; (one)& (one)& (one & wait)& one; wait`
	for range 8 {
		result := mustExec(t, s, sandbox.Cmd{Argv: []string{"sh", "-c", script}})
		require.Equal(t, strings.Repeat("2048\n64\n", 4), sorted(string(result.Stdout.Data)))
	}
}

// sorted puts the pairs of lines, which came in any order, in order.
func sorted(text string) string {
	sizes, files := strings.Count(text, "2048\n"), strings.Count(text, "64\n")
	if sizes == files && len(text) == sizes*len("2048\n64\n") {
		return strings.Repeat("2048\n64\n", sizes)
	}
	return text
}

// TestOpen_UnderHardLimits: a process that may have less than a sandbox gets opens one with that.
func TestOpen_UnderHardLimits(t *testing.T) {
	t.Parallel()
	if os.Getenv("UNDER_HARD_LIMITS") == "" {
		if pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err != nil || strings.HasPrefix(string(pattern), "|") {
			t.Skip("UNSUPPORTED: this host has a handler of crashes, and needs another limit of core files")
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-c", `ulimit -c 0 -u 1000 -n 1024 -f 1000000; exec "$0" -test.v -test.run "$1"`, os.Args[0], t.Name())
		cmd.Env = append(os.Environ(), "UNDER_HARD_LIMITS=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return
	}
	s, err := ns.New(nil).Open(t.Context(), isolation.Spec{ID: "limited", Workspace: t.TempDir(), Scratch: t.TempDir()})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	result := mustExec(t, s, sandbox.Cmd{Argv: []string{"sh", "-c", "ulimit -H -c; ulimit -n"}})
	require.Equal(t, "0\n1024\n", string(result.Stdout.Data), string(result.Stderr.Data))
}
