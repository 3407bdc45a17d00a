//go:build linux

package ns_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

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
	result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", "ulimit -H -c; ulimit -n"}})
	require.NoError(t, err)
	require.Equal(t, "0\n1024\n", string(result.Stdout.Data), string(result.Stderr.Data))
}
