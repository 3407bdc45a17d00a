//go:build linux

package landlock_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/landlock"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

// TestGroup_LimitsAreHard where there are control groups; a machine of test/vm has them.
func TestGroup_LimitsAreHard(t *testing.T) { //nolint:paralleltest // the machine is slow
	if os.Geteuid() == 0 {
		t.Skip("UNSUPPORTED: the driver refuses root")
	}
	groups := sandboxtest.RequireGroups(t, cgroup.Find)
	d := landlock.New(nil)
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
