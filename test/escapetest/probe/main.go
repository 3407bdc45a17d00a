//go:build linux

// Command probe tries to get out of a sandbox. It is built by the escape suite and has no
// other use.
package main

import (
	"os"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/probes"
)

func main() { probes.Main(os.Args) }
