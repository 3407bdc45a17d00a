// Command peers runs the same work on toolfleet and on other systems that run tasks for programs, in
// turns, and prints a table. Each system is used as its documents describe: with its default
// durability, the means that it has for an order of tasks by key, and no tuning; only Temporal's
// SQLite has a write-ahead log, without which it does a few tasks a second. `make bench-peers`
// runs it; it needs PostgreSQL's and Redis' servers, npm for Restate, and Go for Temporal.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// peer is a system under test. Do and Submit are safe for concurrent use.
type peer interface {
	// Start starts the servers in a directory, and workers that run at most slots tasks at once.
	Start(ctx context.Context, dir string, slots int) error
	// Do sends a task and waits until its result is stored. Tasks with one key must not overlap;
	// "" is no key.
	Do(ctx context.Context, t task) error
	// Submit sends tasks without waiting for them.
	Submit(ctx context.Context, tasks []task) error
	// Overlaps is how many tasks ran while another one of their key did.
	Overlaps() int64
	Close() error
}

// task is what a worker does: it waits for a time, and returns a short text.
type task struct {
	Key    string `json:"key"`
	Millis int    `json:"millis"`
}

// system is a peer with what the table says of it.
type system struct {
	name    string
	version string
	durable string // when an accepted task, and its result, are on disk
	byKey   string // the means for an order by key; "" is none
	open    func() peer
}

// work is what the workers of a peer run. It finds out whether tasks of one key overlap.
type work struct {
	mu       sync.Mutex
	running  map[string]bool
	overlaps atomic.Int64
}

func newWork() *work { return &work{running: map[string]bool{}} }

// Overlaps implements [peer].
func (w *work) Overlaps() int64 { return w.overlaps.Load() }

func (w *work) run(ctx context.Context, t task) (string, error) {
	if t.Key != "" {
		w.mu.Lock()
		if w.running[t.Key] {
			w.overlaps.Add(1)
		}
		w.running[t.Key] = true
		w.mu.Unlock()
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.running, t.Key)
		}()
	}
	if t.Millis > 0 {
		timer := time.NewTimer(time.Duration(t.Millis) * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return "done", nil
}

// settings of a run.
type settings struct {
	tasks, keyed, latency, backlog, slots, callers, rounds int
}

func main() {
	var s settings
	var only string
	flag.IntVar(&s.tasks, "tasks", 10_000, "no-op tasks")
	flag.IntVar(&s.keyed, "keyed", 6_400, "tasks of 5 ms with 64 keys")
	flag.IntVar(&s.latency, "latency", 500, "tasks of a single caller")
	flag.IntVar(&s.backlog, "backlog", 100_000, "tasks of one key that wait while another key has one task")
	flag.IntVar(&s.slots, "slots", 128, "tasks that a worker runs at once")
	flag.IntVar(&s.callers, "callers", 256, "callers of the throughput measurements")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds, in each of which every system has its turn")
	flag.StringVar(&only, "only", "", "systems to run, separated by commas; all by default")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, s, only); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings, only string) error {
	systems := all()
	if only != "" {
		systems = slices.DeleteFunc(systems, func(y system) bool { return !slices.Contains(strings.Split(only, ","), y.name) })
	}
	found := map[string][]figures{}
	for range s.rounds {
		for _, y := range systems {
			f, err := measure(ctx, s, y)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", y.name, err)
				f.failed = err.Error()
			}
			found[y.name] = append(found[y.name], f)
			fmt.Fprintf(os.Stderr, "%s: %+v\n", y.name, f)
		}
	}
	printTable(systems, found, s)
	return nil
}

// figures are what one turn of a system measured; zero is not measured.
type figures struct {
	noop, keyed float64 // tasks a second
	p50, p99    time.Duration
	other       time.Duration // a task of another key behind the backlog
	overlaps    int64
	failed      string
}

