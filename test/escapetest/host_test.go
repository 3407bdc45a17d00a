//go:build linux

package escapetest_test

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/escapetest"
)

// hostVariable names the host that a process is on, a key of poorHosts.
const hostVariable = "TOOLFLEET_TEST_HOST"

// poorHosts are hosts that refuse what some kernels, containers and administrators refuse, with
// what a system call filter answers for it.
var poorHosts = map[string]uint32{
	"lacking": unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS), // a kernel without them
	"refused": unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM),  // the filter of a container
	"killing": unix.SECCOMP_RET_TRAP,                        // SIGSYS
}

// refusals are the system calls that poor hosts refuse; of clone and unshare only those that make a
// user namespace, and 32-bit calls altogether.
func refusals() []uint32 {
	return []uint32{
		unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_ADD_KEY, unix.SYS_KEYCTL, unix.SYS_REQUEST_KEY,
		unix.SYS_USERFAULTFD, unix.SYS_PERF_EVENT_OPEN, unix.SYS_BPF, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV,
		unix.SYS_PIDFD_GETFD, unix.SYS_PTRACE, unix.SYS_FCHMODAT2, unix.SYS_OPENAT2, unix.SYS_RENAMEAT2, unix.SYS_SETXATTR,
	}
}

// TestControl_OnPoorHosts: where the host itself lacks or refuses what probes are about, or kills
// whoever tries, the control arm says so and does not call the probes dead.
func TestControl_OnPoorHosts(t *testing.T) {
	if host := os.Getenv(hostVariable); host != "" {
		control(t)
		return
	}
	escapetest.InArms(t, false, func(t *testing.T) {
		t.Helper()
		for host, answer := range poorHosts {
			t.Run(host, func(t *testing.T) {
				t.Parallel()
				out, err := runOn(t, host, answer)
				require.NoError(t, err, "%s", out)
				t.Logf("%s", out)
				require.Regexp(t, `(unsupported|refused) +kernel/io-uring-enter`, string(out))
				require.Regexp(t, `(unsupported|refused) +namespace/unshare-user`, string(out))
				require.Regexp(t, `escape +file/read-0600`, string(out), "what the host has is still reached")
			})
		}
	})
}

// runOn runs the calling test again, in a process on a poor host.
func runOn(t *testing.T, host string, answer uint32) ([]byte, error) {
	t.Helper()
	type ended struct {
		out []byte
		err error
	}
	result := make(chan ended, 1)
	go func() {
		runtime.LockOSThread() // which ends with this function: it alone is under the filter
		if err := refuse(answer); err != nil {
			result <- ended{err: err}
			return
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestControl_OnPoorHosts$", "-test.v")
		cmd.Env = append(os.Environ(), hostVariable+"="+host)
		out, err := cmd.CombinedOutput()
		result <- ended{out, err}
	}()
	e := <-result
	return e.out, e.err
}

// refuse puts the calling thread, and what it starts, under a filter that refuses.
func refuse(answer uint32) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const number, architecture, flags = 0, 4, 16 // of the call, and its first argument
	const i386 = 0x40000003
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	unless := func(op uint16, k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | op, Jf: skip, K: k}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	program := []unix.SockFilter{load(architecture), unless(unix.BPF_JEQ, i386, 1), ret(answer), load(number)}
	program = append(program, unless(unix.BPF_JEQ, unix.SYS_CLONE3, 1), ret(unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS))) // else C starts no thread
	for _, nr := range refusals() {
		program = append(program, unless(unix.BPF_JEQ, nr, 1), ret(answer))
	}
	for _, nr := range []uint32{unix.SYS_CLONE, unix.SYS_UNSHARE} {
		program = append(program, unless(unix.BPF_JEQ, nr, 4), load(flags), unless(unix.BPF_JSET, unix.CLONE_NEWUSER, 1), ret(answer), ret(unix.SECCOMP_RET_ALLOW))
	}
	program = append(program, ret(unix.SECCOMP_RET_ALLOW))
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return errno
	}
	return nil
}

// careless gives each command a descriptor of its own, which the driver does not.
type careless struct{ isolation.Driver }

// Open implements [isolation.Driver].
func (d careless) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	s, err := d.Driver.Open(ctx, spec)
	return carelessSandbox{s}, err
}

type carelessSandbox struct{ sandbox.Sandbox }

// Exec implements [sandbox.Sandbox].
func (s carelessSandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	cmd.Argv = append([]string{"/bin/sh", "-c", `exec "$0" "$@" 7</etc/passwd`}, cmd.Argv...)
	return s.Sandbox.Exec(ctx, cmd)
}

// TestControl_ProbesGetOut runs the probes where nothing is isolated.
func TestControl_ProbesGetOut(t *testing.T) { //nolint:paralleltest // its arm is a process of its own
	control(t)
}

func control(t *testing.T) {
	t.Helper()
	escapetest.Control(t, escapetest.Options{New: func(*testing.T) isolation.Driver { return careless{process.New(nil)} }}, mustEscape())
}

// mustEscape are the probes that have to get out. What is not in the list depends on the network,
// on modules of the kernel, or is refused to ordinary users anyway.
func mustEscape() []string {
	return []string{
		"device/tioclinux", "device/tiocsti", "device/tiocsti-high-bits", "device/whiteout",
		"file/append", "file/chmod", "file/create", "file/dotdot", "file/hard-link", "file/list", "file/proc-self-cwd",
		"file/proc-self-root", "file/read-0600", "file/read-0644", "file/read-shm", "file/read-tmp", "file/rename",
		"file/setuid-is-inert", "file/setxattr", "file/symlink", "file/symlink-dir", "file/truncate", "file/unlink", "file/utime", "file/write",
		"given/descriptors", "given/directory", "given/hostname", "given/mounts",
		"ipc/abstract", "ipc/posix-mq", "ipc/shm-create", "ipc/sysv-listing", "ipc/sysv-msg", "ipc/sysv-sem", "ipc/sysv-shm",
		"ipc/tmp-create", "ipc/unix", "ipc/unix-by-link",
		"kernel/add-key", "kernel/io-uring-enter", "kernel/keyctl", "kernel/request-key",
		"namespace/clone-net", "namespace/clone-user", "namespace/clone3", "namespace/unshare-mount", "namespace/unshare-user",
		"neighbour/abstract", "neighbour/file", "neighbour/process",
		"network/above-tcp", "network/bridge", "network/sockets-listed", "network/tcp", "network/tcp-fast-open",
		"network/tcp-mapped", "network/tcp-zero", "network/tcp6", "network/udp", "network/vlan",
		"privilege/bounding-set", "privilege/locked-down", "privilege/rlimit-core", "process/any-cmdline", "process/any-environ",
		"process/worker-cmdline", "process/worker-cwd", "process/worker-environ", "process/worker-exe", "process/worker-fd",
		"process/worker-maps", "process/worker-mem", "process/worker-root",
		"secret/cgroup", "secret/core-dump", "secret/core-limit", "secret/everywhere", "secret/keys", "secret/sockets",
		"set-id/chmod", "set-id/creat", "set-id/fchmod", "set-id/fchmodat", "set-id/fchmodat2", "set-id/group", "set-id/mknod", "set-id/mknodat",
		"set-id/no-name", "set-id/open", "set-id/openat", "set-id/openat2",
		"shared/flock", "shared/inotify",
		"target/affinity", "target/getfd", "target/pidfd", "target/priority", "target/ptrace", "target/rlimit", "target/signal",
		"target/signal-0", "target/vm-readv", "target/vm-writev",
	}
}
