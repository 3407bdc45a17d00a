//go:build !linux

package main

import (
	"errors"
	"io"
	"os/exec"
	"time"
)

const endWait = 0

func adopt() error { return nil }

func wait(commands []*exec.Cmd) (err error) {
	for _, command := range commands {
		err = errors.Join(err, command.Wait())
	}
	return err
}

// left looks for processes on Linux only.
func left(io.Writer, time.Duration) int { return 0 }

func descendants() []*exec.Cmd { return nil }

func killAll([]*exec.Cmd) {}

func processorTime() string { return "" }
