package worker_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Every toolset does what it promises under every driver that works here.
func TestToolsets_UnderEveryDriver(t *testing.T) {
	t.Parallel()
	for _, name := range drivers.Names() {
		if name == drivers.Auto {
			continue // one of the others
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opened, caps, err := drivers.Open(t.Context(), name, nil)
			if err != nil && os.Getenv("TOOLFLEET_INTEGRATION") != "required" {
				t.Skipf("NOT TESTED: driver %s does not work here: %v", name, err)
			}
			require.NoError(t, err)
			r := newRig(t)
			o := r.options()
			o.Driver, o.Caps = opened, caps
			r.work(o)
			execute := func(t *testing.T, call protocol.Call) *protocol.Result {
				t.Helper()
				return r.dispatch(t.Context(), call)
			}
			runToolsets(t, execute)
			if name == "ns" { // what is large is that for the worker, and for the sandbox that has the most between them
				runLargeToolsets(t, execute)
			}
		})
	}
}
