//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// resizes tells whenever the terminal has another size, until stop.
func resizes() (told <-chan os.Signal, stop func()) {
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, syscall.SIGWINCH)
	return sizes, func() { signal.Stop(sizes) }
}
