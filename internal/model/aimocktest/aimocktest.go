// Package aimocktest runs a model server that is not ours: aimock, which speaks OpenAI's HTTP API,
// streams and calls tools, and replies from fixtures. Tests against it show that the adapter and
// the server agree about the API, which a server written here, from the same understanding as the
// adapter, could not.
//
// The server is the npm package @copilotkit/aimock, pinned by the files in test/aimock and
// installed by package npmtest. [Start] runs it with node on a free loopback port; where it cannot
// be had, the test is skipped, or with TOOLFLEET_INTEGRATION=required fails.
package aimocktest

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/npmtest"
)

// program is the server below an installation.
const program = "node_modules/@copilotkit/aimock/dist/aimock-cli.js"

// APIKey is the only key that the server accepts.
const APIKey = "aimock-test-key"

// startTimeout bounds the time until the server listens; stopTimeout the time that it has to end by
// itself.
const (
	startTimeout = time.Minute
	stopTimeout  = 5 * time.Second
)

// exitWithParent makes node exit when its standard input ends, hence also when
// the test process dies without running its clean-up.
const exitWithParent = `data:text/javascript,process.stdin.on("end",()=>process.exit(0)).resume()`

// Start runs a server with fixtures for as long as the test, and returns its base URL:
// http://127.0.0.1:PORT/v1. The fixtures are aimock's own JSON, {"fixtures": [{"match": ...,
// "response": ...}]}.
//
// Each server belongs to its test alone, so fixtures may count requests (sequenceIndex). The test
// is skipped, or with TOOLFLEET_INTEGRATION=required fails, where the server cannot be had.
func Start(tb testing.TB, fixtures string) (baseURL string) {
	tb.Helper()
	path := filepath.Join(npmtest.Install(tb, "test/aimock", "NO TEST AGAINST A REAL MODEL SERVER"), program)
	fixtureFile, configFile := filepath.Join(tb.TempDir(), "fixtures.json"), filepath.Join(tb.TempDir(), "aimock.json")
	config, err := json.Marshal(map[string]any{"strict": true, "llm": map[string]any{"fixtures": fixtureFile, "chunkSize": 5}})
	require.NoError(tb, err)
	require.NoError(tb, os.WriteFile(fixtureFile, []byte(fixtures), 0o600))
	require.NoError(tb, os.WriteFile(configFile, config, 0o600))

	// The server must outlive tb.Context, which ends before clean-up functions run.
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	tb.Cleanup(stop)
	node := exec.CommandContext(ctx, "node", "--import", exitWithParent,
		path, "--config", configFile, "--host", "127.0.0.1", "--port", "0")
	node.Env = append(os.Environ(), "AIMOCK_API_KEYS="+APIKey)
	node.Cancel = func() error { return node.Process.Signal(os.Interrupt) }
	node.WaitDelay = stopTimeout
	output, written, err := os.Pipe()
	require.NoError(tb, err)
	node.Stdout, node.Stderr = written, written
	stdin, err := node.StdinPipe()
	require.NoError(tb, err)
	require.NoError(tb, node.Start())
	require.NoError(tb, written.Close()) // node has it
	urls, said := make(chan string, 1), strings.Builder{}
	go func() {
		defer close(urls)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			said.WriteString(lines.Text() + "\n")
			if _, url, ok := strings.Cut(lines.Text(), "server listening on "); ok {
				urls <- url
			}
		}
	}()
	tb.Cleanup(func() {
		stop()
		_ = stdin.Close()
		ended := node.Wait()
		for range urls { // until its output has ended
		}
		_ = output.Close()
		if tb.Failed() {
			tb.Logf("aimock ended: %v; it said:\n%s", ended, said.String())
		}
	})
	select {
	case url, listens := <-urls:
		require.True(tb, listens, "aimock has ended")
		return url + "/v1"
	case <-time.After(startTimeout):
		tb.Fatalf("aimock does not listen after %v", startTimeout)
		return ""
	}
}
