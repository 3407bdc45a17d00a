//go:build linux

package initd

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestHeld_TablesOfPagesCount: memory that is only read has no pages, but their tables.
func TestHeld_TablesOfPagesCount(t *testing.T) { //nolint:paralleltest // it looks at the whole process
	const pages, of = 4 << 10, 2 << 20 // one table for each so many bytes
	memory, err := unix.Mmap(-1, 0, pages*of, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(memory)) }()
	before, sum := held([]int{os.Getpid()}), byte(0)
	for i := range pages {
		sum += memory[i*of]
	}
	require.Zero(t, sum)
	require.GreaterOrEqual(t, held([]int{os.Getpid()}), before+pages*4<<10)
}
