package drivers_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/test/escapetest"
)

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
