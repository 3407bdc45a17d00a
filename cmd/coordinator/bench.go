package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/cmd/coordinator/internal/bench"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type benchCommand struct {
	cli.Login `group:"Fleet:"`

	bench.Traffic
	Sign    bool          `help:"Sign calls; workers then run only signed calls."`
	Payload int           `default:"0" help:"Bytes that each call carries."`
	Exec    string        `placeholder:"COMMAND" help:"Shell command that each call runs in its lane's sandbox, such as 'true'. Default: calls do nothing."`
	Sandbox string        `default:"auto" placeholder:"LEVEL" help:"Sandbox driver of --exec: auto (the best that isolates here), ns, landlock or process (no isolation)."`
	Linger  time.Duration `default:"0s" help:"How long workers keep an idle lane."`
	benchServerFlags
	Baseline   time.Duration `default:"2s" help:"How long each baseline is measured; 0 measures no baseline."`
	CPUProfile string        `placeholder:"FILE" help:"Write a CPU profile."`
	JSON       bool          `name:"json" help:"Print the report as one JSON object."`
}

// benchServerFlags are the servers that bench measures.
type benchServerFlags struct {
	Nats     string `placeholder:"URL" help:"NATS server to measure. Default: a server inside this process; with --replicas 3 or 5, that many servers."`
	Fleet    string `default:"tf-bench" help:"Name of the fleet whose streams are used; it must not be one in use."`
	Replicas int    `default:"1" enum:"1,3,5" help:"Replicas of the streams: 1, 3 or 5. With --nats, only for streams that do not exist yet."`
	Listen   bool   `help:"Connect to the embedded server through a socket, as serve does."`
	Fsync    bool   `help:"Let the servers that bench starts write every message to the disk at once."`
}

