//go:build !linux && !darwin

package main

import "os"

// dropTyped does nothing here: what the process has not read when it asks counts as an answer.
func dropTyped(*os.File) {}
