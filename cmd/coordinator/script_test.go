package main

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/login/logintest"
	"github.com/toolfleet/toolfleet/internal/worker/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/workercmd"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"coordinator": main, "worker": func() {
		os.Exit(workercmd.Run(workercmd.FromProcess(version), worker.Handlers{}))
	}, "mcptest": toolservertest.Serve, "browser": func() {
		if err := logintest.Browse(context.Background(), os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}})
}

// TestScripts runs the real command line, without any server; what needs processes that
// live together is tested in test/integration.
func TestScripts(t *testing.T) {
	t.Parallel()
	web := logintest.Start(t, toolservertest.New)
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true, Setup: func(env *testscript.Env) error {
		env.Setenv("MCP_URL", web.URL)
		return likeTheTests(env)
	}})
}

// likeTheTests gives commands that were built with the race detector the options that the tests
// have.
func likeTheTests(env *testscript.Env) error {
	env.Setenv("GORACE", os.Getenv("GORACE"))
	return nil
}
