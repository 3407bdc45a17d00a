//go:build !unix

package snapshot_test

import "testing"

func makeFIFO(tb testing.TB, _ string) {
	tb.Helper()
	tb.Skip("unsupported: there are no FIFOs")
}
