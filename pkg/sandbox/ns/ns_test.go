//go:build linux

package ns_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	sandboxtest.Run(t, func(*testing.T) sandbox.Driver { return ns.New(nil) }, sandboxtest.Options{})
}
