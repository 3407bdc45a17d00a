//go:build linux

package ns_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
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

func mustExec(t *testing.T, s sandbox.Sandbox, cmd sandbox.Cmd) sandbox.Result {
	t.Helper()
	result, err := s.Exec(t.Context(), cmd)
	require.NoError(t, err)
	return result
}

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

// TestEscape_NothingGetsOut tries to get out, as root and as an ordinary user.
func TestEscape_NothingGetsOut(t *testing.T) {
	t.Parallel()
	escapetest.Run(t, escapetest.Options{New: func(*testing.T) isolation.Driver { return ns.New(nil) }, Known: known()})
}

// TestEscape_WithAProxy is the same in a sandbox that may reach listed hosts: what is not listed
// is as far away as without any network.
func TestEscape_WithAProxy(t *testing.T) {
	t.Parallel()
	escapetest.Run(t, escapetest.Options{
		New: func(*testing.T) isolation.Driver { return ns.New(nil) }, Known: known(),
		Network: func(t *testing.T) isolation.Network {
			t.Helper()
			return serveList(t, "example.com")
		},
		Gaps: map[string]escapetest.Outcome{"network/interfaces": escapetest.Leak}, // the link's, of the sandbox's own
	})
}

// TestEscape_WithTheWholeNetwork is the same in a sandbox that has the host's network. It reaches
// what the host reaches, the host itself too: that is what was asked for. Everything else holds.
func TestEscape_WithTheWholeNetwork(t *testing.T) {
	t.Parallel()
	gaps := map[string]escapetest.Outcome{
		"network/tcp": escapetest.Escape, "network/tcp-zero": escapetest.Escape, "network/tcp-mapped": escapetest.Escape,
		"network/tcp-fast-open": escapetest.Escape, "network/udp": escapetest.Escape, "network/tcp6": escapetest.Escape,
		"network/sockets-listed": escapetest.Leak, "secret/sockets": escapetest.Leak,
	}
	if !confine.Scopes() { // then abstract sockets are cut off with all others
		gaps["use/unix-server"] = escapetest.Broken
	}
	onThisHost := known()           // what depends on where it is
	if confine.LandlockABI() == 0 { // at that level these are told from outside
		onThisHost["given/directory"], onThisHost["given/mounts"] = escapetest.Leak, escapetest.Leak
	}
	for _, name := range []string{"name", "by-interface", "tcp-outside", "tcp6-outside", "metadata", "udp-outside", "udp6-outside", "udp-mapped", "mptcp"} {
		onThisHost["network/"+name] = escapetest.Escape
	}
	onThisHost["network/interfaces"] = escapetest.Leak
	escapetest.Run(t, escapetest.Options{
		New: func(*testing.T) isolation.Driver { return ns.New(nil) }, Known: onThisHost, Gaps: gaps,
		Network: func(*testing.T) isolation.Network { return isolation.Network{Mode: isolation.NetworkAll} },
	})
}

// known are the leaks that are accepted: the kernel shows where the directories of a sandbox are on
// the host's file system, and programs that all sandboxes see are locked and watched by any.
func known() map[string]escapetest.Outcome {
	return map[string]escapetest.Outcome{
		"given/mount-sources": escapetest.Leak, "shared/flock": escapetest.Leak, "shared/inotify": escapetest.Leak,
	}
}
