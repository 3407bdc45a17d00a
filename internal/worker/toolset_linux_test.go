package worker_test

import (
	"os"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/test/escapetest"
)

// Every toolset does what it promises in the sandboxes that are for ordinary users only, and
// in those of the default as such a user.
func TestToolsets_AsAnOrdinaryUser(t *testing.T) { //nolint:paralleltest // its arm is a process of its own
	escapetest.InArms(t, false, func(t *testing.T) {
		t.Helper()
		for name, opened := range map[string]isolation.Driver{
			"landlock": process.NewLandlock(nil), "ns": ns.New(nil), "bwrap": ns.New(&ns.Options{Launcher: ns.LauncherBwrap}),
		} {
			t.Run(name, func(t *testing.T) {
				caps, err := opened.Probe(t.Context())
				if err != nil && os.Getenv("TOOLFLEET_INTEGRATION") != "required" {
					t.Skipf("NOT TESTED: %s does not work here: %v", name, err)
				}
				toolsetsUnder(t, opened, caps)
			})
		}
	})
}

func toolsetsUnder(t *testing.T, opened isolation.Driver, caps isolation.Caps) {
	t.Helper()
	r := newRig(t)
	o := r.options()
	o.Driver, o.Caps = opened, caps
	r.work(o)
	runToolsets(t, func(t *testing.T, call protocol.Call) *protocol.Result {
		t.Helper()
		return r.dispatch(t.Context(), call)
	})
}
