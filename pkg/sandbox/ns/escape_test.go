//go:build linux

package ns_test

import (
	"testing"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/escapetest"
	"github.com/toolfleet/toolfleet/pkg/sandbox/ns"
)

// TestEscape_NothingGetsOut tries to get out, as root and as an ordinary user.
func TestEscape_NothingGetsOut(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	escapetest.Run(t, escapetest.Options{New: func(*testing.T) sandbox.Driver { return ns.New(nil) }, Known: known()})
}

// known is the leak that is accepted: the kernel shows where the directories of a sandbox are
// on the host's file system.
func known() map[string]escapetest.Outcome {
	return map[string]escapetest.Outcome{"given/mount-sources": escapetest.Leak}
}
