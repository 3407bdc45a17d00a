//go:build linux

// Command program is the first process of a sandbox as a program of its own, which is small
// and starts fast. "make build" puts it into the binaries; without it they start themselves.
package main

import (
	"os"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
)

func main() { initd.Main(os.Args) }
