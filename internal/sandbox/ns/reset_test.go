//go:build linux

package ns_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestReset_LeavesNothingInMemory: of what commands have left nothing but the workspace is there.
func TestReset_LeavesNothingInMemory(t *testing.T) {
	t.Parallel()
	s := limited(t, sandbox.Limits{})
	const list = "ls -A /dev/shm /tmp ~ | grep left; cat file"
	require.Equal(t, "left\nleft\nleft\nkept", string(run(t, s, "touch /dev/shm/left /tmp/left ~/left; echo -n kept >file; "+list).Stdout.Data))
	require.NoError(t, s.Reset(t.Context()))
	require.Equal(t, "kept", string(run(t, s, list).Stdout.Data))
}
