//go:build linux

package escapetest_test

import (
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/escapetest"
)

// careless gives each command a descriptor of its own, which the driver does not.
func careless(_ sandbox.Cmd, path string, argv []string) (string, []string, error) {
	const script = `exec "$0" "$@" 7</etc/passwd 3>&-` // 3 says whether the program was started
	return "/bin/sh", append([]string{"sh", "-c", script, path}, argv[1:]...), nil
}

// TestControl_ProbesGetOut runs the probes where nothing is isolated.
func TestControl_ProbesGetOut(t *testing.T) { //nolint:paralleltest // its arm is a process of its own
	control(t)
}

func control(t *testing.T) {
	t.Helper()
	escapetest.Control(t, escapetest.Options{New: func(*testing.T) isolation.Driver { return process.New(&process.Options{Wrap: careless}) }}, mustEscape())
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
		"network/above-tcp", "network/bridge", "network/sockets-listed", "network/tcp", "network/tcp-fast-open", "network/tcp-mapped", "network/tcp-zero", "network/tcp6", "network/udp", "network/vlan",
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
