package main

import (
	"context"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
)

type pingCommand struct {
	Nats    string        `required:"" placeholder:"URL" help:"NATS server or servers of the fleet."`
	Creds   string        `placeholder:"FILE" help:"NATS credentials file, or a file with a token."`
	Fleet   string        `default:"tf" help:"Name of the fleet."`
	Timeout time.Duration `default:"5s" help:"How long the answer may take."`
}

func (c *pingCommand) run(ctx context.Context, p program) error {
	if c.Timeout <= 0 {
		return cli.Usagef("--timeout %s: must be positive", c.Timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	flags := fleetFlags{Nats: c.Nats, Creds: c.Creds, Fleet: c.Fleet, Replicas: 1}
	start := time.Now()
	fl, err := flags.connect(ctx, connection{name: "coordinator ping", logger: p.common.Logger(p.Program)})
	if err != nil {
		return err
	}
	defer fl.Close()
	_, err = fmt.Fprintf(p.Stdout, "fleet %s is reachable (%s)\n", fl.Name, time.Since(start).Round(time.Millisecond))
	return err
}
