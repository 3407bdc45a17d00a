//go:build linux

package chaos

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// The environment of a process that a test has started.
const (
	roleVariable   = "CHAOS_ROLE"
	configVariable = "CHAOS_CONFIG"
)

var (
	seed  = flag.Uint64("seed", 0, "seed of the faults and the calls; 0 chooses one and prints it")
	calls = flag.Int("calls", 0, "calls per fault; 0 is the short form")
	keep  = flag.String("keep", "", "directory in which the logs of every test are kept")
)

// atOnce is how many tests run at once where there are fewer cores.
const atOnce = 4

func TestMain(m *testing.M) {
	if name := os.Getenv(roleVariable); name != "" {
		os.Exit(play(name))
	}
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	// The tests wait more than they compute, so more of them than there are cores go side by side.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue && runtime.GOMAXPROCS(0) < atOnce {
		_ = flag.Set("test.parallel", strconv.Itoa(atOnce)) // a number is a valid value
	}
	goleak.VerifyTestMain(m)
}

// role is the configuration of a process, and what it does.
type role interface {
	run(ctx context.Context) error
}

// play is the main function of a process that a test has started.
func play(name string) int {
	roles := map[string]role{"worker": &workerRole{}, "caller": &callerRole{}, "server": &serverRole{}}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := json.Unmarshal([]byte(os.Getenv(configVariable)), roles[name])
	if err == nil {
		err = roles[name].run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	return 0
}
