//go:build !linux

package driver

import "github.com/toolfleet/toolfleet/pkg/sandbox"

// isolating are the drivers that isolate: none but on Linux.
func isolating(*Options) []sandbox.Driver { return nil }
