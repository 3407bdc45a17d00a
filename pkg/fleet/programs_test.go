package fleet_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
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
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

var programs = flag.Int("programs", 15, "programs of TestStream_RandomProgramsAgreeWithTheirModel")

// stepWorkerVariable makes a process of this test binary a worker that runs the steps of programs.
const stepWorkerVariable = "FLEET_TEST_STEP_WORKER"

// step is what a call of a random program does.
type step struct {
	Log  string `json:"log"` // the file that the call notes its start and end in
	Does string `json:"does"`
}

const (
	succeeds = "succeeds"
	fails    = "fails"
	blocks   = "blocks" // until it is cancelled
)

func beStepWorker() {
	worker.Main(worker.Handle("step", func(ctx context.Context, call *worker.Call, s step) (string, error) {
		log, err := os.OpenFile(s.Log, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return "", err
		}
		defer func() { _ = log.Close() }()
		note := func(what string) {
			_, _ = fmt.Fprintf(log, "%s %s %s %d\n", what, call.ID(), call.Session(), call.Fence())
		}
		note("start")
		wait := time.Duration(rand.IntN(10)) * time.Millisecond
		if s.Does == blocks {
			wait = time.Hour
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
		note("end")
		if s.Does == fails {
			return "", errors.New("as it was to")
		}
		return "done", nil
	}))
}

// operation is a call of a random program, in the order in which the calls are sent.
type operation struct {
	stream int // each sandbox has two
	does   string
	waits  []int // calls, by their index
	ok     bool  // what the model says
	runs   bool
}

const (
	programStreams = 4
	// endWithin is far longer than the calls of a program take, with every worker that is killed.
	endWithin = 4 * time.Minute
)

func (o *operation) sandbox(program int) string {
	return fmt.Sprintf("p%d_%d", program, o.stream/2)
}

// randomProgram makes a program, and what becomes of its calls by the rules of streams and events.
func randomProgram(seed uint64) []*operation {
	r := rand.New(rand.NewPCG(seed, 1))
	last := make([]int, programStreams) // the last call of each stream, from 1
	all := make([]*operation, 4+r.IntN(9))
	for i := range all {
		o := &operation{stream: r.IntN(programStreams), does: succeeds, runs: true}
		switch r.IntN(12) {
		case 0:
			o.does = fails
		case 1:
			o.does = blocks
		}
		for range r.IntN(3) {
			if event := last[r.IntN(programStreams)]; event > 0 && !slices.Contains(o.waits, event-1) {
				o.waits = append(o.waits, event-1)
				o.runs = o.runs && all[event-1].ok
			}
		}
		o.ok = o.runs && o.does == succeeds
		all[i], last[o.stream] = o, i+1
	}
	return all
}

// Law: streams keep the order of their calls, and events that of streams, whichever process sent a
// call and whichever workers are killed meanwhile; each call has the result that the program says.
func TestStream_RandomProgramsAgreeWithTheirModel(t *testing.T) {
	t.Parallel()
	url := natsiotest.Serve(t, natsiotest.Alone(t, "", "")).ClientURL()
	clients := make([]*fleet.Client, 2)
	for i := range clients {
		clients[i] = mustConnect(t, fleet.Options{URL: url})
		t.Cleanup(func() { require.NoError(t, clients[i].Close()) })
	}
	ctx, stop := context.WithCancel(t.Context())
	var killed atomic.Int64
	var killer sync.WaitGroup
	killer.Go(func() { killStepWorkers(ctx, t, url, &killed) })
	group, running := errgroup.WithContext(ctx)
	const together = 24
	group.SetLimit(together)
	dir, calls := t.TempDir(), 0
	for i := range *programs {
		for running.Err() == nil && killed.Load() < int64(min(i/3, 5)) { // on each machine some run while workers are killed
			time.Sleep(time.Millisecond)
		}
		program := randomProgram(uint64(i))
		calls += len(program)
		group.Go(func() error {
			err := runProgram(running, clients, i, program, filepath.Join(dir, fmt.Sprint(i)))
			if err != nil {
				return fmt.Errorf("program %d: %w", i, err)
			}
			return nil
		})
	}
	err := group.Wait()
	stop()
	killer.Wait()
	t.Logf("%d programs, %d calls, %d workers killed", *programs, calls, killed.Load())
	require.NoError(t, err)
}

// announced is closed when a process has written that it takes calls.
type announced struct {
	log   []byte
	takes chan struct{}
}

func (a *announced) Write(p []byte) (int, error) {
	if a.log != nil {
		if a.log = append(a.log, p...); bytes.Contains(a.log, []byte(" takes calls of pool ")) {
			a.log = nil
			close(a.takes)
		}
	}
	return len(p), nil
}

// killStepWorkers keeps three workers running and kills one of them again and again until ctx ends,
// each time one that takes calls.
func killStepWorkers(ctx context.Context, t *testing.T, url string, killed *atomic.Int64) {
	t.Helper()
	type process struct {
		*exec.Cmd

		takes <-chan struct{}
	}
	start := func(n int) process {
		cmd := exec.Command(os.Args[0], "--nats", url, "--lease", "1s", "--name", fmt.Sprint("w", n), "--sandbox", "none", "--slots", "16") //nolint:noctx // killed below
		cmd.Env = append(os.Environ(), stepWorkerVariable+"=1")
		log := &announced{log: []byte{}, takes: make(chan struct{})}
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			t.Errorf("start worker: %v", err)
		}
		return process{cmd, log.takes}
	}
	workers := []process{start(0), start(1), start(2)}
	end := func(i int) {
		_ = workers[i].Process.Kill()
		_ = workers[i].Wait() // it says that it was killed
	}
	for ctx.Err() == nil {
		i := rand.IntN(len(workers))
		select {
		case <-workers[i].takes:
		case <-ctx.Done():
		}
		select {
		case <-time.After(200*time.Millisecond + rand.N(300*time.Millisecond)):
			end(i)
			workers[i] = start(int(killed.Add(1)) + len(workers))
		case <-ctx.Done():
		}
	}
	for i := range workers {
		end(i)
	}
}

