package lane_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var limitedCalls = flag.Int("limited", 1500, "calls of TestLimits_HoldWhileWorkersAreKilled")

const (
	// limitedVariable makes a process of this test binary a worker that writes down what it starts
	// and ends: its server, its credentials and its file.
	limitedVariable = "LANE_TEST_LIMITED"
	// limitedServerVariable makes it a server: its directory and its address.
	limitedServerVariable = "LANE_TEST_LIMITED_SERVER"
)

// beLimitedWorker is the main function of that process.
func beLimitedWorker(settings string) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	words := strings.Split(settings, " ")
	ctx := context.Background()
	log, err := os.OpenFile(words[2], os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	nc, err := natsio.Connect(ctx, words[0], natsio.ConnectOptions{Name: "worker", Creds: words[1]})
	if err != nil {
		return err
	}
	note := func(what string, run *lane.Run) {
		_, _ = fmt.Fprintf(log, "%s %d %d %s\n", what, os.Getpid(), time.Now().UnixNano(), run.Call.Lane())
	}
	host := hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		note("start", run)
		defer note("end", run)
		time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond)
		return succeed(run)
	})
	host.onAdmit = func(run *lane.Run) { note("admit", run) }
	h, err := lane.NewHolder(ctx, nc, host, lane.Options{Slots: 16, Worker: protocol.WorkerID(fmt.Sprint("w", os.Getpid()))})
	if err == nil {
		err = h.Run(ctx, ctx)
	}
	return err
}

// limitedProcess is a worker of that kind, or the server.
type limitedProcess struct {
	cmd   *exec.Cmd
	ended chan struct{}
	dead  time.Time // when it had ended; read after that
}

func startLimited(t *testing.T, variable, settings string) *limitedProcess {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &limitedProcess{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), self), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), variable+"="+settings)
	_, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	p.cmd.Stderr = os.Stderr
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // it is killed
		p.dead = time.Now()
		close(p.ended)
	}()
	return p
}

func (p *limitedProcess) isOver() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *limitedProcess) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// beLimitedServer is the main function of a server in a process of its own.
func beLimitedServer(settings string) error {
	dir, address, _ := strings.Cut(settings, " ")
	_, err := embedded.Start(context.Background(), embedded.Options{Data: dir, Listen: address})
	if err == nil {
		_, err = io.Copy(io.Discard, os.Stdin) // until the tests end
	}
	return err
}

// limitedServer starts such a server, and returns how to start it again and how to connect to it.
func limitedServer(t *testing.T) (start func() *limitedProcess, url, creds string) {
	t.Helper()
	dir := t.TempDir()
	address := fmt.Sprint("127.0.0.1:", natsiotest.FreePorts(t, 1)[0])
	start = func() *limitedProcess { return startLimited(t, limitedServerVariable, dir+" "+address) }
	return start, "nats://" + address, filepath.Join(dir, embedded.TokenFile)
}

// Law: with 3 calls at once on one key, 64 callers, and workers and a server that are killed again
// and again, there is never a fourth, and no call is lost. No second has more starts than the rate
// and the burst.
func TestLimits_HoldWhileWorkersAreKilled(t *testing.T) {
	t.Parallel()
	startServer, url, creds := limitedServer(t)
	server := startServer()
	t.Cleanup(func() { server.kill() })
	f := &fleet{t: t, logger: slog.New(slog.DiscardHandler)}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		f.nc, err = natsio.Connect(context.WithoutCancel(t.Context()), url, natsio.ConnectOptions{Name: "callers", Creds: creds})
		require.NoError(c, err)
	}, patience, 100*time.Millisecond)
	t.Cleanup(f.nc.Close)
	var err error
	f.js, err = jetstream.New(f.nc)
	require.NoError(t, err)
	f.insist(func() error { return natsio.Ensure(t.Context(), f.js, natsio.Topology{Fleet: factFleet}) })
	f.ensurePool(briefLease)
	const rate, burst, many = 50, 10, 3
	f.setLimit(limits.Rule{Lane: "account/*", Concurrent: 3})
	f.setLimit(limits.Rule{Lane: "paced/*", Rate: perSecond(rate), Burst: burst})
	log := filepath.Join(t.TempDir(), "log")
	var workers, alive []*limitedProcess
	t.Cleanup(func() {
		for _, w := range alive {
			w.kill()
		}
	})
	p := f.publisher()
	var left atomic.Int64
	left.Store(int64(*limitedCalls))
	var callers sync.WaitGroup
	for i := range 64 {
		callers.Go(func() {
			for left.Add(-1) >= 0 {
				name := "account/hot"
				if i%32 == 0 {
					name = "paced/hot"
				}
				c := newCall(protocol.SessionID(fmt.Sprint("s", i)), shared(name))
				put(t, p, c)
				f.await(p, c)
			}
		})
	}
	done := make(chan struct{})
	go func() { callers.Wait(); close(done) }()
	kills, serverKills, before := 0, 0, left.Load()
	for ended := false; !ended; {
		alive = slices.DeleteFunc(alive, (*limitedProcess).isOver)
		for len(alive) < many { // a worker that cannot connect ends by itself
			w := startLimited(t, limitedVariable, url+" "+creds+" "+log)
			alive, workers = append(alive, w), append(workers, w)
		}
		select {
		case <-done:
			ended = true
		case <-time.After(time.Second):
			if before-left.Load() < 200 {
				continue // workers start slowly on a busy machine
			}
			before = left.Load()
			alive[rand.IntN(many)].kill()
			if kills++; kills%5 == 2 {
				server.kill()
				server = startServer()
				serverKills++
			}
		}
	}
	for _, w := range alive {
		w.kill()
	}
	requireLimited(t, log, workers, rate, burst)
	t.Logf("%d calls, %d workers and %d servers killed, %d workers ended because they could not connect",
		*limitedCalls, kills, serverKills, len(workers)-kills-many)
}

// noted is a line of what the workers wrote, or the end of one.
type noted struct {
	what, lane string
	pid        int
	at         int64
}

func requireLimited(t *testing.T, log string, workers []*limitedProcess, rate, burst int) {
	t.Helper()
	file, err := os.Open(log)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	var all []noted
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var n noted
		_, err := fmt.Sscan(lines.Text(), &n.what, &n.pid, &n.at, &n.lane)
		require.NoError(t, err, lines.Text())
		all = append(all, n)
	}
	for _, w := range workers {
		all = append(all, noted{what: "dead", pid: w.cmd.Process.Pid, at: w.dead.UnixNano()})
	}
	slices.SortStableFunc(all, func(a, b noted) int { return int(a.at - b.at) })
	running, now, most := map[int]int{}, 0, 0
	var admitted, paced []int64 // a start is counted in between
	for _, n := range all {
		hot := n.lane == "account/hot"
		switch {
		case n.what == "dead":
			now -= running[n.pid]
			delete(running, n.pid)
		case n.what == "admit" && !hot:
			admitted = append(admitted, n.at)
		case n.what == "admit":
		case n.what == "start" && hot:
			running[n.pid]++
			now++
		case n.what == "end" && hot:
			running[n.pid]--
			now--
		case n.what == "start":
			paced = append(paced, n.at)
		}
		most = max(most, now)
	}
	require.Equal(t, 3, most, "calls at once")
	const clocks = 3 // workers know the server's clock to some 100 ms
	for i, since := range admitted {
		until, _ := slices.BinarySearch(paced, since+int64(time.Second))
		require.LessOrEqual(t, until-i, rate+burst+clocks, "starts in a second")
	}
	t.Logf("%d paced starts", len(paced))
}
