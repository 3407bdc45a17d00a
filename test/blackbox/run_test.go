//go:build linux

package main

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The short form of `make blackbox`.
func TestRun_LawsHold(t *testing.T) {
	t.Parallel()
	s := settings{
		bin: t.TempDir(), dir: t.TempDir(), calls: 300, lanes: 6, callers: 12, workers: 2, lease: 2 * time.Second, pause: 1500 * time.Millisecond,
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", s.bin+"/", "../../cmd/coordinator", "../../cmd/worker")
	said, err := build.CombinedOutput()
	require.NoError(t, err, "%s", said)
	violations, err := run(t.Context(), s, t.Output())
	require.NoError(t, err)
	require.Empty(t, violations)
}
