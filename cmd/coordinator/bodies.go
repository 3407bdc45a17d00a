package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/dispatch"
	"github.com/toolfleet/toolfleet/internal/environment"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type bodiesCommand struct {
	environment.ExistingFleet

	Move struct {
		To string `arg:"" help:"s3://BUCKET/PREFIX?endpoint=URL&region=NAME, or nats: for the fleet's own servers."`
	} `cmd:"" help:"Move workspace contents to another store. No worker may run, and the fleet must be idle meanwhile. The originals are not deleted."`
}

// inServers are the fleet's own servers as a place of bodies.
const inServers = "nats:"

func (c *bodiesCommand) run(ctx context.Context, p program) error {
	if c.Move.To != inServers {
		if err := workspace.CheckURL(c.Move.To); err != nil || c.Move.To == "" {
			return cli.Usagef("TO %q: must be nats: or s3://BUCKET/PREFIX?endpoint=URL&region=NAME: %v", c.Move.To, err)
		}
	}
	fl, err := c.Connect(ctx, "bodies", p.common.Logger(p.Program), natsio.WorkspaceRights(protocol.Fleet(c.Fleet)))
	if err != nil {
		return err
	}
	defer fl.Close()
	fl = fl.At(protocol.DefaultPool)
	ctx, stop := cli.Signals(ctx, func() {})
	defer stop()
	moved, err := workspace.Move(ctx, fl.NC, fl.Name, c.Move.To, func(ctx context.Context) error { return standsStill(ctx, fl) })
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out(), "%d bodies are copied from %s to %s, where the fleet has them now; start the workers again, and remove the old ones when all is well\n",
		moved.Copied, moved.From, c.Move.To)
	return err
}

// answersWait is how long workers may take to say that they run.
const answersWait = 3 * time.Second

// standsStill returns an error when a worker runs, of any pool.
func standsStill(ctx context.Context, fl *fleet.Fleet) error {
	stream, err := natsio.Open(ctx, fl.JS.Stream, wire.CallsStream(fl.Name))
	if err != nil {
		return err
	}
	names := stream.ConsumerNames(ctx)
	var pools []protocol.Pool
	for name := range names.Name() {
		if pool, is := strings.CutPrefix(name, wire.ReadyConsumer("")); is {
			pools = append(pools, protocol.Pool(pool))
		}
	}
	if err := names.Err(); err != nil {
		return err
	}
	for _, pool := range pools {
		workers, err := dispatch.Workers(ctx, fl.NC, fl.Name, pool, answersWait)
		if err != nil && !errors.Is(err, nats.ErrNoResponders) {
			return err
		}
		for _, w := range workers {
			return fmt.Errorf("worker %s of pool %s runs: stop all workers and coordinators first", w.WorkerID, pool)
		}
	}
	return nil
}
