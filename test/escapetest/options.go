//go:build linux

package escapetest

import (
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// Options describe a driver to the suite.
type Options struct {
	// New makes the driver. Required.
	New func(t *testing.T) isolation.Driver
	// Gaps are the probes that the driver is known not to contain, with what they find. A
	// gap that is closed is a failure too: then it has to leave the list.
	Gaps map[string]Outcome
	// Known are leaks that are accepted: the probe may find that, or be contained.
	Known map[string]Outcome
	// AsRoot are probes of Gaps that are contained when the worker is root.
	AsRoot []string
	// Network makes the network of the sandbox under test; nil is none.
	Network func(t *testing.T) isolation.Network
	// NotAsRoot leaves out the arm as root.
	NotAsRoot bool
}

// Outcome is what a probe found.
type Outcome = canary.Outcome

// The outcomes that lists name.
const (
	Escape = canary.Escape
	Leak   = canary.Leak
	Broken = canary.Broken
)
