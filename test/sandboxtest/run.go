//go:build unix

package sandboxtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// path is the PATH of the commands of the suite.
const path = "/usr/local/bin:/usr/bin:/bin"

// patience is how long the suite waits for what should come at once.
const patience = time.Minute

// Options describe a driver to the suite.
type Options struct {
	// Env names the environment variables that the driver adds by itself.
	Env []string
}

// Run tests the driver that newDriver makes.
func Run(t *testing.T, newDriver func(t *testing.T) isolation.Driver, options Options) {
	t.Helper()
	Require(t, newDriver(t))
	groups := map[string]func(*testing.T, suite){
		"driver":    testDriver,
		"exec":      testExec,
		"start":     testStart,
		"output":    testOutput,
		"limits":    testLimits,
		"processes": testProcesses,
		"life":      testLife,
		"terminal":  testTerminal,
		"protect":   testProtect,
	}
	for name, group := range groups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			group(t, suite{newDriver: newDriver, options: options})
		})
	}
	t.Run("files", func(t *testing.T) {
		t.Parallel()
		RunFS(t, func(t *testing.T) (sandbox.FS, string) {
			t.Helper()
			b := suite{newDriver: newDriver}.open(t, sandbox.Limits{})
			return b.FS(), b.workspace
		})
	})
}

// Require skips a test where this host does not let a driver reach any level: without user
// namespaces, or in a container that forbids them. With TOOLFLEET_INTEGRATION=required the test
// fails there.
func Require(t *testing.T, d isolation.Driver) {
	t.Helper()
	_, err := d.Probe(t.Context())
	if errors.Is(err, isolation.ErrLevel) && os.Getenv("TOOLFLEET_INTEGRATION") != "required" {
		t.Skipf("UNSUPPORTED: the driver %s does not isolate on this host: %v", d.Name(), err)
	}
	require.NoError(t, err)
}

// suite is what every test needs.
type suite struct {
	newDriver func(t *testing.T) isolation.Driver
	options   Options
}

// run is a table of tests, each with a sandbox of its own.
func (s suite) run(t *testing.T, tests map[string]func(*testing.T, *box)) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s.open(t, sandbox.Limits{}))
		})
	}
}

// box is a sandbox under test.
type box struct {
	sandbox.Sandbox

	workspace string
	scratch   string
	options   Options
}

func (s suite) open(t *testing.T, limits sandbox.Limits) *box {
	t.Helper()
	b := &box{workspace: t.TempDir(), scratch: t.TempDir(), options: s.options}
	opened, err := s.newDriver(t).Open(t.Context(), isolation.Spec{
		ID:        t.Name(),
		Workspace: b.workspace,
		Scratch:   b.scratch,
		Env:       map[string]string{"PATH": path, "LANG": "C"},
		Limits:    limits,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, opened.Close()) })
	b.Sandbox = opened
	return b
}

// exec runs a command that has to be started.
func (b *box) exec(t *testing.T, cmd sandbox.Cmd) sandbox.Result {
	t.Helper()
	result, err := b.Exec(t.Context(), cmd)
	require.NoError(t, err)
	return result
}

// sh runs a script that has to end by itself with exit code 0, and returns its output.
func (b *box) sh(t *testing.T, script string) string {
	t.Helper()
	result := b.exec(t, shell(script))
	require.Equal(t, sandbox.ReasonExited, result.Reason, "stderr: %s", result.Stderr.Data)
	require.Zero(t, result.ExitCode, "stderr: %s", result.Stderr.Data)
	return string(result.Stdout.Data)
}

// async runs a command; the result comes through the channel.
func (b *box) async(ctx context.Context, t *testing.T, cmd sandbox.Cmd) <-chan sandbox.Result {
	t.Helper()
	done := make(chan sandbox.Result, 1)
	go func() {
		result, err := b.Exec(ctx, cmd)
		if err != nil {
			t.Errorf("Exec: %v", err)
		}
		done <- result
	}()
	return done
}

// shell is a command that runs a script.
func shell(script string) sandbox.Cmd {
	return sandbox.Cmd{Argv: []string{"sh", "-c", script}}
}

// host returns the path of a workspace file on the host.
func (b *box) host(name string) string { return filepath.Join(b.workspace, name) }

// put makes a workspace file from outside.
func (b *box) put(t *testing.T, name, content string, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(b.host(name)), 0o755))
	require.NoError(t, os.WriteFile(b.host(name), []byte(content), mode))
	require.NoError(t, os.Chmod(b.host(name), mode))
}

// receive waits for a value that has to come.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		require.FailNow(t, "timed out waiting")
		panic("unreachable")
	}
}

// requireFault checks that err is a fault with that code, and returns its message.
func requireFault(t *testing.T, err error, code protocol.Code) string {
	t.Helper()
	var fault *protocol.Error
	require.ErrorAs(t, err, &fault)
	require.Equal(t, code, fault.Code, fault.Message)
	return fault.Message
}
