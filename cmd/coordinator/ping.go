package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type pingCommand struct {
	existingFleet

	Timeout time.Duration `default:"5s" help:"Time limit for the answer."`
}

func (c *pingCommand) run(ctx context.Context, p program) error {
	if c.Timeout <= 0 {
		return cli.Usagef("--timeout %s: must be positive", c.Timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	start := time.Now()
	fl, err := c.connect(ctx, "ping", p.common.Logger(p.Program))
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
