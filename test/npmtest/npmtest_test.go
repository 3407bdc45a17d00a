package npmtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/test/processtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	source  = "test/aimock"
	without = "no test of installing"
)

// childMode is set in a process that a test starts from its own binary.
const childMode = "NPMTEST_CHILD"

func TestInstall_WithoutNode(t *testing.T) {
	t.Parallel()
	if os.Getenv(childMode) != "" {
		Install(t, source, without)
		return
	}
	child := func(required string) (string, error) {
		self, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), childMode+"=1", "PATH="+t.TempDir(), "TOOLFLEET_INTEGRATION="+required)
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	output, err := child("")
	require.NoError(t, err)
	require.Contains(t, output, "*** TestInstall_WithoutNode SKIPPED: no test of installing")
	require.Contains(t, output, "--- SKIP")

	output, err = child("required")
	require.Error(t, err)
	require.Contains(t, output, "TOOLFLEET_INTEGRATION=required, but")
	require.Contains(t, output, "--- FAIL")
}

// TestInstall_SeveralAtOnce: npm runs once.
func TestInstall_SeveralAtOnce(t *testing.T) {
	Install(t, source, without) // or the test ends here
	npm, err := exec.LookPath("npm")
	require.NoError(t, err)
	bin, cache := t.TempDir(), t.TempDir()
	runs := filepath.Join(bin, "runs")
	script := fmt.Sprintf("#!/bin/sh\necho >>'%s'\nexec '%s' \"$@\"\n", runs, npm)
	processtest.WriteProgram(t, filepath.Join(bin, "npm"), []byte(script))
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	t.Setenv("XDG_CACHE_HOME", cache) // where os.UserCacheDir looks on Linux
	dirs := make([]string, 2)
	group, ctx := errgroup.WithContext(t.Context())
	for i := range dirs {
		group.Go(func() (err error) {
			dirs[i], err = install(ctx, source)
			return err
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, dirs[0], dirs[1])
	require.DirExists(t, filepath.Join(dirs[0], "node_modules"))
	rest, err := filepath.Glob(filepath.Join(cache, "toolfleet-test", "installing-*"))
	require.NoError(t, err)
	require.Empty(t, rest)
	got, err := os.ReadFile(runs)
	require.NoError(t, err)
	require.Equal(t, "\n", string(got), "others wait for the first one")
}
