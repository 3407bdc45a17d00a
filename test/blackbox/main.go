//go:build linux

package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
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

func main() {
	var s settings
	flag.StringVar(&s.bin, "bin", "bin", "directory with the binaries coordinator and worker")
	flag.StringVar(&s.dir, "dir", "", "empty directory for data and logs, which is kept; none: a temporary one")
	flag.IntVar(&s.calls, "calls", 2000, "how many calls to make")
	flag.Uint64Var(&s.seed, "seed", 0, "seed of the calls and the kills; 0 chooses one")
	flag.Parse()
	s.lanes, s.callers, s.workers, s.lease, s.pause = 12, 24, 3, 2*time.Second, 4*time.Second
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	violations, err := run(ctx, s, os.Stdout)
	stop()
	for _, v := range violations {
		fmt.Fprintln(os.Stderr, v)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "blackbox:", err)
	}
	if err != nil || len(violations) > 0 {
		os.Exit(1)
	}
}

// run makes a fleet, has calls made while parts of it are killed, and returns what broke a law.
func run(ctx context.Context, s settings, out io.Writer) (violations []string, err error) {
	begin := time.Now()
	s.seed = cmp.Or(s.seed, rand.Uint64())
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "blackbox-"); err != nil {
			return nil, err
		}
		defer func() {
			if err == nil && len(violations) == 0 {
				err = os.RemoveAll(s.dir)
			}
		}()
	}
	_, _ = fmt.Fprintf(out, "seed %d, %d calls, in %s\n", s.seed, s.calls, s.dir)
	f, err := startFleet(ctx, s)
	if err != nil {
		return nil, err
	}
	defer f.close()
	c, err := connect(ctx, f.url, f.creds)
	if err != nil {
		return nil, err
	}
	defer c.nc.Close()
	h := &history{calls: makeCalls(ctx, s, f, c), kills: f.kills}
	if f.fault != nil {
		return nil, f.fault
	}
	if err := c.awaitEmpty(ctx); err != nil {
		return nil, err
	}
	if err := c.readResults(ctx, h); err != nil {
		return nil, err
	}
	if h.effects, err = readEffects(filepath.Join(s.dir, "worker")); err != nil {
		return nil, err
	}
	violations = check(h)
	_, _ = fmt.Fprintf(out, "%s, %d workers and %d servers killed, %d violations, %s in all\n",
		summary(h), f.count("worker"), f.count("server"), len(violations), time.Since(begin).Round(time.Second))
	return violations, nil
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
