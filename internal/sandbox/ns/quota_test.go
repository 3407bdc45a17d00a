//go:build linux

package ns_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/quota"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/quota/quotatest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// onQuota opens a sandbox on a disk, below a directory of a name, whose directories may be given to
// a project or not.
func onQuota(t *testing.T, disk, name string, owned bool, limits sandbox.Limits) sandbox.Sandbox {
	t.Helper()
	spec := isolation.Spec{
		ID: name, Workspace: filepath.Join(disk, name, "workspace"), Scratch: filepath.Join(disk, name, "scratch"), Owned: owned,
		Env: map[string]string{"PATH": "/usr/bin:/bin"}, Limits: limits,
	}
	require.NoError(t, os.MkdirAll(spec.Workspace, 0o700))
	require.NoError(t, os.MkdirAll(spec.Scratch, 0o700))
	s, err := ns.New(nil).Open(t.Context(), spec)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// TestQuota_IsWhatTheDriverProves, where workspaces will be.
func TestQuota_IsWhatTheDriverProves(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		caps, err := ns.New(&ns.Options{Dir: disk}).Probe(t.Context())
		require.NoError(t, err)
		require.Equal(t, isolation.LimitQuota, caps.Limits.Disk, caps.Warnings)
		caps, err = ns.New(nil).Probe(t.Context())
		require.NoError(t, err)
		require.Equal(t, isolation.LimitSoft, caps.Limits.Disk)
		used, limited, err := quota.Count(disk)
		require.NoError(t, err)
		require.Zero(t, used)
		require.Zero(t, limited)
	})
}

// TestQuota_DiskIsHard: in whatever way it is used up, there is no more, the reason is exact, a
// neighbour does not notice, and the sandbox goes on.
func TestQuota_DiskIsHard(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		const limit = 6 << 20
		s, neighbour := onQuota(t, disk, "one", true, sandbox.Limits{Disk: limit}), onQuota(t, disk, "two", true, sandbox.Limits{Disk: limit})
		for name, script := range map[string]string{
			"one file":            `cat /dev/zero >x`,
			"many files":          `for i in 1 2 3 4 5 6 7 8 9; do head -c 1000000 /dev/zero >$i || exit 3; done`,
			"home and /tmp too":   `head -c 3000000 /dev/zero >x; head -c 3000000 /dev/zero >~/x; head -c 3000000 /dev/zero >/tmp/x`,
			"empty files":         `touch $(seq 1600)`,
			"holes are filled":    `truncate -s 5M x; head -c 4000000 /dev/zero >y; dd if=/dev/zero of=x bs=1M count=4 conv=notrunc 2>/dev/null`,
			"by a daemon as well": `(setsid cat /dev/zero >x 2>/dev/null &) ; while head -c 4096 /dev/zero >>y 2>/dev/null; do :; done; exit 1`,
		} {
			t.Run(name, func(t *testing.T) {
				result := run(t, s, script)
				require.Equal(t, sandbox.ReasonDiskLimit, result.Reason, "exit code %d, signal %s: %s%s", result.ExitCode, result.Signal, result.Stdout.Data, result.Stderr.Data)
				require.Equal(t, string(isolation.LimitQuota), result.LimitKinds["disk"])
				_, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: "file", Content: make([]byte, 5<<20)})
				require.ErrorContains(t, err, "delete what is not needed")
				result = run(t, neighbour, "head -c 3000000 /dev/zero >x && rm x")
				require.Equal(t, sandbox.ReasonExited, result.Reason, "%s", result.Stderr.Data)
				require.Zero(t, result.ExitCode, "%s", result.Stderr.Data)
				result = run(t, s, "rm -rf * ~/* /tmp/*; head -c 3000000 /dev/zero >x && rm x && exit 5")
				require.Equal(t, sandbox.ReasonExited, result.Reason, "%s", result.Stderr.Data)
				require.Equal(t, 5, result.ExitCode, "%s", result.Stderr.Data)
			})
		}
	})
}

