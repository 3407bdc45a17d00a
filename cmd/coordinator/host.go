package main

import (
	"context"
	"os"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/doctor"
	"github.com/toolfleet/toolfleet/internal/environment"
	"github.com/toolfleet/toolfleet/internal/workercmd"
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

type loginCommand struct{ workercmd.Login }

func (c *loginCommand) run(ctx context.Context, p program) error {
	store, err := environment.Logins()
	if err != nil {
		return err
	}
	return c.Run(ctx, p.Program, store)
}
