package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// contextCommand stores connection flags under names.
type contextCommand struct {
	Add contextAdd `cmd:"" help:"Store connection flags under a name, also those that variables set."`
	Ls  contextLs  `cmd:"" help:"List contexts, also those of the nats tool; * marks the one in use."`
	Use contextUse `cmd:"" help:"Select the context of commands that name no other one; none selects no context."`
	Rm  contextRm  `cmd:"" help:"Remove a context, also of the nats tool. The files that it names stay."`
}

type contextAdd struct {
	Name string `arg:"" help:"Name of the context."`
	Nats string `placeholder:"URL" help:"NATS server or servers of the fleet, separated by commas. Without it the context is one that the nats tool has."`
	cli.Login
	cli.Pools
	cli.Signing
	Fleet string `default:"tf" help:"Name of the fleet."`
}

func (c *contextAdd) run(context.Context, program) error {
	if _, err := protocol.ParseFleet(c.Fleet); err != nil {
		return cli.Usagef("--fleet: %v", err)
	}
	if context, is := strings.CutPrefix(c.Nats, natsio.ContextScheme); is {
		return cli.Usagef("--nats %s: is a context itself: coordinator context add %s adds flags to it", c.Nats, context)
	}
	nats := cmp.Or(c.Nats, natsio.ContextScheme+c.Name)
	if err := errors.Join(natsio.CheckURLs(nats), c.Check(), c.CheckPools(nats), c.CheckKey()); err != nil {
		return err
	}
	flags := map[string]any{"fleet": c.Fleet}
	for flag, file := range map[string]string{"creds": c.Creds, "tls-ca": c.TLS.CA, "tls-cert": c.TLS.Cert, "tls-key": c.TLS.Key, "sign-key": cmp.Or(c.SignKey, signing.Beside(c.Creds))} {
		if file == "" {
			continue
		}
		path, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		flags[flag] = path
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
			flags[flag] = pools
		}
	}
	return cli.AddContext(c.Name, c.Nats, flags)
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
