//go:build linux

package initd

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// TestDuring_LimitsHoldFromTheStart: what is forked has the limits before anything is done to it.
func TestDuring_LimitsHoldFromTheStart(t *testing.T) { //nolint:paralleltest // it changes its own limits
	const kilobyte = 1 << 10
	seen := func(limits wire.Limits) string {
		c := &command{brand: newBrand(), limits: limits}
		var out strings.Builder
		shell := exec.CommandContext(t.Context(), "bash", "-c", "ulimit -Sf; ulimit -Sn; ulimit -Sd; ulimit -St")
		shell.Stdout = &out
		_, err := c.during(func() (pid int, err error) { // this process, too, has the limits until it returns
			return 1 << 30, shell.Start() // nobody, for whom there is nothing to do late
		})
		require.NoError(t, err)
		require.NoError(t, shell.Wait())
		return out.String()
	}
	before := seen(wire.Limits{})
	memory := uint64(100 << 20)
	require.Equal(t, "2048\n600\n"+strconv.FormatUint(tooFast(memory)/kilobyte, 10)+"\n7\n",
		seen(wire.Limits{FileSize: 2048 * kilobyte, OpenFiles: 600, Memory: memory, CPU: 7}))
	require.Equal(t, before, seen(wire.Limits{}), "this process has its own limits again")
}
