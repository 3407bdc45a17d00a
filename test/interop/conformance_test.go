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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/npmtest"
)

// tables has tests print what the programs of others found.
var tables = flag.Bool("tables", false, "print the tables of the conformance suites")

// patience bounds a run of a program of others.
const patience = 5 * time.Minute

// install returns the Node that programs of others need, and where their packages are.
func install(t *testing.T) (node, dir string) {
	t.Helper()
	dir = npmtest.Install(t, "test/interop", "NO TEST AGAINST PROGRAMS OF OTHERS")
	node = filepath.Join(dir, "node_modules", "node-linux-"+map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH], "bin", "node")
	if _, err := os.Stat(node); err != nil {
		t.Skipf("no test against programs of others: no Node 22 for this system: %v", err)
	}
	return node, dir
}

// node runs a program of an npm package, and returns what it wrote to standard output.
func node(t *testing.T, script string, args ...string) (string, error) {
	t.Helper()
	binary, dir := install(t)
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

// suite and nextSuite are the official ones, for protocol versions with sessions and for the one
// without.
const (
	suite     = "@modelcontextprotocol/conformance/dist/index.js"
	nextSuite = "@modelcontextprotocol/conformance-next/dist/index.js"
)

// scenario is the line of a suite about one.
var scenario = regexp.MustCompile(`(?m)^([✓✗]) ([A-Za-z0-9_/-]+): \d+ passed`)

// scenarios are what a suite says that it ran, by whether they passed.
func scenarios(t *testing.T, title, output string) (passed, failed []string) {
	t.Helper()
	begin, end := strings.Index(output, "SUMMARY ==="), strings.LastIndex(output, "Total: ")
	require.Less(t, max(begin, 0), end, output)
	for _, found := range scenario.FindAllStringSubmatch(output[begin:end], -1) {
		if found[1] == "✓" {
			passed = append(passed, found[2])
		} else {
			failed = append(failed, found[2])
		}
	}
	if *tables {
		fmt.Printf("\n%s: %d of %d scenarios\n%s\n", title, len(passed), len(passed)+len(failed), output[begin:])
	}
	return passed, failed
}

// TestConformance_2025_11_25 runs every scenario of the official suite for protocol versions with
// sessions.
func TestConformance_2025_11_25(t *testing.T) {
	t.Parallel()
	output, err := node(t, suite, "server", "--url", startFixture(t), "--suite", "all")
	require.NoError(t, err, output)
	passed, failed := scenarios(t, "conformance 0.1.16, server", output)
	require.Empty(t, failed, output)
	require.Len(t, passed, 32, output)
}

// TestConformance_Client has workers be the client of every client scenario of the official suite,
// by calls of a coordinator with its server among --mcp-config.
func TestConformance_Client(t *testing.T) {
	t.Parallel()
	if !*tables {
		t.Skip("it takes half a minute: make interop runs it")
	}
	script, err := filepath.Abs("testdata/client.sh")
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	// It runs all at once, and its exit code is about scenarios that are not passed here, too.
	output, _ := node(t, suite, "client", "--suite", "all", "--timeout", "120000", "--command", fmt.Sprintf("COORDINATOR=%s PERSON=%s sh %s", coordinator, self, script))
	passed, failed := scenarios(t, "conformance 0.1.16, client", output)
	require.Len(t, slices.Concat(passed, failed), 26, output)
	require.ElementsMatch(t, []string{
		"auth/client-credentials-jwt", "auth/cross-app-access-complete-flow", // there are no such logins
		"auth/2025-03-26-oauth-metadata-backcompat", // whose issuer is not where its metadata are
	}, failed, output)
}
