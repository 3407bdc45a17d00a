package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestLimits_ValidateNamesEveryFault(t *testing.T) {
	t.Parallel()
	require.NoError(t, wire.ValidateLimits(protocol.Limits{}))
	require.NoError(t, wire.ValidateLimits(protocol.Limits{
		Wall: 60_000, CPU: 30_000, Memory: 1 << 30, Processes: 64, OpenFiles: 256, FileSize: 1 << 28, Disk: 2 << 30, Output: 64 << 10,
	}))
	err := wire.ValidateLimits(protocol.Limits{
		Wall: -1, CPU: 1 << 60, Memory: 1000, Processes: -5, OpenFiles: 7, FileSize: -1, Disk: -1, Output: 9 << 20,
	})
	for _, fault := range []string{
		"limits.wall_ms -1: must be 0 (the worker's own) or 1 to 604800000", "limits.cpu_ms 1152921504606846976: ",
		"limits.memory_bytes 1000: must be 0 (the worker's own) or 1048576 to ", "limits.processes -5: ", "limits.open_files 7: ",
		"limits.file_size_bytes -1: ", "limits.disk_bytes -1: ", "limits.output_bytes 9437184: must be 0 (the worker's own) or 1024 to 1048576",
	} {
		require.ErrorContains(t, err, fault)
	}
}
