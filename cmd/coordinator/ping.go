package main

import (
	"context"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
)

type pingCommand struct {
	existingFleet

	Timeout time.Duration `default:"5s" help:"How long the answer may take."`
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
	_, err = fmt.Fprintf(p.Stdout, "fleet %s is reachable (%s)\n", fl.Name, time.Since(start).Round(time.Millisecond))
	return err
}
