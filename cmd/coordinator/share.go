package main

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// shareFlags say whose share of a pool's slots calls use, see docs/limits.md.
type shareFlags struct {
	Tenant   string `placeholder:"NAME" help:"Tenant whose share of the workers' slots the calls use: 1 to 32 lower-case letters, digits and -. Tenants with waiting calls get slots by their weights (coordinator limits set --tenant). Default: one tenant for all."`
	Priority string `placeholder:"P" default:"" enum:",interactive,normal,batch" help:"Which calls of a tenant start first when slots are scarce: interactive, normal or batch. Default: normal."`
}

// share returns a context in which all calls have the tenant and the priority.
func (f *shareFlags) share(ctx context.Context) (context.Context, error) {
	if f.Tenant != "" {
		if _, err := protocol.ParseTenant(f.Tenant); err != nil {
			return ctx, cli.Usagef("--tenant: %v", err)
		}
	}
	return wire.WithFlow(ctx, protocol.Tenant(f.Tenant), protocol.Priority(f.Priority)), nil
}
