package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/bench"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type benchCommand struct {
	Engine     string        `default:"lanes" enum:"lanes,partitions,consumers" help:"What keeps the order: lanes, a fixed number of partitions, or a consumer for each lane."`
	Partitions int           `default:"64" help:"How many partitions --engine partitions has."`
	Lanes      int           `default:"64" help:"How many lanes the callers use."`
	Callers    int           `default:"256" help:"How many callers there are; each has one call under way."`
	Calls      int           `default:"100000" help:"How many calls are made in all."`
	Work       time.Duration `default:"0s" help:"How long each call runs, as in 5ms."`
	SlowLane   time.Duration `default:"0s" help:"Keep one more lane busy with calls that run so long."`
	Workers    int           `default:"1" help:"How many workers serve."`
	Slots      int           `default:"64" help:"How many calls each worker runs at once."`
	Payload    int           `default:"0" help:"Bytes that each call carries."`
	Linger     time.Duration `default:"0s" help:"How long workers keep an idle lane."`
	Nats       string        `placeholder:"URL" help:"NATS server to measure. Default: one inside this process."`
	Creds      string        `placeholder:"FILE" help:"NATS credentials file, or a file with a token."`
	Fleet      string        `default:"tf-bench" help:"Name of the fleet whose streams are used; it must not be one in use."`
	Replicas   int           `default:"1" enum:"1,3,5" help:"Replicas of the streams, when they do not exist yet: 1, 3 or 5."`
	Fsync      bool          `help:"Have the embedded server write through to the disk on every message."`
	Baseline   time.Duration `default:"2s" help:"How long each baseline is measured; 0 leaves them out."`
	CPUProfile string        `placeholder:"FILE" help:"Write a CPU profile."`
	JSON       bool          `name:"json" help:"Print the report as one JSON object."`
}

func (c *benchCommand) run(ctx context.Context, p program) (err error) {
	fleet, err := protocol.ParseFleet(c.Fleet)
	if err != nil {
		return cli.Usagef("--fleet: %v", err)
	}
	o := bench.Options{
		Fleet: fleet, Engine: bench.Engine(c.Engine), Partitions: c.Partitions, Replicas: c.Replicas, Lanes: c.Lanes, Callers: c.Callers, Calls: c.Calls, Work: c.Work, SlowLane: c.SlowLane,
		Workers: c.Workers, Slots: c.Slots, Payload: c.Payload, Linger: c.Linger, Baseline: c.Baseline,
		Logger: p.common.Logger(p.Program),
	}
	if err := o.Validate(); err != nil {
		return cli.Usagef("%v", err)
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	if c.Nats == "" {
		dir, err := os.MkdirTemp("", "toolfleet-bench-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }() // what cannot be removed is the system's to clean
		var stopServer func()
		if o.Connect, stopServer, err = bench.Embedded(ctx, dir, c.Fsync, o.Logger); err != nil {
			return err
		}
		defer stopServer()
	} else {
		o.Connect = func(name string) (*nats.Conn, error) {
			return natsio.Connect(ctx, c.Nats, natsio.ConnectOptions{Name: name, Creds: c.Creds, Logger: o.Logger})
		}
	}
	if c.CPUProfile != "" {
		file, err := os.Create(c.CPUProfile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer func() {
			pprof.StopCPUProfile()
			_ = file.Close() // the profile is a by-product
		}()
	}
	report, err := bench.Run(ctx, o)
	if err != nil {
		return err
	}
	return c.print(p, report)
}

func (c *benchCommand) print(p program, r *bench.Report) error {
	if c.JSON {
		return json.NewEncoder(p.Stdout).Encode(r)
	}
	_, err := fmt.Fprintf(p.Stdout, `%s: %d calls on %d lanes by %d callers, %d worker(s) with %d slots, %s work, %d CPUs
calls/s    %10.0f   (%.0f us CPU and %.1f messages a call, all parts together)
latency    %10.0f us p50   %.0f us p99   %.0f us max
baseline   %10.0f JetStream publishes/s (64 publishers)   ratio %.3f
           %10.0f requests/s, core NATS                   ratio %.3f
errors     %10d   order or exclusivity violations %d
`, r.Engine, r.Calls, r.Lanes, r.Callers, r.Workers, r.Slots, c.Work, runtime.NumCPU(),
		r.CallsPerS, r.CPUUS, r.Messages, r.P50US, r.P99US, r.MaxUS,
		r.Baseline.PublishPerS, r.RatioToPub, r.Baseline.RequestReplyPerS, r.RatioToReq, r.Errors, r.Violations)
	return err
}
