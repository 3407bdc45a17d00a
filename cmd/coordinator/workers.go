package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/dispatch"
	"github.com/toolfleet/toolfleet/internal/environment"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type workersCommand struct {
	environment.ExistingFleet

	Pool string        `default:"default" help:"Pool of the workers."`
	Wait time.Duration `default:"1s" help:"Time to wait for answers."`
	JSON bool          `name:"json" help:"Print the workers as JSON, one per line."`
}

func (c *workersCommand) run(ctx context.Context, p program) error {
	pool, err := protocol.ParsePool(c.Pool)
	if err != nil {
		return cli.Usagef("--pool: %v", err)
	}
	if c.Wait <= 0 {
		return cli.Usagef("--wait %s: must be more than 0", c.Wait)
	}
	fl, err := c.Connect(ctx, "workers", p.common.Logger(p.Program), natsio.WorkersRights(protocol.Fleet(c.Fleet), pool))
	if err != nil {
		return err
	}
	defer fl.Close()
	workers, err := dispatch.Workers(ctx, fl.Conn(pool), fl.Name, pool, c.Wait)
	if err != nil && !errors.Is(err, nats.ErrNoResponders) {
		return err
	}
	if c.JSON {
		for _, w := range workers {
			body, err := wire.EncodeWorkerInfo(w)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(terminal.JSONWriter(p.Stdout), "%s\n", body) // as every command prints
		}
	} else if len(workers) > 0 {
		table := printWorkers
		if pool == protocol.SessionPool {
			table = printCoordinators
		}
		if err := table(p.out(), workers); err != nil {
			return err
		}
		sentences, err := unmet(ctx, fl, pool)
		for _, sentence := range sentences {
			_, _ = fmt.Fprintln(p.out(), sentence) // as every command prints
		}
		if err != nil && !errors.Is(err, natsio.ErrRights) { // who may not look sees the workers alone
			return err
		}
	}
	if len(workers) == 0 {
		return fmt.Errorf("no worker of pool %s in fleet %s answered within %s", pool, fl.Name, c.Wait)
	}
	return nil
}

func printWorkers(out io.Writer, workers []*wire.WorkerInfo) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "WORKER\tVERSION\tSLOTS\tLANES\tSANDBOX\tLEVEL\tNETWORK\tREAD-ONLY\tLANGUAGES\tHANDLERS") // Flush tells
	for _, w := range workers {
		readOnly := "no"
		if w.ReadOnly {
			readOnly = "yes"
		}
		kinds := make([]string, len(w.Kinds))
		for i, kind := range w.Kinds {
			kinds[i] = string(kind)
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n",
			printableName(string(w.WorkerID)), orDash(printableName(w.Build)), w.Slots, w.HeldLanes, printableName(w.Driver),
			printableName(w.Level), printableName(w.Network), readOnly,
			printableName(strings.Join(w.Languages, " ")), orDash(printableName(strings.Join(kinds, " "))))
	}
	return table.Flush()
}

func printCoordinators(out io.Writer, coordinators []*wire.WorkerInfo) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "COORDINATOR\tVERSION\tSLOTS\tLANES\tMODELS") // Flush tells
	for _, c := range coordinators {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\n",
			printableName(string(c.WorkerID)), orDash(printableName(c.Build)), c.Slots, c.HeldLanes, orDash(printableName(strings.Join(c.Models, " "))))
	}
	return table.Flush()
}

type pingCommand struct {
	environment.ExistingFleet

	Timeout time.Duration `default:"5s" help:"Time limit for the answer."`
}

func (c *pingCommand) run(ctx context.Context, p program) error {
	if err := checkTimeout(c.Timeout); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	start := time.Now()
	fl, err := c.Connect(ctx, "ping", p.common.Logger(p.Program))
	if err != nil {
		return err
	}
	defer fl.Close()
	workers := ""
	took := time.Since(start)
	if fl.CheckRights(ctx, natsio.WorkersRights(fl.Name, protocol.DefaultPool)) == nil {
		_, err := fl.Conn(protocol.DefaultPool).RequestWithContext(ctx, wire.WhoSubject(fl.Name, protocol.DefaultPool), nil)
		if errors.Is(err, nats.ErrNoResponders) {
			workers = "; no worker of pool " + string(protocol.DefaultPool) + " is there: its calls wait"
		}
	}
	_, err = fmt.Fprintf(p.Stdout, "fleet %s is reachable (%s)%s\n", fl.Name, took.Round(time.Millisecond), workers)
	return err
}
