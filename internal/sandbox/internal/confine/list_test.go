//go:build linux

package confine_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
)

// file adds calls that write a file, and returns its result.
func file(l *confine.List, name, content string) confine.Result {
	l.Step("write " + filepath.Base(name))
	fd := l.Do(unix.SYS_OPENAT, unix.AT_FDCWD, name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	l.Do(unix.SYS_WRITE, fd, []byte(content), len(content))
	return fd
}

func TestList_MakesCallsWithResultsOfEarlierOnes(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "file")
	var l confine.List
	first := file(&l, name+"1", "one")
	second := file(&l, name+"2", "two")
	var stored int32
	l.Do(unix.SYS_DUP, first)
	l.Store(&stored)
	l.Do(unix.SYS_CLOSE, first)
	l.Do(unix.SYS_CLOSE, second)
	require.NoError(t, l.Make())
	_, err := unix.Write(int(stored), []byte("more"))
	require.NoError(t, err)
	require.NoError(t, unix.Close(int(stored)))
	for n, want := range map[string]string{name + "1": "onemore", name + "2": "two"} {
		content, err := os.ReadFile(n)
		require.NoError(t, err)
		require.Equal(t, want, string(content))
	}
}

func TestList_StopsAtTheFirstFailureAndNamesItsStep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var l confine.List
	l.Step("known")
	l.Do(unix.SYS_MKDIRAT, unix.AT_FDCWD, dir, 0o700)
	l.Pass(unix.EEXIST)
	l.Step("the step")
	l.Do(unix.SYS_MKDIRAT, unix.AT_FDCWD, dir+"/none/there", 0o700)
	l.Do(unix.SYS_MKDIRAT, unix.AT_FDCWD, dir+"/never", 0o700)
	err := l.Make()
	require.ErrorIs(t, err, unix.ENOENT)
	require.EqualError(t, err, "the step: no such file or directory")
	require.NoDirExists(t, dir+"/never")
}

func TestList_RefusesArgumentsThatNoCallHas(t *testing.T) {
	t.Parallel()
	var l confine.List
	require.PanicsWithValue(t, "confine: an argument of type float64", func() { l.Do(unix.SYS_GETPID, 1.5) })
}

// pair is a socket pair; what a forked process tells comes out of theirs.
func pair(t *testing.T) (ours, theirs int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fds[0]) })
	return fds[0], fds[1]
}

// fork has a list made by a new process, and returns how that ended and what it told.
func fork(t *testing.T, l *confine.List) (status unix.WaitStatus, told string) {
	t.Helper()
	ours, theirs := pair(t)
	pid, err := l.Fork(0, theirs, []byte("head"))
	require.NoError(t, unix.Close(theirs))
	require.NoError(t, err)
	_, err = unix.Wait4(pid, &status, 0, nil)
	require.NoError(t, err)
	buf := make([]byte, 1000)
	n, err := unix.Read(ours, buf)
	require.NoError(t, err)
	return status, string(buf[:n])
}

func TestFork_AForkedProcessBecomesAProgram(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "file")
	argv, env := [...]*byte{bytes("sh"), bytes("-c"), bytes(`grep SigBlk /proc/self/status >>"$F"`), nil}, [...]*byte{bytes("F=" + name), nil}
	var l confine.List
	file(&l, name, "made\n")
	l.RestoreSignals()
	l.Step("exec")
	l.Do(unix.SYS_EXECVE, "/bin/sh", unsafe.Pointer(&argv), unsafe.Pointer(&env))
	status, told := fork(t, &l)
	require.Empty(t, told)
	require.True(t, status.Exited())
	require.Zero(t, status.ExitStatus())
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "made\nSigBlk:\t0000000000000000\n", string(content))
}

func bytes(s string) *byte { return &append([]byte(s), 0)[0] }

func TestFork_AForkedProcessTellsWhatHasFailed(t *testing.T) {
	t.Parallel()
	var l confine.List
	l.Do(unix.SYS_GETPID)
	l.Step("look for nothing")
	l.Do(unix.SYS_OPENAT, unix.AT_FDCWD, "/nothing", unix.O_RDONLY)
	status, told := fork(t, &l)
	require.Equal(t, 1, status.ExitStatus())
	message, ok := strings.CutPrefix(told, "head")
	require.True(t, ok)
	failed, ok := confine.Failed([]byte(message))
	require.True(t, ok)
	require.Equal(t, &confine.Error{Step: "look for nothing", Errno: unix.ENOENT}, failed)
	_, ok = confine.Failed([]byte("abc"))
	require.False(t, ok)
}

// The runtime must not be disturbed, nor disturb: it collects garbage, grows stacks and moves
// goroutines while others fork.
func TestFork_BesideABusyRuntime(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	for range 200 {
		var l confine.List
		for range 100 {
			l.Do(unix.SYS_GETPID)
		}
		l.Do(unix.SYS_EXIT_GROUP, 7)
		status, told := fork(t, &l)
		require.Empty(t, told)
		require.Equal(t, 7, status.ExitStatus())
	}
	close(stop)
	<-done
}

// TestFork_IntoAControlGroup: the process is in it before its first call. Only root can try it
// where the hierarchy is not handed to anybody.
func TestFork_IntoAControlGroup(t *testing.T) {
	t.Parallel()
	var dir string
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(top + "/cgroup.subtree_control"); err == nil {
			dir = filepath.Join(top, "toolfleet-test-"+filepath.Base(t.TempDir())+strconv.Itoa(os.Getpid()))
		}
	}
	if dir == "" || os.Mkdir(dir, 0o755) != nil {
		t.Skip("UNSUPPORTED: no control groups of version 2, or none for this user")
	}
	t.Cleanup(func() { // some kernels let a process leave its group a moment after it was waited for
		require.Eventually(t, func() bool { return os.Remove(dir) == nil }, time.Minute, time.Millisecond)
	})
	group, err := os.Open(dir)
	require.NoError(t, err)
	defer group.Close()
	name := filepath.Join(t.TempDir(), "seen")
	argv, env := [...]*byte{bytes("sh"), bytes("-c"), bytes(`cat /proc/self/cgroup >"$F"`), nil}, [...]*byte{bytes("F=" + name), nil}
	var l confine.List
	l.ForkInto(int(group.Fd()))
	l.RestoreSignals()
	l.Do(unix.SYS_EXECVE, "/bin/sh", unsafe.Pointer(&argv), unsafe.Pointer(&env))
	status, told := fork(t, &l)
	require.Empty(t, told)
	require.Zero(t, status.ExitStatus())
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Contains(t, string(content), "/"+filepath.Base(dir)+"\n")
}
