package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"coordinator": main}) }

// TestScripts runs the real command line, without any server; what needs processes that
// live together is tested in test/integration.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true, Setup: endAtOnce})
}

// endAtOnce has commands that were built with the race detector not wait for a second at their end.
func endAtOnce(env *testscript.Env) error {
	env.Setenv("GORACE", "atexit_sleep_ms=0")
	return nil
}
