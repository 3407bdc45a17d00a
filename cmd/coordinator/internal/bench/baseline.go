package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Baseline is what bare NATS does on the same server.
type Baseline struct {
	// PublishPerS is JetStream publishes acknowledged, [publishers] at a time, to a
	// file stream: the ceiling of one durable write a call.
	PublishPerS float64 `json:"jetstream_publish_per_s"`
	// PublishP50US is how long a publish takes that is the only one under way.
	PublishP50US float64 `json:"jetstream_publish_p50_us"`
	// RequestReplyPerS is core NATS requests answered, as many at a time as there
	// are callers: nothing durable, no order.
	RequestReplyPerS float64 `json:"request_reply_per_s"`
}

const publishers = 64

func measureBaseline(ctx context.Context, nc *nats.Conn, o Options) (b Baseline, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return b, err
	}
	subject := string(o.Fleet) + "-bench-baseline"
	info, err := js.Stream(ctx, wire.CallsStream(o.Fleet))
	if err != nil {
		return b, fmt.Errorf("baseline: %w", err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: subject, Subjects: []string{subject + ".>"}, Storage: jetstream.FileStorage,
		Replicas: info.CachedInfo().Config.Replicas,
	}); err != nil {
		return b, fmt.Errorf("baseline: %w", err)
	}
	defer func() { err = errors.Join(err, js.DeleteStream(context.WithoutCancel(ctx), subject)) }()
	body := make([]byte, 512+o.Payload) // about what a call has
	publish := func(i int) error {
		_, err := js.Publish(ctx, fmt.Sprintf("%s.%d", subject, i), body)
		return err
	}
	if b.PublishPerS, err = rate(ctx, publishers, o.Baseline, publish); err != nil {
		return b, fmt.Errorf("baseline publish: %w", err)
	}
	var took []time.Duration
	if _, err = rate(ctx, 1, o.Baseline, func(i int) error {
		start := time.Now()
		defer func() { took = append(took, time.Since(start)) }()
		return publish(i)
	}); err != nil {
		return b, fmt.Errorf("baseline publish: %w", err)
	}
	slices.Sort(took)
	b.PublishP50US = micros(took[len(took)/2])
	other, err := o.Connect("bench responder")
	if err != nil {
		return b, err
	}
	defer other.Close()
	if _, err := other.Subscribe(subject+"-echo", func(msg *nats.Msg) { _ = msg.Respond(body) }); err != nil {
		return b, err
	}
	if err := other.Flush(); err != nil {
		return b, err
	}
	request := func(int) error {
		_, err := nc.RequestWithContext(ctx, subject+"-echo", body)
		return err
	}
	if !pause.Until(ctx, time.Millisecond, func() bool { return !errors.Is(request(0), nats.ErrNoResponders) }) {
		return b, ctx.Err() // the responder's server has not told the others yet
	}
	if b.RequestReplyPerS, err = rate(ctx, o.Callers, o.Baseline, request); err != nil {
		return b, fmt.Errorf("baseline request: %w", err)
	}
	return b, nil
}

// rate counts how often do succeeds per second, with n of them at a time. Of several errors it
// returns one.
func rate(ctx context.Context, n int, d time.Duration, do func(i int) error) (float64, error) {
	var count atomic.Int64
	var group sync.WaitGroup
	faults := make([]error, n)
	start := time.Now()
	for i := range n {
		group.Go(func() {
			for time.Since(start) < d && ctx.Err() == nil {
				if faults[i] = do(i); faults[i] != nil {
					return
				}
				count.Add(1)
			}
		})
	}
	group.Wait()
	return float64(count.Load()) / time.Since(start).Seconds(), cmp.Or(faults...)
}

// Exec has the calls run a command in the sandboxes of real workers, a sandbox a lane,
// instead of doing nothing.
type Exec struct {
	// Command is what the shell in the sandbox runs; "" for calls that do nothing.
	Command string
	// Driver opens the sandboxes, and Caps is what it has proven.
	Driver isolation.Driver
	Caps   isolation.Caps
	// Data is an empty directory for the workspaces, which the caller removes.
	Data string
}

// ExecBaseline is what a fleet that runs commands is compared with, in the same run.
type ExecBaseline struct {
	// PlainPerS is how often a process of this program starts a shell that does nothing and
	// waits for it, without any sandbox, as many at a time as the fleet can run.
	PlainPerS float64 `json:"plain_processes_per_s"`
	// NoopPerS is calls that do nothing, by the same callers, lanes and workers.
	NoopPerS float64 `json:"noop_calls_per_s"`
	// OpenMS is how long opening the sandboxes took, all of them, in milliseconds.
	OpenMS float64 `json:"open_sandboxes_ms"`
}

// validate refuses what cannot be combined.
func (e *Exec) validate(work, slowLane time.Duration, payload int) error {
	if e.Command == "" {
		return nil
	}
	if work != 0 || slowLane != 0 || payload != 0 {
		return errors.New("--work, --slow-lane and --payload: are of calls that do nothing, not of the commands of --exec")
	}
	return nil
}

