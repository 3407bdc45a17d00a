package interop

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/npmtest"
)

// tables has tests print what the programs of others found.
var tables = flag.Bool("tables", false, "print the tables of the conformance suites")

// patience bounds a run of a program of others.
const patience = 5 * time.Minute

// node runs a program of an npm package, and returns what it wrote to standard output.
func node(t *testing.T, script string, args ...string) (string, error) {
	t.Helper()
	dir := npmtest.Install(t, "test/interop", "NO TEST AGAINST THE CONFORMANCE SUITES")
	binary := filepath.Join(dir, "node_modules", "node-linux-"+map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH], "bin", "node")
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("no test against the conformance suites: no Node 22 for this system: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append([]string{filepath.Join(dir, "node_modules", script)}, args...)...)
	cmd.Dir = t.TempDir() // where the suites leave what they found
	cmd.WaitDelay = time.Minute
	output, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w\n%s", err, failed.Stderr)
	}
	return string(output), err
}

// summary is the last line of a suite.
var summary = regexp.MustCompile(`Total: (\d+) passed, (\d+) failed`)

// TestConformance_2025_11_25 runs every scenario of the official suite for protocol versions with
// sessions.
func TestConformance_2025_11_25(t *testing.T) {
	t.Parallel()
	output, err := node(t, "@modelcontextprotocol/conformance/dist/index.js", "server", "--url", startFixture(t), "--suite", "all")
	require.NoError(t, err, output)
	table(t, "conformance 0.1.16", output)
	found := summary.FindStringSubmatch(output)
	require.NotNil(t, found, output)
	require.Equal(t, "0", found[2], output)
	require.NotContains(t, output, "✗", output)
}

// table prints the part of a suite's output that is one.
func table(t *testing.T, title, output string) {
	t.Helper()
	if at := strings.Index(output, "=== SUMMARY ==="); at >= 0 && *tables {
		fmt.Printf("\n%s\n%s\n", title, output[at:])
	}
}
