package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/toolfleet/toolfleet/internal/cli/workercmd"
	"github.com/toolfleet/toolfleet/internal/mcp/login/logintest"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/natsio/shared"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/test/processtest"
)

func TestMain(m *testing.M) {
	testscript.Main(leftBehind{m}, map[string]func(){"coordinator": main, "worker": func() {
		os.Exit(workercmd.Run(workercmd.FromProcess(version), kinds.Handlers{}))
	}, "mcptest": toolservertest.Serve, "browser": func() {
		if err := logintest.Browse(context.Background(), os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}})
}

// leftBehind runs tests, and fails if they leave a server in the background.
type leftBehind struct{ *testing.M }

// Run implements [testscript.TestingM].
func (m leftBehind) Run() int {
	code := m.M.Run()
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if left := processtest.Left(self); code == 0 && (err != nil || len(left) > 0) {
		fmt.Fprintf(os.Stderr, "the tests have left processes (%v):\n%s\n", err, strings.Join(left, "\n"))
		return 1
	}
	return code
}

// TestScripts runs the real command line, without any server; what needs processes that
// live together is tested in test/integration.
func TestScripts(t *testing.T) {
	t.Parallel()
	web := logintest.Start(t, toolservertest.New)
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true, Setup: func(env *testscript.Env) error {
		env.Setenv("MCP_URL", web.URL)
		env.Setenv("MODELS_URL", serveModels(t))
		state := filepath.Join(env.WorkDir, "state")
		env.Setenv("XDG_STATE_HOME", state)
		env.Setenv(shared.IdleVariable, processtest.Idle)
		env.Defer(func() { processtest.EndServer(state) })
		if err := os.WriteFile(filepath.Join(env.WorkDir, "a.gif"), pixel, 0o600); err != nil {
			return err
		}
		return likeTheTests(env)
	}})
}

// pixel is a GIF image of one pixel.
var pixel = []byte("GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;")

// serveModels serves models whose names are the finish_reasons of their replies, one after the
// other, as in "error,stop". It returns the server's base URL.
func serveModels(t *testing.T) string {
	t.Helper()
	var asked sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct{ Model string }
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		reasons := strings.Split(request.Model, ",")
		count, _ := asked.LoadOrStore(request.Model, new(atomic.Int64))
		n := int(count.(*atomic.Int64).Add(1)) //nolint:errcheck // it panics
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"Half a sen\"},\"finish_reason\":%q}]}\n\ndata: [DONE]\n\n",
			reasons[min(n, len(reasons))-1])
	}))
	t.Cleanup(server.Close)
	return server.URL + "/v1"
}

// likeTheTests gives commands that were built with the race detector the options that the tests
// have.
func likeTheTests(env *testscript.Env) error {
	env.Setenv("GORACE", os.Getenv("GORACE"))
	return nil
}
