package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// coordinator is the binary of this run of the tests; set by TestMain.
var coordinator string

func TestMain(m *testing.M) {
	if os.Getenv(asPerson) != "" {
		if err := person(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	natsiotest.Overlap()
	os.Exit(processtest.Built("", false, func(dir string) int {
		coordinator = filepath.Join(dir, "coordinator")
		return processtest.Leakless(m)
	}, "./cmd/coordinator"))
}
