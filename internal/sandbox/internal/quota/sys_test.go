//go:build linux

package quota

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestSizes: what the kernel fills has its size.
func TestSizes(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 28, unsafe.Sizeof(attributes{}))
	require.EqualValues(t, 72, unsafe.Sizeof(numbers{}))
	require.EqualValues(t, 80, unsafe.Sizeof(state{}))
}
