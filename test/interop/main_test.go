package interop

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// coordinator is the binary of this run of the tests; set by TestMain.
var coordinator string

func TestMain(m *testing.M) {
	natsiotest.Overlap()
	os.Exit(processtest.Built("", false, func(dir string) int {
		coordinator = filepath.Join(dir, "coordinator")
		return processtest.Leakless(m)
	}, "./cmd/coordinator"))
}
