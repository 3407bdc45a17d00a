//go:build linux

package ns_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/escapetest"
	"github.com/toolfleet/toolfleet/pkg/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance holds the driver to what every driver promises, as root and as an ordinary
// user.
func TestConformance(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		sandboxtest.Run(t, func(*testing.T) sandbox.Driver { return ns.New(nil) }, sandboxtest.Options{})
	})
}
