package lane_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
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

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var limitedCalls = flag.Int("limited", 1500, "calls of TestLimits_HoldWhileWorkersAreKilled")

// limitedVariable makes a process of this test binary a worker that writes down what it starts and
// ends: its server, its credentials and its file.
const limitedVariable = "LANE_TEST_LIMITED"

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
	h, err := lane.NewHolder(ctx, nc, hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		note("start", run)
		defer note("end", run)
		time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond)
		return succeed(run)
	}), lane.Options{Slots: 16, Worker: protocol.WorkerID(fmt.Sprint("w", os.Getpid()))})
	if err == nil {
		err = h.Run(ctx, ctx)
	}
	return err
}

// limitedWorker is such a process.
type limitedWorker struct {
	cmd  *exec.Cmd
	dead time.Time // when it had ended
}

func startLimited(t *testing.T, settings string) *limitedWorker {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	w := &limitedWorker{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), self)}
	w.cmd.Env = append(os.Environ(), limitedVariable+"="+settings)
	_, err = w.cmd.StdinPipe()
	require.NoError(t, err)
	w.cmd.Stderr = os.Stderr
	require.NoError(t, w.cmd.Start())
	return w
}

func (w *limitedWorker) kill() {
	if w.dead.IsZero() {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait() // it is killed
		w.dead = time.Now()
	}
}

// Law: with 3 calls at once on one key, 64 callers and workers that are killed again and again,
// there is never a fourth, and no call is lost. No second has more starts than the rate and the
// burst.
func TestLimits_HoldWhileWorkersAreKilled(t *testing.T) {
	t.Parallel()
	nf := natsiotest.Listening(t, natsio.Topology{})
	f := around(t, nf)
	f.ensurePool(briefLease)
	const rate, burst = 50, 10
	f.setLimit(limits.Rule{Lane: "account/*", Concurrent: 3})
	f.setLimit(limits.Rule{Lane: "paced/*", Rate: perSecond(rate), Burst: burst})
	log := filepath.Join(t.TempDir(), "log")
	settings := nf.Server.URL() + " " + nf.Server.CredentialFile() + " " + log
	var workers []*limitedWorker
	begin := func() { workers = append(workers, startLimited(t, settings)) }
	for range 3 {
		begin()
	}
	t.Cleanup(func() {
		for _, w := range workers {
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
	kills, before := 0, left.Load()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		case <-time.After(time.Second):
			if before-left.Load() < 200 {
				continue // workers start slowly on a busy machine
			}
			before = left.Load()
			workers[len(workers)-1-rand.IntN(3)].kill()
			kills++
			begin()
		}
	}
	for _, w := range workers {
		w.kill()
	}
	requireLimited(t, log, workers, rate, burst)
	t.Logf("%d calls, %d workers killed", *limitedCalls, kills)
}

// noted is a line of what the workers wrote, or the end of one.
type noted struct {
	what, lane string
	pid        int
	at         int64
}

func requireLimited(t *testing.T, log string, workers []*limitedWorker, rate, burst int) {
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
	var paced []int64
	for _, n := range all {
		hot := n.lane == "account/hot"
		switch {
		case n.what == "dead":
			now -= running[n.pid]
			delete(running, n.pid)
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
	const noting = 3 // a busy machine notes starts of a moment late
	for i := range paced {
		n := slices.IndexFunc(paced[i:], func(at int64) bool { return at-paced[i] >= int64(time.Second) })
		if n < 0 {
			n = len(paced) - i
		}
		require.LessOrEqual(t, n, rate+burst+noting, "starts in a second")
	}
	t.Logf("%d paced starts", len(paced))
}