// startWorker makes a worker with a sandbox for each lane. overlaps counts commands that run in one
// sandbox at once.
func startWorker(ctx context.Context, nc *nats.Conn, o Options, overlaps *atomic.Int64) (runner, error) {
	return worker.New(ctx, nc, worker.Options{
		Options:  lane.Options{Fleet: o.Fleet, Worker: wire.NewWorkerID("bench"), Keys: o.Keys, Slots: o.Slots, Linger: o.Linger, Logger: o.Logger},
		Settings: sandboxes.Settings{Driver: watchedDriver{Driver: o.Exec.Driver, overlaps: overlaps}, Caps: o.Exec.Caps},
		Data:     o.Exec.Data,
	})
}

// watchedDriver opens sandboxes in which overlapping commands are counted.
type watchedDriver struct {
	isolation.Driver

	overlaps *atomic.Int64
}

// Open implements isolation.Driver.
func (d watchedDriver) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	opened, err := d.Driver.Open(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &watchedSandbox{Sandbox: opened, overlaps: d.overlaps}, nil
}

type watchedSandbox struct {
	sandbox.Sandbox

	running  atomic.Int32
	overlaps *atomic.Int64
}

// Exec implements sandbox.Sandbox.
func (s *watchedSandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	if s.running.Add(1) != 1 {
		s.overlaps.Add(1)
	}
	defer s.running.Add(-1)
	return s.Sandbox.Exec(ctx, cmd)
}

// errNotRun says that a call of a baseline went wrong.
var errNotRun = errors.New("a call failed; --log-level debug tells more")

// warm opens every lane's sandbox, and measures what commands are compared with.
func (l *load) warm(ctx context.Context, b *ExecBaseline) (err error) {
	start := time.Now()
	for n := range l.options.Lanes {
		if !l.call(ctx, protocol.NewSessionID(), l.options.key(n), l.options.body()) {
			return fmt.Errorf("open the sandboxes: %w", errNotRun)
		}
	}
	b.OpenMS = micros(time.Since(start)) / 1000
	if l.options.Baseline <= 0 {
		return nil
	}
	var next atomic.Int64
	session := protocol.NewSessionID()
	b.NoopPerS, err = rate(ctx, l.options.Callers, l.options.Baseline, func(int) error {
		if !l.call(ctx, session, l.options.key(int(next.Add(1))%l.options.Lanes), wire.Noop{}) {
			return errNotRun
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("baseline of calls that do nothing: %w", err)
	}
	atOnce := min(l.options.Callers, l.options.Lanes, l.options.Workers*l.options.Slots)
	b.PlainPerS, err = rate(ctx, atOnce, l.options.Baseline, func(int) error { return plainShell(ctx) })
	if err != nil {
		return fmt.Errorf("baseline of plain processes: %w", err)
	}
	return nil
}

// plainShell runs a shell that does nothing. The command of the calls does not run here: the user
// may have meant it for a sandbox only.
func plainShell(ctx context.Context) error {
	shell := "bash"
	if _, err := exec.LookPath(shell); err != nil {
		shell = "sh"
	}
	return exec.CommandContext(ctx, shell, "-c", "true").Run()
}

// Drain is how fast the calls ran that waited in one lane when the workers started, and how long
// calls of another lane took meanwhile, made one after the other with a pause between.
type Drain struct {
	Calls      int     `json:"calls"`
	CallsPerS  float64 `json:"calls_per_s"`
	RatioToPub float64 `json:"ratio_to_publish"`
	Probes     int     `json:"probes"`
	ProbeP50US float64 `json:"probe_p50_us"`
	ProbeP99US float64 `json:"probe_p99_us"`
	ProbeMaxUS float64 `json:"probe_max_us"`
}

// probePause keeps the probes from being a load of their own.
const probePause = 10 * time.Millisecond

// fill puts the calls that wait, as many publishers do.
func fill(ctx context.Context, nc *nats.Conn, o Options) error {
	publisher, err := lane.NewPublisher(ctx, nc, o.Fleet)
	if err != nil {
		return err
	}
	session := protocol.NewSessionID()
	faults := make([]error, publishers)
	var group sync.WaitGroup
	for i := range publishers {
		group.Go(func() {
			for n := i; n < o.Waiting && faults[i] == nil; n += publishers {
				call := newCall(session, deepKey, o.body())
				faults[i] = publisher.Enqueue(ctx, lane.Outgoing{Call: call})
			}
		})
	}
	group.Wait()
	return cmp.Or(faults...)
}

// drain waits until the calls have run that wait.
func (l *load) drain(ctx context.Context, w *witness) *Drain {
	session := protocol.NewSessionID()
	var took []time.Duration
	begun := time.Now()
	for open := true; open && ctx.Err() == nil; {
		start := time.Now()
		if l.call(ctx, session, probeKey, wire.Noop{}) {
			took = append(took, time.Since(start))
		} else {
			l.faults.Add(1)
		}
		select {
		case <-w.drained:
			open = false
		case <-time.After(probePause):
		case <-ctx.Done():
		}
	}
	slices.Sort(took)
	d := &Drain{Calls: l.options.Waiting, Probes: len(took), CallsPerS: float64(l.options.Waiting) / time.Since(begun).Seconds()}
	if len(took) > 0 {
		d.ProbeP50US, d.ProbeP99US = micros(took[len(took)/2]), micros(took[len(took)*99/100])
		d.ProbeMaxUS = micros(took[len(took)-1])
	}
	return d
}