// TestQuota_CommandMayHaveLess: hard while it runs alone, and watched beside others.
func TestQuota_CommandMayHaveLess(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		s := onQuota(t, disk, "one", true, sandbox.Limits{Disk: 20 << 20})
		less := sandbox.Cmd{Argv: []string{"sh", "-c", "head -c 1500000 /dev/zero >x; head -c 1500000 /dev/zero >y && sleep 30"}, Limits: sandbox.Limits{Disk: 2 << 20}}
		result, err := s.Exec(t.Context(), less)
		require.NoError(t, err)
		require.Equal(t, sandbox.ReasonDiskLimit, result.Reason)
		require.Equal(t, string(isolation.LimitQuota), result.LimitKinds["disk"])
		result = run(t, s, "rm x y; head -c 1500000 /dev/zero >x && head -c 1500000 /dev/zero >y && rm x y")
		require.Zero(t, result.ExitCode, "the next one has the sandbox's limit: %s", result.Stderr.Data)
		ctx, cancel := context.WithCancel(t.Context())
		ended, started := make(chan sandbox.Result, 1), make(chan struct{})
		go func() {
			result, _ := s.Exec(ctx, sandbox.Cmd{Argv: []string{"sh", "-c", "echo; sleep 1000"}, Live: func(sandbox.Stream, []byte) { close(started) }})
			ended <- result
		}()
		<-started
		result, err = s.Exec(t.Context(), less)
		require.NoError(t, err)
		require.Equal(t, sandbox.ReasonDiskLimit, result.Reason, "it is watched: exit code %d", result.ExitCode)
		require.Equal(t, string(isolation.LimitSoft), result.LimitKinds["disk"])
		cancel()
		require.Equal(t, string(isolation.LimitQuota), (<-ended).LimitKinds["disk"])
	})
}

// TestQuota_OthersDirectoriesAreLeftAlone: what is used in place is watched.
func TestQuota_OthersDirectoriesAreLeftAlone(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		s := onQuota(t, disk, "theirs", false, sandbox.Limits{Disk: 4 << 20, Wall: time.Minute})
		result := run(t, s, "for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero >$i || exit 3; done; sleep 100")
		require.Equal(t, sandbox.ReasonDiskLimit, result.Reason)
		require.Equal(t, string(isolation.LimitSoft), result.LimitKinds["disk"])
		used, _, err := quota.Count(disk)
		require.NoError(t, err)
		require.Zero(t, used)
		require.NoError(t, os.WriteFile(filepath.Join(disk, "x"), nil, 0o600))
		require.NoError(t, os.Rename(filepath.Join(disk, "x"), filepath.Join(disk, "theirs", "workspace", "x")))
	})
}

// TestQuota_CloseLeavesNothing but what is counted, and that goes with the directories.
func TestQuota_CloseLeavesNothing(t *testing.T) { //nolint:paralleltest // as above
	quotatest.OnDisk(t, func(t *testing.T, disk string) {
		t.Helper()
		s := onQuota(t, disk, "one", true, sandbox.Limits{Disk: 4 << 20})
		require.Equal(t, sandbox.ReasonDiskLimit, run(t, s, "cat /dev/zero >x; cat /dev/zero >y").Reason)
		require.NoError(t, s.Close())
		require.NoError(t, s.Close(), "again")
		used, limited, err := quota.Count(disk)
		require.NoError(t, err)
		require.Equal(t, 1, used)
		require.Zero(t, limited)
		s = onQuota(t, disk, "one", true, sandbox.Limits{Disk: 4 << 20})
		require.Equal(t, sandbox.ReasonDiskLimit, run(t, s, "cat /dev/zero >z").Reason, "it is as full as before")
		require.NoError(t, s.Close())
		require.NoError(t, os.RemoveAll(filepath.Join(disk, "one")))
		require.Eventually(t, func() bool { // the kernel lets go of a sandbox's mounts a moment after its end
			used, limited, err = quota.Count(disk)
			return err == nil && used+limited == 0
		}, time.Minute, time.Millisecond)
	})
}
