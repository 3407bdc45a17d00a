package drivers_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
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
	result, err = s.Exec(t.Context(), sandbox.Cmd{
		Argv: []string{"bash", "-c", "echo $$ >/sys/fs/cgroup/cgroup.procs; echo $$ >" + groups.Dir() + "/cgroup.procs; echo fine"},
	})
	require.NoError(t, err)
	require.Equal(t, "fine\n", string(result.Stdout.Data))
	require.Contains(t, string(result.Stderr.Data), "ermission denied", "it cannot leave its group")
}

// withoutNamespaces says that this process is where no namespaces can be made.
const withoutNamespaces = "TOOLFLEET_TEST_WITHOUT_NAMESPACES"

// TestOpen_AutoWithoutNamespaces: where nobody may make namespaces, the next driver is
// taken, with its lower level and with the reason; never one that does not isolate.
func TestOpen_AutoWithoutNamespaces(t *testing.T) { //nolint:paralleltest // its arm is a process of its own
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		if os.Getenv(withoutNamespaces) != "" {
			testWithoutNamespaces(t)
			return
		}
		script := `echo 0 >/proc/sys/user/max_user_namespaces && exec "$0" "$@"`
		user := "1000"
		if os.Geteuid() == 0 {
			user = "0"
		}
		cmd := exec.CommandContext(t.Context(), "unshare", "--user", "--map-user="+user, "--map-group="+user, "--keep-caps",
			"sh", "-c", script, os.Args[0], "-test.run", "^TestOpen_AutoWithoutNamespaces$", "-test.v")
		cmd.Env = append(os.Environ(), withoutNamespaces+"=1")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		require.NoError(t, err)
	})
}

func testWithoutNamespaces(t *testing.T) {
	t.Helper()
	_, _, err := drivers.Open(t.Context(), "ns", nil)
	require.ErrorIs(t, err, isolation.ErrLevel)
	require.ErrorContains(t, err, "user.max_user_namespaces")
	require.NotContains(t, err.Error(), "Wait was already called")
	if os.Geteuid() == 0 {
		_, _, err = drivers.Open(t.Context(), drivers.Auto, nil)
		require.ErrorIs(t, err, isolation.ErrLevel, "nothing else is for root")
		return
	}
	d, caps, err := drivers.Open(t.Context(), drivers.Auto, nil)
	require.NoError(t, err)
	require.Equal(t, "landlock", d.Name())
	require.Equal(t, isolation.LevelPaths, caps.Level)
	require.Contains(t, caps.Warnings[len(caps.Warnings)-1], "user.max_user_namespaces", "why the better one does not work")
	_, err = d.Open(t.Context(), isolation.Spec{ID: "x", Workspace: t.TempDir(), Scratch: t.TempDir(), Require: isolation.LevelFull})
	require.ErrorIs(t, err, isolation.ErrLevel)
}

// TestOpen_WhatCannotBeTriedProvesNothing: nobody is advised to do without isolation because there
// was no room for a probe.
func TestOpen_WhatCannotBeTriedProvesNothing(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	t.Setenv("TMPDIR", missing)
	_, _, err := drivers.Open(t.Context(), drivers.Auto, nil)
	require.ErrorContains(t, err, "could be tried")
	require.ErrorContains(t, err, missing)
	require.NotErrorIs(t, err, isolation.ErrLevel)
	require.NotContains(t, err.Error(), "without isolation")
}

// A command of driver process ends with all that was started by it, and by nobody else: not with
// what another driver starts meanwhile, once for all of its sandboxes.
func TestOpen_DriversOfOneProcessLeaveEachOtherAlone(t *testing.T) { //nolint:paralleltest // it ends what other tests need, too
	ns, _, err := drivers.Open(t.Context(), "ns", nil)
	if err != nil {
		t.Skipf("NOT TESTED: driver ns does not work here: %v", err)
	}
	plain, _, err := drivers.Open(t.Context(), "process", nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var commands sync.WaitGroup
	defer commands.Wait()
	defer stop()
	for range 4 {
		box := open(t, plain)
		commands.Go(func() {
			for ctx.Err() == nil {
				_, _ = box.Exec(ctx, sandbox.Cmd{Argv: []string{"true"}}) // the last one is stopped
			}
		})
	}
	for range 8 {
		endLauncher(t)
		box := open(t, ns)
		for range 5 {
			result, err := box.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sleep", "0.01"}})
			require.NoError(t, err)
			require.Equal(t, sandbox.ReasonExited, result.Reason)
		}
		require.NoError(t, box.Close())
	}
}

func open(t *testing.T, d isolation.Driver) sandbox.Sandbox {
	t.Helper()
	box, err := d.Open(t.Context(), isolation.Spec{Workspace: t.TempDir(), Scratch: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = box.Close() }) // it may be closed
	return box
}

// endLauncher has driver ns start its launcher again with the next sandbox.
func endLauncher(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline") // it may have ended
		status, _ := os.ReadFile("/proc/" + entry.Name() + "/status")
		if bytes.Equal(line, []byte("toolfleet-sandbox\x00launch\x00")) && bytes.Contains(status, []byte("\nPPid:\t"+strconv.Itoa(os.Getpid())+"\n")) {
			if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) { // it has ended since
				require.NoError(t, err)
			}
		}
	}
}
