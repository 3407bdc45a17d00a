package drivers_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/escapetest"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

// TestLandlock_Conformance holds the driver to what every driver promises, as an ordinary user.
func TestLandlock_Conformance(t *testing.T) { //nolint:paralleltest // its arm is a process of its own
	escapetest.InArms(t, false, func(t *testing.T) {
		t.Helper()
		sandboxtest.Run(t, func(*testing.T) isolation.Driver { return process.NewLandlock(nil) }, sandboxtest.Options{Env: []string{"GIT_CONFIG_NOSYSTEM"}})
	})
}

// TestEscape_OnlyByTheKnownGaps tries to get out. The gaps are those of the comment of
// [process.Landlock].
func TestEscape_OnlyByTheKnownGaps(t *testing.T) { //nolint:paralleltest // its arm is a process of its own
	escapetest.Run(t, escapetest.Options{
		New:       func(*testing.T) isolation.Driver { return process.NewLandlock(nil) },
		NotAsRoot: true,
		Gaps: map[string]escapetest.Outcome{
			// Landlock does not know these, and programs need them for their own files.
			"file/chmod": escapetest.Escape, "file/utime": escapetest.Escape, "file/setxattr": escapetest.Escape,
			// An ordinary user cannot empty it; no_new_privs makes it mean nothing.
			"privilege/bounding-set": escapetest.Escape,
			// There is no file system, process namespace and host name of its own.
			"given/directory": escapetest.Leak, "given/hostname": escapetest.Leak, "given/mounts": escapetest.Leak,
			"process/any-cmdline": escapetest.Leak, "process/worker-cmdline": escapetest.Leak, "process/init-fd": escapetest.Leak,
			"ipc/sysv-listing": escapetest.Leak, "network/sockets-listed": escapetest.Leak, "neighbour/process": escapetest.Leak,
			"secret/cgroup": escapetest.Leak, "secret/keys": escapetest.Leak, "secret/sockets": escapetest.Leak,
			// Landlock knows neither locks nor watches of what may be read.
			"shared/flock": escapetest.Leak, "shared/inotify": escapetest.Leak,
			// There is no loopback of its own.
			"use/tcp-server": escapetest.Broken, "use/unix-server": escapetest.Broken,
		},
	})
}

// git works on a host that has settings for all users, which a sandbox cannot read.
func TestLandlock_GitReadsNoSettingsOfTheHost(t *testing.T) { //nolint:paralleltest // its arm is a process of its own
	escapetest.InArms(t, false, func(t *testing.T) {
		t.Helper()
		dir := t.TempDir()
		require.NoError(t, errors.Join(os.Mkdir(filepath.Join(dir, "workspace"), 0o700), os.Mkdir(filepath.Join(dir, "scratch"), 0o700)))
		s, err := process.NewLandlock(nil).Open(t.Context(), isolation.Spec{
			ID: "git", Workspace: filepath.Join(dir, "workspace"), Scratch: filepath.Join(dir, "scratch"), Env: map[string]string{"PATH": "/usr/bin:/bin"},
		})
		if errors.Is(err, isolation.ErrLevel) {
			t.Skip("UNSUPPORTED: no Landlock here: ", err)
		}
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", "echo $GIT_CONFIG_NOSYSTEM"}})
		require.NoError(t, err)
		require.Equal(t, "1\n", string(result.Stdout.Data), result)
	})
}

func TestLandlock_RefusesRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("UNSUPPORTED: this test is about root")
	}
	d := process.NewLandlock(nil)
	_, err := d.Probe(t.Context())
	require.ErrorIs(t, err, isolation.ErrLevel)
	require.ErrorContains(t, err, "ordinary user")
	_, err = d.Open(t.Context(), isolation.Spec{ID: "x", Workspace: t.TempDir(), Scratch: t.TempDir()})
	require.ErrorIs(t, err, isolation.ErrLevel)
}

// TestLandlock_LimitsOfAGroupAreHard where there are control groups; a machine of test/vm has them.
func TestLandlock_LimitsOfAGroupAreHard(t *testing.T) { //nolint:paralleltest // the machine is slow
	if os.Geteuid() == 0 {
		t.Skip("UNSUPPORTED: the driver refuses root")
	}
	groups := sandboxtest.RequireGroups(t, cgroup.Find)
	d := process.NewLandlock(nil)
	caps, err := d.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, isolation.LimitCgroup, caps.Limits.Memory, caps.Warnings)
	require.Equal(t, isolation.LimitCgroup, caps.Limits.Processes)
	s, err := d.Open(t.Context(), isolation.Spec{
		ID: "limited", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
		Limits: sandbox.Limits{Memory: 48 << 20, Processes: 30, Wall: time.Minute},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"bash", "-c", "tail /dev/zero; sleep 1000"}})
	require.NoError(t, err)
	require.Equal(t, sandbox.ReasonOOM, result.Reason, "exit code %d, signal %s: %s", result.ExitCode, result.Signal, result.Stderr.Data)
	result, err = s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"bash", "-c", "for i in $(seq 60); do sleep 1000 & done; echo done"}})
	require.NoError(t, err)
	require.NotEqual(t, "done\n", string(result.Stdout.Data), "60 of 30 processes")
	result, err = s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"bash", "-c", "echo $$ >/sys/fs/cgroup/cgroup.procs; echo $$ >" + groups.Dir() + "/cgroup.procs; echo fine"}})
	require.NoError(t, err)
	require.Equal(t, "fine\n", string(result.Stdout.Data))
	require.Contains(t, string(result.Stderr.Data), "ermission denied", "it cannot leave its group")
}