func measure(ctx context.Context, s settings, y system) (f figures, err error) {
	dir, err := os.MkdirTemp("", "peers-"+y.name+"-")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	p := y.open()
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := p.Start(ctx, dir, s.slots); err != nil {
		return f, fmt.Errorf("start: %w", err)
	}
	if err := p.Do(ctx, task{}); err != nil {
		return f, fmt.Errorf("first task: %w", err)
	}
	if f.noop, err = throughput(ctx, p, s.tasks, s.callers, func(int) task { return task{} }); err != nil {
		return f, fmt.Errorf("no-op tasks: %w", err)
	}
	times := make([]time.Duration, s.latency)
	for i := range times {
		begun := time.Now()
		if err := p.Do(ctx, task{}); err != nil {
			return f, fmt.Errorf("one caller: %w", err)
		}
		times[i] = time.Since(begun)
	}
	slices.Sort(times)
	f.p50, f.p99 = times[len(times)/2], times[len(times)*99/100]
	if y.byKey != "" {
		if f.keyed, err = throughput(ctx, p, s.keyed, s.callers, func(i int) task {
			return task{Key: fmt.Sprintf("key-%d", i%64), Millis: 5}
		}); err != nil {
			return f, fmt.Errorf("tasks by key: %w", err)
		}
		f.overlaps = p.Overlaps()
	}
	backlog := make([]task, s.backlog)
	for i := range backlog {
		backlog[i] = task{Key: "busy", Millis: 1}
	}
	if err := p.Submit(ctx, backlog); err != nil {
		return f, fmt.Errorf("backlog: %w", err)
	}
	begun := time.Now()
	waits, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := p.Do(waits, task{Key: "other"}); err != nil && ctx.Err() == nil {
		f.other = time.Minute
	} else {
		f.other = time.Since(begun)
	}
	return f, nil
}

// throughput has callers send tasks and wait for each, and returns tasks a second.
func throughput(ctx context.Context, p peer, n, callers int, of func(i int) task) (float64, error) {
	var next atomic.Int64
	var group sync.WaitGroup
	faults := make([]error, callers)
	begun := time.Now()
	for c := range callers {
		group.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := p.Do(ctx, of(i)); err != nil {
					faults[c] = err
					return
				}
			}
		})
	}
	group.Wait()
	return float64(n) / time.Since(begun).Seconds(), errors.Join(faults...)
}

func printTable(systems []system, found map[string][]figures, s settings) {
	fmt.Printf("%d no-op tasks and %d tasks of 5 ms with 64 keys by %d callers, %d slots; %d tasks by one caller; a backlog of %d tasks of 1 ms of one key; medians of %d rounds in turns; %d cores, %s\n\n",
		s.tasks, s.keyed, s.callers, s.slots, s.latency, s.backlog, s.rounds, runtime.NumCPU(), runtime.Version())
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	fmt.Fprintln(table, "| system\t| no-op tasks/s\t| one caller p50, p99\t| 5 ms tasks by 64 keys, /s\t| another key behind the backlog\t| accepted tasks and results on disk\t| order by key |")
	fmt.Fprintln(table, "|---\t|---\t|---\t|---\t|---\t|---\t|--- |")
	for _, y := range systems {
		all := found[y.name]
		good := slices.DeleteFunc(slices.Clone(all), func(f figures) bool { return f.failed != "" })
		if len(good) == 0 {
			fmt.Fprintf(table, "| %s %s\t| failed: %s\n", y.name, y.version, all[0].failed)
			continue
		}
		keyed := "cannot"
		if y.byKey != "" {
			keyed = fmt.Sprintf("%.0f", median(good, func(f figures) float64 { return f.keyed }))
			if n := good[0].overlaps; n > 0 {
				keyed += fmt.Sprintf(" (%d overlapped)", n)
			}
		}
		duration := func(of func(figures) time.Duration) time.Duration {
			return time.Duration(median(good, func(f figures) float64 { return float64(of(f)) })).Round(10 * time.Microsecond)
		}
		other := duration(func(f figures) time.Duration { return f.other }).String()
		if other == "1m0s" {
			other = "more than 1m0s"
		}
		fmt.Fprintf(table, "| %s %s\t| %.0f\t| %s, %s\t| %s\t| %s\t| %s\t| %s |\n", y.name, y.version,
			median(good, func(f figures) float64 { return f.noop }),
			duration(func(f figures) time.Duration { return f.p50 }), duration(func(f figures) time.Duration { return f.p99 }),
			keyed, other, y.durable, cmp.Or(y.byKey, "none"))
	}
	_ = table.Flush() // standard output
}

func median(all []figures, of func(figures) float64) float64 {
	values := make([]float64, len(all))
	for i, f := range all {
		values[i] = of(f)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
