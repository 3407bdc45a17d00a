package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// coordinator is the binary of this run of the tests; set by TestMain.
var coordinator string

func TestMain(m *testing.M) {
	natsiotest.Overlap()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "toolfleet-interop-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	coordinator = filepath.Join(dir, "coordinator")
	build := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", coordinator, "./cmd/coordinator")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build has it, so that nothing is compiled twice
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the coordinator: %v\n%s", err, output)
		return 1
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}
