package memory

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBound_IsAShareOfWhatThereIs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		bytes   int64
		limited bool
		want    int64
	}{
		"a control group":       {1000 << 20, true, 900 << 20},
		"a machine":             {16 << 30, false, 4 << 30},
		"a small control group": {32 << 20, true, 64 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, bound(test.bytes, test.limited))
		})
	}
}

// A limit that somebody has given stays.
func TestBound_LeavesALimitThatIsSet(t *testing.T) { //nolint:paralleltest // changes the process
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	debug.SetMemoryLimit(777 << 20)
	Bound()
	require.EqualValues(t, 777<<20, Limit())
	debug.SetMemoryLimit(math.MaxInt64)
	Bound()
	available, limited := Available()
	require.Positive(t, available)
	require.Equal(t, bound(available, limited), Limit())
}
