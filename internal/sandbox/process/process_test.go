//go:build unix

package process_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDriver(t *testing.T) {
	t.Parallel()
	sandboxtest.Run(t, func(t *testing.T) isolation.Driver {
		t.Helper()
		return process.New(nil)
	}, sandboxtest.Options{})
}
