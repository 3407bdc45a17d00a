// Package npmtest gives tests packages of npm: programs and clients that are not ours, which show
// that what is written here agrees with others about a protocol.
//
// A folder of the repository pins them with their hashes (package.json, package-lock.json). They
// are installed on first use, into the user's cache directory. Where node, npm or the packages
// cannot be had, a test is skipped and says so on standard error; with
// TOOLFLEET_INTEGRATION=required it fails instead.
package npmtest

import (
	"fmt"
	"os"
	"testing"
)

// Install returns a directory with the npm packages that the folder source (a path from the
// repository's root) pins, in node_modules. If they cannot be installed, the test is skipped with
// the text without, such as "no test against a real model server". It may be called from several
// tests and processes at once.
func Install(tb testing.TB, source, without string) (dir string) {
	tb.Helper()
	dir, err := install(tb.Context(), source)
	if err == nil {
		return dir
	}
	if os.Getenv("TOOLFLEET_INTEGRATION") == "required" {
		tb.Fatalf("TOOLFLEET_INTEGRATION=required, but the packages of %s cannot be had: %v", source, err)
	}
	_, _ = fmt.Fprintf(os.Stderr, "\n*** %s SKIPPED: %s: the packages of %s cannot be had: %v ***\n\n", tb.Name(), without, source, err)
	tb.Skipf("%s: %v", without, err)
	return ""
}
