package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// contextCommand stores connection flags under names.
type contextCommand struct {
	Add contextAdd `cmd:"" help:"Store connection flags under a name, also those that variables set."`
	Ls  contextLs  `cmd:"" help:"List contexts; * marks the one in use."`
	Use contextUse `cmd:"" help:"Select the context of commands that name no other one; none selects no context."`
	Rm  contextRm  `cmd:"" help:"Remove a context. The files that it names stay."`
}

type contextAdd struct {
	Name        string `arg:"" help:"Name of the context."`
	Nats        string `required:"" placeholder:"URL" help:"NATS server or servers of the fleet, separated by commas."`
	NatsContext string `placeholder:"NAME" help:"Context of the nats tool with the servers and credentials; instead of --nats."`
	cli.Login
	cli.Pools
	cli.Signing
	Fleet string `default:"tf" help:"Name of the fleet."`
}

func (c *contextAdd) run(context.Context, program) error {
	if _, err := protocol.ParseFleet(c.Fleet); err != nil {
		return cli.Usagef("--fleet: %v", err)
	}
	if err := errors.Join(natsio.CheckURLs(c.Nats), c.Check(), c.CheckPools(c.Nats), c.CheckKey()); err != nil {
		return err
	}
	values := map[string]any{"nats": c.Nats, "fleet": c.Fleet} // --nats-context is a URL of --nats
	for flag, file := range map[string]string{
		"creds": c.Creds, "tls-ca": c.TLS.CA, "tls-cert": c.TLS.Cert, "tls-key": c.TLS.Key, "sign-key": c.SignKey,
	} {
		if file == "" {
			continue
		}
		path, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		values[flag] = path
	}
	for pool, file := range c.PoolCreds {
		path, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		c.PoolCreds[pool] = path
	}
	for flag, pools := range map[string]map[string]string{"pool-nats": c.PoolNats, "pool-creds": c.PoolCreds} {
		if len(pools) > 0 {
			values[flag] = pools
		}
	}
	return cli.AddContext(c.Name, values)
}

type contextLs struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *contextLs) run(_ context.Context, p program) error {
	all, err := cli.ListContexts()
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, all)
	}
	table := tabwriter.NewWriter(p.out(), 0, 0, 2, ' ', 0)
	for _, stored := range all {
		mark := " "
		if stored.InUse {
			mark = "*"
		}
		_, _ = fmt.Fprintf(table, "%s %s", mark, stored.Name)
		for _, flag := range slices.Sorted(maps.Keys(stored.Values)) {
			_, _ = fmt.Fprintf(table, "\t--%s %s", flag, cli.ShellWord(stored.Values[flag]))
		}
		_, _ = fmt.Fprintln(table)
	}
	return table.Flush()
}

type contextUse struct {
	Name string `arg:"" help:"Name of the context, or none."`
}

func (c *contextUse) run(context.Context, program) error { return cli.UseContext(c.Name) }

type contextRm struct {
	Name string `arg:"" help:"Name of the context."`
}

func (c *contextRm) run(context.Context, program) error { return cli.RemoveContext(c.Name) }
