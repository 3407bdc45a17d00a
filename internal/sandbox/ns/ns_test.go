//go:build linux

package ns_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/test/escapetest"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inArms is [escapetest.InArms]; an arm whose user may not make namespaces is skipped.
func inArms(t *testing.T, root bool, test func(t *testing.T)) {
	t.Helper()
	escapetest.InArms(t, root, func(t *testing.T) {
		t.Helper()
		sandboxtest.Require(t, ns.New(nil))
		test(t)
	})
}

// TestConformance holds the driver to what every driver promises, as root and as an ordinary
// user.
func TestConformance(t *testing.T) {
	t.Parallel()
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		sandboxtest.Run(t, func(*testing.T) isolation.Driver { return ns.New(nil) }, sandboxtest.Options{})
	})
}

// TestBwrap_Conformance does the same with the launcher bwrap, which is for ordinary users only.
func TestBwrap_Conformance(t *testing.T) {
	t.Parallel()
	requireBwrap(t)
	inArms(t, false, func(t *testing.T) {
		t.Helper()
		sandboxtest.Run(t, func(*testing.T) isolation.Driver { return withBwrap() }, sandboxtest.Options{})
	})
}

// TestBwrap_NothingGetsOut tries to get out of sandboxes that bwrap has made.
func TestBwrap_NothingGetsOut(t *testing.T) {
	t.Parallel()
	requireBwrap(t)
	escapetest.Run(t, escapetest.Options{New: func(*testing.T) isolation.Driver { return withBwrap() }, Known: known(), NotAsRoot: true})
}

func withBwrap() isolation.Driver { return ns.New(&ns.Options{Launcher: ns.LauncherBwrap}) }

func requireBwrap(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/usr/bin/bwrap"); err != nil {
		t.Skip("UNSUPPORTED: bubblewrap is not installed")
	}
}

func TestBwrap_RootIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("UNSUPPORTED: only root can try")
	}
	_, err := withBwrap().Open(t.Context(), isolation.Spec{ID: "x", Workspace: t.TempDir(), Scratch: t.TempDir()})
	require.ErrorIs(t, err, isolation.ErrLevel)
}