// runProgram sends the calls of a program, by futures of one process or stored by two, and compares
// what comes of them with the model.
func runProgram(ctx context.Context, clients []*fleet.Client, number int, program []*operation, log string) error {
	table, err := tools.NewTable(tools.NewRemote[step]("step", "Step.", tools.Remote{Kind: "step", Resources: []tools.Resource{}}))
	if err != nil {
		return err
	}
	streams := map[string]*fleet.Stream{}
	futures := make([]*fleet.Future, len(program))
	for i, o := range program {
		sender := 0
		if number%2 == 1 {
			sender = rand.IntN(len(clients))
		}
		key := fmt.Sprint(sender, o.stream)
		if streams[key] == nil {
			streams[key] = clients[sender].Stream(o.sandbox(number), fmt.Sprint("s", o.stream))
		}
		for _, other := range o.waits {
			streams[key].Wait(futures[other].Ref())
		}
		call := fleet.Call{
			Table: table, Tool: "step", Arguments: fmt.Sprintf(`{"log":%q,"does":%q}`, log, o.does), ID: protocol.CallID(fmt.Sprint("c", i)),
			Delivery: protocol.Idempotent, MinLevel: "none",
		}
		if number%2 == 0 {
			futures[i] = streams[key].Go(ctx, call)
		} else {
			ref, err := streams[key].Submit(ctx, call)
			if err != nil {
				return err
			}
			if futures[i], err = clients[rand.IntN(len(clients))].Attach(ctx, ref); err != nil {
				return err
			}
		}
		if last := streams[key].Record(); last != futures[i].Ref() {
			return fmt.Errorf("call %d: the last of its stream is %s", i, last)
		}
		if o.does == blocks {
			if err := futures[i].Cancel(ctx); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	for i, f := range futures {
		result, err := f.Wait(ctx)
		if err != nil {
			lane, _ := clients[0].Lanes("").Show(context.WithoutCancel(ctx), protocol.SandboxKey(program[i].sandbox(number)).Lane(), 0)
			return fmt.Errorf("call %d, %+v: %w\n%+v", i, program[i], err, lane)
		}
		if err := program[i].agrees(&result); err != nil {
			return fmt.Errorf("call %d, which %s: %w", i, program[i].does, err)
		}
	}
	return checkLog(program, log)
}

// agrees compares a result with the model.
func (o *operation) agrees(result *fleet.Result) error {
	var want []protocol.Status
	switch {
	case o.does == blocks: // a lost worker may have started it
		want = []protocol.Status{protocol.StatusCancelled, protocol.StatusOutcomeUnknown}
		if !o.runs {
			want = append(want, protocol.StatusRejected)
		}
	case !o.runs:
		want = []protocol.Status{protocol.StatusRejected}
	case o.ok:
		want = []protocol.Status{protocol.StatusOK}
	default:
		want = []protocol.Status{protocol.StatusFailed}
	}
	switch {
	case !slices.Contains(want, result.Status):
		return fmt.Errorf("ended %s, want %v: %w", result.Status, want, result.Err())
	case result.Status == protocol.StatusRejected && result.Error.Code != protocol.CodeAfterUnmet:
		return fmt.Errorf("rejected: %w", result.Error)
	}
	return nil
}

// checkLog holds the order in which calls ran against streams and events. As a resource would, it
// ignores what a worker wrote that had lost its lane.
func checkLog(program []*operation, log string) error {
	content, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	first, last, fences := map[int]int{}, map[int]int{}, map[string]uint64{}
	lines := bufio.NewScanner(strings.NewReader(string(content)))
	for at := 1; lines.Scan(); at++ {
		var what, sandbox string
		var i int
		var fence uint64
		if _, err := fmt.Sscanf(lines.Text(), "%s c%d %s %d", &what, &i, &sandbox, &fence); err != nil {
			return fmt.Errorf("line %q: %w", lines.Text(), err)
		}
		if fence < fences[sandbox] {
			continue
		}
		fences[sandbox] = fence
		if first[i] == 0 {
			first[i] = at
		}
		last[i] = at
	}
	for i, o := range program {
		if ran := first[i] > 0; ran && !o.runs || !ran && o.runs && o.does != blocks {
			return fmt.Errorf("call %d: ran: %t, want %t\n%s", i, ran, o.runs, content)
		}
		for j, earlier := range program[:i] {
			if first[i] > 0 && last[j] > first[i] && (earlier.stream == o.stream || slices.Contains(o.waits, j)) {
				return fmt.Errorf("call %d started before call %d had ended\n%s", i, j, content)
			}
		}
	}
	return nil
}
