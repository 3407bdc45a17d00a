//go:build linux

package blackbox

import (
	"cmp"
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// settings say what a run does.
type settings struct {
	bin     string        // directory with the binaries coordinator and worker
	dir     string        // where everything is written
	calls   int           // in all, at least
	lanes   int           // sandboxes
	callers int           // who put calls side by side
	workers int           // processes
	lease   time.Duration // of the workers
	pause   time.Duration // between two kills, on average
	seed    uint64        // of the calls and of the kills
}

var ( // as `make blackbox` gives them
	bin   = flag.String("bin", os.Getenv("TOOLFLEET_LINKED"), "directory with the binaries coordinator and worker; none: those of this tree")
	calls = flag.Int("calls", 0, "how many calls to make; 0 is the short form")
	seed  = flag.Uint64("seed", 0, "seed of the calls and the kills; 0 chooses one and prints it")
)

func TestRun_LawsHold(t *testing.T) {
	t.Parallel()
	s := settings{
		bin: *bin, dir: t.ArtifactDir(), seed: cmp.Or(*seed, rand.Uint64()), lease: 2 * time.Second,
		calls: 300, lanes: 6, callers: 12, workers: 2, pause: 1500 * time.Millisecond,
	}
	if *calls > 0 {
		s.calls, s.lanes, s.callers, s.workers, s.pause = *calls, 12, 24, 3, 4*time.Second
	}
	if s.bin == "" {
		s.bin = t.TempDir()
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", s.bin+"/", "../../cmd/coordinator", "../../cmd/worker")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build has it, so that nothing is compiled twice
		said, err := build.CombinedOutput()
		require.NoError(t, err, "%s", said)
	}
	run(t, s)
}

// run makes a fleet, has calls made while parts of it are killed, and holds the laws against that.
func run(t *testing.T, s settings) {
	t.Helper()
	begin := time.Now()
	t.Logf("seed %d, %d calls", s.seed, s.calls)
	f, err := startFleet(t.Context(), s)
	require.NoError(t, err)
	defer f.close()
	c, err := connect(t.Context(), f.url, f.creds)
	require.NoError(t, err)
	defer c.nc.Close()
	h := &history{calls: makeCalls(t.Context(), s, f, c)}
	require.NoError(t, f.fault)
	h.kills = f.kills
	require.NoError(t, c.awaitEmpty(t.Context()))
	require.NoError(t, c.readResults(t.Context(), h))
	h.effects, err = readEffects(filepath.Join(s.dir, "worker"))
	require.NoError(t, err)
	t.Logf("%s, %d workers and %d servers killed, %s in all",
		summary(h), f.count("worker"), f.count("server"), time.Since(begin).Round(time.Second))
	require.Empty(t, check(h))
}

// makeCalls has callers make calls while workers and the server are killed.
func makeCalls(ctx context.Context, s settings, f *fleet, c *client) []*call {
	killing, enough := context.WithCancel(ctx)
	var killer, callers sync.WaitGroup
	killer.Go(func() { f.killNowAndThen(killing) })
	made := make([][]*call, s.callers)
	for i := range made {
		callers.Go(func() { made[i] = c.makeCalls(ctx, s, i) })
	}
	callers.Wait()
	enough()
	killer.Wait()
	var all []*call
	for _, calls := range made {
		all = append(all, calls...)
	}
	return all
}
