package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/overview"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
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
	client, err := c.Client(ctx, p.logger())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing of it is in this process
	workers, err := client.Workers(ctx, pool, c.Wait)
	if err != nil {
		return err
	}
	if c.JSON {
		for _, w := range workers {
			body, err := wire.Encode(w)
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
		calls, err := client.Lanes(pool).Unmet(ctx)
		for i := range calls {
			_, _ = fmt.Fprintf(p.out(), "session %s: %s\n", calls[i].SessionID, waitsFor(&calls[i])) // as every command prints
		}
		var list *report.LaneList
		if err == nil {
			list, err = client.Lanes(pool).List(ctx, maxSummed)
		}
		if err == nil {
			printWaits(p.out(), list)
		}
		if err != nil && !errors.Is(err, fleet.ErrRights) { // who may not look sees the workers alone
			return err
		}
	}
	if len(workers) == 0 {
		return fmt.Errorf("no worker of pool %s in fleet %s answered within %s", pool, c.Fleet, c.Wait)
	}
	return nil
}

const (
	// maxSummed bounds the lanes whose waiting calls are summed up, those that wait longest, and
	// maxReasons the reasons that are printed.
	maxSummed  = 100
	maxReasons = 10
)

// printWaits prints what the calls of lanes wait for, the most frequent reason first.
func printWaits(out io.Writer, list *report.LaneList) {
	waits := overview.Waits(list.Lanes)
	for _, wait := range waits[:min(len(waits), maxReasons)] {
		_, _ = fmt.Fprintf(out, "%s in %s waiting for: %s\n", // as every command prints
			terminal.Plural(wait.Calls, "call"), terminal.Plural(wait.Lanes, "lane"), prose.OneLine(wait.WaitsFor))
	}
	if list.LeftOut > 0 {
		_, _ = fmt.Fprintf(out, "%s: lane ls --limit N shows them\n", terminal.Plural(list.LeftOut, "more lane")) // as every command prints
	}
}

// workerName is a worker's id, and whether it is being stopped.
func workerName(w *report.Worker) string {
	name := prose.OneLine(string(w.WorkerID))
	if w.Draining {
		name += " (draining)"
	}
	return name
}

func printWorkers(out io.Writer, workers []*report.Worker) error {
	return printTable(out, workers, "WORKER\tVERSION\tSLOTS\tLANES\tSANDBOX\tLEVEL\tNETWORK\tREAD-ONLY\tLANGUAGES\tHANDLERS", func(of **report.Worker) []any {
		w, readOnly := *of, "no"
		if w.ReadOnly {
			readOnly = "yes"
		}
		kinds := make([]string, len(w.Kinds))
		for i, kind := range w.Kinds {
			kinds[i] = string(kind)
		}
		return []any{
			workerName(w), orDash(prose.OneLine(w.Build)), w.Slots, w.HeldLanes, prose.OneLine(w.Driver), prose.OneLine(w.Level),
			prose.OneLine(w.Network), readOnly, prose.OneLine(strings.Join(w.Languages, " ")), orDash(prose.OneLine(strings.Join(kinds, " "))),
		}
	})
}

func printCoordinators(out io.Writer, coordinators []*report.Worker) error {
	return printTable(out, coordinators, "COORDINATOR\tVERSION\tSLOTS\tLANES\tMODELS", func(of **report.Worker) []any {
		c := *of
		return []any{workerName(c), orDash(prose.OneLine(c.Build)), c.Slots, c.HeldLanes, orDash(prose.OneLine(strings.Join(c.Models, " ")))}
	})
}

// pingWait is how long ping waits for answers of workers that are there.
const pingWait = 50 * time.Millisecond

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
	client, err := c.Client(ctx, p.logger())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing of it is in this process
	workers := ""
	took := time.Since(start)
	if there, err := client.Workers(ctx, protocol.DefaultPool, pingWait); err == nil && there == nil {
		workers = "; pool " + string(protocol.DefaultPool) + " has no worker: its calls wait"
	}
	_, err = fmt.Fprintf(p.Stdout, "fleet %s is reachable (%s)%s\n", c.Fleet, took.Round(time.Millisecond), workers)
	return err
}
