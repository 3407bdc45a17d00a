//go:build !linux && !darwin

package prompt

import "os"

// resizeSignals are none here: a line keeps the width with which it began.
func resizeSignals() []os.Signal { return nil }

// discardInput does nothing here: unread input counts as an answer.
func discardInput(*os.File) {}

// waitForInput does not wait here: no input is discarded.
func waitForInput(*os.File, int) bool { return false }
