package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/worker/toolserver/toolservertest"
)

// module is the root of the source tree.
const module = "../.."

// Binaries of this run of the tests; set by TestMain. refunds is a worker with a handler.
var coordinator, worker, refunds string

func TestMain(m *testing.M) {
	toolservertest.Main()
	natsiotest.Overlap()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "toolfleet-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := build(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	coordinator, worker = filepath.Join(dir, "coordinator"), filepath.Join(dir, "worker")
	refunds = filepath.Join(dir, "refunds")
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// build makes the binaries that the tests run.
func build(ctx context.Context, dir string) error {
	args := []string{"build", "-ldflags", "-s -w", "-o", dir + string(filepath.Separator)}
	if raceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/coordinator", "./cmd/worker", "./examples/refunds")...)
	cmd.Dir = module
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the binaries: %w\n%s", err, output)
	}
	return nil
}

// unavailable ends a test that this machine cannot run, in the way that the environment wants.
func unavailable(tb testing.TB, reason string) {
	tb.Helper()
	if os.Getenv("TOOLFLEET_INTEGRATION") == "required" {
		tb.Fatalf("TOOLFLEET_INTEGRATION=required, but %s", reason)
	}
	_, _ = fmt.Fprintf(os.Stderr, "\n*** %s SKIPPED: %s ***\n\n", tb.Name(), reason)
	tb.Skip(reason)
}
