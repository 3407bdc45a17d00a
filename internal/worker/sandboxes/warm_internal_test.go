package sandboxes

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Idle sandboxes are bounded by memory and by files, of which other things of the process need
// some.
func TestWarmest_HasMemoryAndFiles(t *testing.T) {
	t.Parallel()
	require.Equal(t, 100, warmCapacity(100*WarmSandbox, 1<<20))
	require.Equal(t, 170, warmCapacity(1000*WarmSandbox, 1024))
	require.Zero(t, warmCapacity(-1, 1024))
}
