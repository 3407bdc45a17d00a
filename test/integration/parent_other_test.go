//go:build !linux

package integration

import "os/exec"

// dieWithTests does nothing: only Linux ties a process to its parent.
func dieWithTests(*exec.Cmd) {}

func ownGroup(*exec.Cmd) {}

func endGroup(*exec.Cmd) {}
