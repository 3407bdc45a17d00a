//go:build linux

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// The environment of a process that a test has started.
const (
	roleVariable   = "CHAOS_ROLE"
	configVariable = "CHAOS_CONFIG"
)

var (
	seed      = flag.Uint64("seed", 0, "seed of the faults and the calls; 0 chooses one and prints it")
	callCount = flag.Int("calls", 0, "calls per fault; 0 is the short form")
	limit     = flag.Duration("limit", 0, "how long calls are made at most, in the long form; 0 is until they are enough")
	keep      = flag.String("keep", "", "directory in which the logs of every test are kept")
)

func TestMain(m *testing.M) {
	if name := os.Getenv(roleVariable); name != "" {
		os.Exit(play(name))
	}
	natsiotest.Overlap()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	if err := errors.Join(os.Setenv("AWS_ACCESS_KEY_ID", "key"), os.Setenv("AWS_SECRET_ACCESS_KEY", "secret")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// role is the configuration of a process, and what it does.
type role interface {
	run(ctx context.Context) error
}

// play is the main function of a process that a test has started.
func play(name string) int {
	roles := map[string]role{"worker": &workerRole{}, "caller": &callerRole{}, "server": &serverRole{}, "machine": &machineRole{}, "coordinator": &coordinatorRole{}}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := json.Unmarshal([]byte(os.Getenv(configVariable)), roles[name])
	if err == nil {
		err = roles[name].run(ctx)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return 0 // it was stopped before it had begun
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	return 0
}
