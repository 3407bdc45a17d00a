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
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

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
	url, err := run(tb, path, fixtures)
	if err != nil {
		tb.Fatalf("start aimock: %v", err)
	}
	return url + "/v1"
}

// run starts the program, and stops it when the test ends. It returns the URL on
// which the server listens.
func run(tb testing.TB, path, fixtures string) (string, error) {
	tb.Helper()
	config, err := writeConfig(tb.TempDir(), fixtures)
	if err != nil {
		return "", err
	}
	// The server must outlive tb.Context, which ends before clean-up functions run.
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	node := exec.CommandContext(ctx, "node", "--import", exitWithParent,
		path, "--config", config, "--host", "127.0.0.1", "--port", "0")
	node.Env = append(os.Environ(), "AIMOCK_API_KEYS="+APIKey)
	node.Cancel = func() error { return node.Process.Signal(os.Interrupt) }
	node.WaitDelay = stopTimeout
	log := &output{url: make(chan string, 1)}
	node.Stdout, node.Stderr = log, log
	stdin, err := node.StdinPipe()
	if err == nil {
		err = node.Start()
	}
	if err != nil {
		stop()
		return "", err
	}
	var ended error // of node, once exited is closed
	exited := make(chan struct{})
	go func() {
		ended = node.Wait()
		close(exited)
	}()
	tb.Cleanup(func() {
		stop()
		_ = stdin.Close()
		<-exited
		if tb.Failed() {
			tb.Logf("aimock said:\n%s", log)
		}
	})

	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case url := <-log.url:
		return url, nil
	case <-exited:
		return "", fmt.Errorf("it ended: %w\n%s", ended, log)
	case <-timeout.C:
		return "", fmt.Errorf("it does not listen after %v", startTimeout)
	}
}

// writeConfig writes the fixtures, and a configuration that names them.
func writeConfig(dir, fixtures string) (path string, err error) {
	fixturePath, path := filepath.Join(dir, "fixtures.json"), filepath.Join(dir, "aimock.json")
	if !json.Valid([]byte(fixtures)) {
		return "", errors.New("fixtures are not JSON")
	}
	config, err := json.Marshal(map[string]any{
		"strict": true,
		"llm":    map[string]any{"fixtures": fixturePath, "chunkSize": 5},
	})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(fixturePath, []byte(fixtures), 0o600); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, config, 0o600)
}

// output keeps what the server prints, and finds in it the URL on which it listens.
type output struct {
	url chan string // holds the URL once it is known

	mu    sync.Mutex
	text  strings.Builder
	found bool
}

// Write implements [io.Writer].
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	if url, ok := listening(strings.NewReader(o.text.String())); ok && !o.found {
		o.found = true
		o.url <- url
	}
	return len(p), nil
}

// String is all that was printed.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func listening(text io.Reader) (url string, ok bool) {
	for lines := bufio.NewScanner(text); lines.Scan(); {
		if _, url, ok := strings.Cut(lines.Text(), "server listening on "); ok {
			return url, true
		}
	}
	return "", false
}
