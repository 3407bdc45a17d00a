package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// module is the root of the source tree.
const module = "../.."

// Binaries of this run of the tests; set by TestMain. refunds is a worker with a handler.
var coordinator, worker, refunds string

func TestMain(m *testing.M) {
	toolservertest.Main()
	natsiotest.Overlap()
	os.Exit(processtest.Built("", raceEnabled, func(dir string) int {
		coordinator, worker, refunds = filepath.Join(dir, "coordinator"), filepath.Join(dir, "worker"), filepath.Join(dir, "refunds")
		return processtest.Leakless(m)
	}, "./cmd/coordinator", "./cmd/worker", "./examples/refunds"))
}
