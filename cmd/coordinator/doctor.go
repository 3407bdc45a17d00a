package main

import (
	"context"
	"os"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/doctor"
)

type doctorCommand struct {
	JSON bool `name:"json" help:"Print the result as JSON."`
}

func (c *doctorCommand) run(ctx context.Context, p program) error {
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	data, _ := cli.StateDir("sessions") // without a home it is that of temporary files
	return doctor.Run(ctx, data, true, p.Stdout, c.JSON)
}
