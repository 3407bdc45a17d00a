//go:build linux

package ns_test

import (
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/test/escapetest"
)

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
