package main

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/doctor"
)

type doctorCommand struct {
	JSON bool `name:"json" help:"Print the result as JSON."`
}

func (c *doctorCommand) run(ctx context.Context, p program) error {
	return doctor.Run(ctx, p.Stdout, c.JSON)
}
