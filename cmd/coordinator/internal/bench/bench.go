// Package bench measures a fleet from the coordinator through JetStream to a worker and back, next
// to bare NATS in the same run, and checks the order and exclusivity of every lane meanwhile.
//
// Machines differ and are noisy; the ratios to the baselines travel better than the figures.
package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Options of a measurement; see [Options.Validate] for the bounds.
type Options struct {
	Fleet protocol.Fleet
	// Replicas of the streams, when they do not exist yet; 0 means 1.
	Replicas int
	Traffic
	// Signer signs the calls, and Keys are whose calls workers run; nil for all of them, unsigned.
	Signer *signing.Signer
	Keys   *signing.Keys
	// Payload is how many bytes each call carries.
	Payload int
	// Exec has the calls run commands in sandboxes.
	Exec Exec
	// Linger is how long the workers keep an idle lane.
	Linger time.Duration
	// Baseline is how long each baseline is measured; 0 leaves them out.
	Baseline time.Duration
	// Connect makes a connection, one for the callers and one for each worker.
	Connect func(name string) (*nats.Conn, error)
	Logger  *slog.Logger
}

// Traffic is the calls that callers make, and the workers that run them, as flags.
type Traffic struct {
	Lanes    int           `default:"64" help:"Number of lanes."`
	Callers  int           `default:"256" help:"Number of callers; each has one call in flight."`
	Calls    int           `default:"100000" help:"Total number of calls."`
	Waiting  int           `default:"0" help:"Before that, run so many calls that wait in one lane when the workers start, concurrently with calls of another lane."`
	Rate     int           `default:"0" help:"Maximum number of calls started per second; 0 means unlimited."`
	Work     time.Duration `default:"0s" help:"Duration of each call, such as 5ms."`
	SlowLane time.Duration `default:"0s" help:"Keep one more lane busy with calls of this duration."`
	Workers  int           `default:"1" help:"Number of workers."`
	Slots    int           `default:"64" help:"Concurrent calls per worker."`
}