func (c *benchCommand) run(ctx context.Context, p program) (err error) {
	fleet, err := protocol.ParseFleet(c.Fleet)
	if err != nil {
		return cli.Usagef("--fleet: %v", err)
	}
	o := bench.Options{
		Fleet: fleet, Replicas: c.Replicas, Traffic: c.Traffic, Payload: c.Payload, Linger: c.Linger, Baseline: c.Baseline,
		Logger: p.logger(),
	}
	if err := errors.Join(c.validate(), o.Validate()); err != nil {
		return cli.Usagef("%v", err)
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	dir, err := os.MkdirTemp("", "toolfleet-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = system.RemoveTree(dir) }() // what cannot be removed is the system's to clean
	if c.Sign {
		if o.Signer, err = signing.Make(dir); err != nil {
			return err
		}
		if o.Keys, err = signing.Open(filepath.Join(dir, signing.PublicFile)); err != nil {
			return err
		}
	}
	if c.Exec != "" {
		if o.Exec, err = c.sandboxes(ctx, dir, o.Logger); err != nil {
			return err
		}
	}
	var stopServer func()
	if o.Connect, stopServer, err = c.server(ctx, filepath.Join(dir, "nats"), o.Logger); err != nil {
		return err
	}
	defer stopServer()
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

// server starts what is measured, or finds it, and returns how to connect to it and how to stop it.
func (c *benchCommand) server(ctx context.Context, dir string, logger *slog.Logger) (connect func(string) (*nats.Conn, error), stop func(), err error) {
	switch {
	case c.Nats != "":
		connect = func(name string) (*nats.Conn, error) {
			return natsio.Connect(ctx, c.Nats, natsio.ConnectOptions{Name: name, Creds: c.Creds, TLS: natsio.TLS(c.TLS), Logger: logger})
		}
		return connect, func() {}, nil
	case c.Replicas > 1:
		cluster, err := embedded.StartCluster(ctx, c.Replicas, embedded.Options{Data: dir, SyncAlways: c.Fsync})
		if err != nil {
			return nil, nil, err
		}
		connect = func(name string) (*nats.Conn, error) {
			return natsio.Connect(ctx, cluster.URL(), natsio.ConnectOptions{Name: name, Options: cluster.Options(), Logger: logger})
		}
		return connect, cluster.Close, nil
	default:
		return bench.Embedded(ctx, dir, c.Listen, c.Fsync, logger)
	}
}

// validate reports settings that make no sense for the server that is measured.
func (c *benchCommand) validate() error {
	switch {
	case c.Nats == "" && c.Creds != "":
		return cli.Usagef("--creds %s: only with --nats", c.Creds)
	case c.Nats == "" && c.TLS != (cli.TLS{}):
		return cli.Usagef("--tls-...: only with --nats")
	case c.Nats != "" && (c.Listen || c.Fsync):
		return cli.Usagef("--listen and --fsync are for a server that bench starts, not for --nats %s", natsio.Redact(c.Nats))
	case c.Exec == "" && c.Sandbox != "auto":
		return cli.Usagef("--sandbox %s: only with --exec", c.Sandbox)
	case c.Nats == "" && c.Replicas > 1 && c.Listen:
		return cli.Usagef("--listen: only with --replicas 1; the %d servers listen anyway", c.Replicas)
	}
	return c.Check()
}

// sandboxes opens the driver of the sandboxes in which the calls run commands.
func (c *benchCommand) sandboxes(ctx context.Context, dir string, logger *slog.Logger) (bench.Exec, error) {
	if err := drivers.Valid(c.Sandbox); err != nil {
		return bench.Exec{}, cli.Usagef("--sandbox: %v", err)
	}
	opened, caps, err := drivers.Open(ctx, c.Sandbox, &drivers.Options{Logger: logger})
	if errors.Is(err, isolation.ErrLevel) {
		err = cli.Usagef("--sandbox %s: %v", c.Sandbox, err)
	}
	return bench.Exec{Command: c.Exec, Driver: opened, Caps: caps, Data: filepath.Join(dir, "worker")}, err
}

func (c *benchCommand) print(p program, r *bench.Report) error {
	if c.JSON {
		return printJSON(p, r)
	}
	_, err := fmt.Fprintf(p.Stdout, `%d calls on %d lanes by %d callers, %d worker(s) with %d slots, %s work, %d CPUs
calls/s    %10.0f   (%.0f us CPU of this process and %.1f messages a call)
latency    %10.0f us p50   %.0f us p99   %.0f us max
baseline   %10.0f JetStream publishes/s (64 publishers)   ratio %.3f
           %10.0f requests/s, core NATS                   ratio %.3f
           %10.0f us p50 of one publish alone             ratio %.2f of p50
errors     %10d   order or exclusivity violations %d
`, r.Calls, r.Lanes, r.Callers, r.Workers, r.Slots, c.Work, runtime.NumCPU(),
		r.CallsPerS, r.CPUUS, r.Messages, r.P50US, r.P99US, r.MaxUS,
		r.Baseline.PublishPerS, r.RatioToPub, r.Baseline.RequestReplyPerS, r.RatioToReq,
		r.Baseline.PublishP50US, r.RatioOfP50, r.Errors, r.Violations)
	if d := r.Drain; err == nil && d != nil {
		_, err = fmt.Fprintf(p.Stdout, `drain      %10.0f calls/s of %d that waited in one lane, ratio %.3f to publish, %.2f to calls/s
           %10.0f us p50   %.0f us p99   %.0f us max, of %d calls of another lane meanwhile
`, d.CallsPerS, d.Calls, d.RatioToPub, d.CallsPerS/r.CallsPerS, d.ProbeP50US, d.ProbeP99US, d.ProbeMaxUS, d.Probes)
	}
	if err != nil || r.Exec == nil {
		return err
	}
	_, err = fmt.Fprintf(p.Stdout, `command    %q in sandboxes of level %s, opened in %.1f ms each
           %10.0f plain shells/s, without a sandbox        ratio %.3f
           %10.0f calls/s that do nothing
`, r.Command, r.Level, r.Exec.OpenMS/float64(r.Lanes), r.Exec.PlainPerS, r.RatioToPlain, r.Exec.NoopPerS)
	return err
}