// Validate reports every option that is out of its bounds, joined, by the name of its flag.
func (o *Options) Validate() error {
	var faults []error
	bound := func(name string, value, least, most int) {
		if value < least || value > most {
			faults = append(faults, fmt.Errorf("--%s %d: must be %d to %d", name, value, least, most))
		}
	}
	notNegative := func(name string, value time.Duration) {
		if value < 0 {
			faults = append(faults, fmt.Errorf("--%s %s: must be 0 or more", name, value))
		}
	}
	bound("lanes", o.Lanes, 1, 10_000_000)
	bound("callers", o.Callers, 1, 100_000)
	bound("calls", o.Calls, 1, 1_000_000_000)
	bound("waiting", o.Waiting, 0, 10_000_000)
	bound("rate", o.Rate, 0, 1_000_000_000)
	bound("workers", o.Workers, 1, 1000)
	bound("slots", o.Slots, 1, 100_000)
	bound("payload", o.Payload, 0, 4<<20)
	notNegative("work", o.Work)
	notNegative("slow-lane", o.SlowLane)
	notNegative("linger", o.Linger)
	notNegative("baseline", o.Baseline)
	if o.Waiting > 0 && o.Exec.Command != "" {
		faults = append(faults, fmt.Errorf("--waiting %d: not with --exec", o.Waiting))
	}
	if err := o.Exec.validate(o.Work, o.SlowLane, o.Payload); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// Report is what was measured. Its JSON form is a contract.
type Report struct {
	Throughput
	Latency
	CPUUS      float64  `json:"cpu_us_per_call"`
	Messages   float64  `json:"messages_per_call"` // that callers and workers sent to the server
	Errors     int64    `json:"errors"`
	Violations int64    `json:"violations"`
	SlowCalls  int64    `json:"slow_calls,omitempty"`
	Drain      *Drain   `json:"drain,omitempty"`
	Baseline   Baseline `json:"baseline"`
	Ratios
	Load
	Commands
}

// Throughput is how many calls were made, and how long all of them took.
type Throughput struct {
	Calls     int     `json:"calls"`
	Seconds   float64 `json:"seconds"`
	CallsPerS float64 `json:"calls_per_s"`
}

// Latency is how long calls took from their start to their result, in microseconds.
type Latency struct {
	P50US float64 `json:"p50_us"`
	P99US float64 `json:"p99_us"`
	MaxUS float64 `json:"max_us"`
}

// Ratios compare calls with the baseline: calls per second with acknowledged messages and with
// requests per second, and the median latency with that of a message.
type Ratios struct {
	RatioToPub float64 `json:"ratio_to_publish"`
	RatioToReq float64 `json:"ratio_to_request_reply"`
	RatioOfP50 float64 `json:"p50_ratio_to_publish"`
}

// Load is what was measured: the [Options] of the same names.
type Load struct {
	Lanes       int   `json:"lanes"`
	Callers     int   `json:"callers"`
	Workers     int   `json:"workers"`
	Slots       int   `json:"slots"`
	WorkUS      int64 `json:"work_us"`
	PayloadSize int   `json:"payload_bytes"`
}

// Commands is about calls that run a command: the command, the level of the sandboxes, and the same
// command without toolfleet.
type Commands struct {
	Command      string        `json:"command,omitempty"`
	Level        string        `json:"level,omitempty"`
	Exec         *ExecBaseline `json:"exec_baseline,omitempty"`
	RatioToPlain float64       `json:"ratio_to_plain_processes,omitempty"`
}

// Embedded starts a server in this process and returns how to connect to it: by the pipe inside the
// process, or, when it listens as that of `coordinator serve` does, by its socket.
func Embedded(ctx context.Context, dir string, listen, syncAlways bool, logger *slog.Logger) (connect func(string) (*nats.Conn, error), stop func(), err error) {
	o := embedded.Options{Data: dir, SyncAlways: syncAlways, Logger: logger}
	if listen {
		o.Listen = "127.0.0.1:0"
	}
	server, err := embedded.Start(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	connect = func(name string) (*nats.Conn, error) {
		return natsio.Connect(ctx, "", natsio.ConnectOptions{Name: name, Options: server.Options(), Logger: logger})
	}
	return connect, server.Close, nil
}

// Run measures.
func Run(ctx context.Context, o Options) (*Report, error) { return run(ctx, o, startLanes) }

// run measures an engine.
func run(ctx context.Context, o Options, start startFunc) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	nc, err := o.Connect("bench callers")
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	if err := natsio.Ensure(ctx, js, natsio.Topology{Fleet: o.Fleet, Storage: natsio.Storage{Replicas: o.Replicas}}); err != nil {
		return nil, err
	}
	report := &Report{
		Throughput: Throughput{Calls: o.Calls},
		Load: Load{
			Lanes: o.Lanes, Callers: o.Callers, Workers: o.Workers, Slots: o.Slots,
			WorkUS: o.Work.Microseconds(), PayloadSize: o.Payload,
		},
	}
	if o.Baseline > 0 {
		if report.Baseline, err = measureBaseline(ctx, nc, o); err != nil {
			return nil, err
		}
	}
	witness := newWitness(o)
	if o.Waiting > 0 {
		if err := fill(ctx, nc, o); err != nil {
			return nil, err
		}
	}
	e, err := start(ctx, nc, o, witness)
	if err != nil {
		return nil, err
	}
	defer e.stop(ctx)
	load := &load{options: o, engine: e, latencies: make([][]time.Duration, o.Callers)}
	if o.Exec.Command != "" {
		report.Command, report.Level, report.Exec = o.Exec.Command, o.Exec.Caps.Level.String(), &ExecBaseline{}
		if err := load.warm(ctx, report.Exec); err != nil {
			return nil, err
		}
	}
	if o.Waiting > 0 {
		report.Drain = load.drain(ctx, witness)
	}
	connections := append(e.connections(), nc)
	sent := sentBy(connections)
	load.run(ctx, report)
	report.Messages = float64(sentBy(connections)-sent) / float64(o.Calls)
	report.Violations = witness.violations.Load()
	if report.Baseline.PublishPerS > 0 {
		report.RatioToPub = report.CallsPerS / report.Baseline.PublishPerS
		report.RatioToReq = report.CallsPerS / report.Baseline.RequestReplyPerS
		if report.Drain != nil {
			report.Drain.RatioToPub = report.Drain.CallsPerS / report.Baseline.PublishPerS
		}
		report.RatioOfP50 = report.P50US / report.Baseline.PublishP50US
	}
	if report.Exec != nil && report.Exec.PlainPerS > 0 {
		report.RatioToPlain = report.CallsPerS / report.Exec.PlainPerS
	}
	return report, ctx.Err()
}

// sentBy is how many messages the connections have sent.
func sentBy(connections []*nats.Conn) (n uint64) {
	for _, nc := range connections {
		n += nc.Stats().OutMsgs
	}
	return n
}

// load is the callers.
type load struct {
	options   Options
	engine    engine
	next      atomic.Int64
	begun     time.Time
	faults    atomic.Int64
	slow      atomic.Int64
	latencies [][]time.Duration
}

// run makes the calls and fills in the report.
func (l *load) run(ctx context.Context, r *Report) {
	slowCtx, stopSlow := context.WithCancel(ctx)
	var slow sync.WaitGroup
	if l.options.SlowLane > 0 {
		for range 2 { // one runs, one waits: the lane is never idle
			slow.Go(func() { l.slowCaller(slowCtx) })
		}
	}
	cpu := cpuTime()
	l.begun = time.Now()
	var callers sync.WaitGroup
	for i := range l.options.Callers {
		callers.Go(func() { l.caller(ctx, i) })
	}
	callers.Wait()
	elapsed := time.Since(l.begun)
	cpu = cpuTime() - cpu
	stopSlow()
	slow.Wait()

	all := slices.Concat(l.latencies...)
	slices.Sort(all)
	r.Seconds = elapsed.Seconds()
	r.Errors, r.SlowCalls = l.faults.Load(), l.slow.Load()
	if len(all) == 0 {
		return
	}
	r.CallsPerS = float64(len(all)) / elapsed.Seconds()
	r.P50US, r.P99US = micros(all[len(all)/2]), micros(all[len(all)*99/100])
	r.MaxUS = micros(all[len(all)-1])
	r.CPUUS = micros(cpu) / float64(len(all))
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// caller makes one call after the other until all are made.
func (l *load) caller(ctx context.Context, index int) {
	session := protocol.NewSessionID()
	payload := l.options.body()
	for ctx.Err() == nil {
		n := l.next.Add(1)
		if n > int64(l.options.Calls) || !l.due(ctx, n) {
			return
		}
		start := time.Now()
		if !l.call(ctx, session, l.options.key(int(n%int64(l.options.Lanes))), payload) {
			l.faults.Add(1)
			continue
		}
		l.latencies[index] = append(l.latencies[index], time.Since(start))
	}
}

// due waits until it is time for a call; it reports false when ctx ends before.
func (l *load) due(ctx context.Context, n int64) bool {
	if l.options.Rate == 0 {
		return true
	}
	at := time.Duration(float64(n) / float64(l.options.Rate) * float64(time.Second))
	return pause.For(ctx, at-time.Since(l.begun))
}

func (l *load) slowCaller(ctx context.Context) {
	session := protocol.NewSessionID()
	for ctx.Err() == nil {
		if l.call(ctx, session, slowKey, wire.Noop{}) {
			l.slow.Add(1)
		}
	}
}

// key is the resource of the calls of a lane.
func (o *Options) key(lane int) string {
	if o.Exec.Command != "" {
		return fmt.Sprintf("sandbox/bench-%d", lane)
	}
	return fmt.Sprintf("bench/%d", lane)
}

// body is what a call does.
func (o *Options) body() protocol.Payload {
	if o.Exec.Command != "" {
		return protocol.CommandRun{Command: o.Exec.Command}
	}
	return wire.Noop{Fill: make([]byte, o.Payload)}
}

// call makes one call; it reports whether that went well.
func (l *load) call(ctx context.Context, session protocol.SessionID, key string, payload protocol.Payload) bool {
	call := newCall(session, key, payload)
	if l.options.Exec.Command != "" {
		call.Tool, call.Delivery = "bash", protocol.Rollback // as that tool's
	}
	return l.engine.call(ctx, call)
}

func newCall(session protocol.SessionID, key string, payload protocol.Payload) *protocol.Call {
	return &protocol.Call{
		ID: wire.RandomCallID(), SessionID: session, Tool: "noop", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: protocol.ResourceKey(key), Access: protocol.Exclusive}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: payload,
	}
}
