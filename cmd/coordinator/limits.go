package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/environment"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type limitsCommand struct {
	environment.ExistingFleet `group:"Fleet:"`

	JSON    bool          `name:"json" help:"Print JSON."`
	Timeout time.Duration `default:"1m" help:"Time limit of the command."`

	Set struct {
		Concurrent int    `placeholder:"N" help:"Maximum number of calls of a lane that run at once; of a tenant, of accepted calls without a result."`
		Rate       string `placeholder:"N/UNIT" help:"Maximum number of calls of a lane that start, or of a tenant that are accepted, in a second, minute or hour: 5/s, 60/min, 1000/h."`
		Tokens     string `placeholder:"N/UNIT" help:"Maximum number of tokens of a model's provider, all coordinators together, as in 'model/openai' --tokens 2000000/min."`
		Burst      int    `placeholder:"N" help:"Maximum number of calls at once after a pause; with --rate. Default: what a tenth of a second has, for a tenant ten seconds; at least 1."`
		Waiting    int    `placeholder:"N" help:"Maximum number of calls that wait in a lane or a pool; callers of further ones wait."`
		Sessions   int    `placeholder:"N" help:"Maximum number of turns of a tenant that are submitted and have not ended."`
		Weight     int    `placeholder:"N" help:"Share of the tenant: with weights 3 and 1, two tenants with waiting calls get slots 3 to 1. Tenants without a weight have 1."`
		Tenant     string `placeholder:"NAME" help:"Set what a tenant may use, instead of the limit of lanes."`
		Pool       string `placeholder:"NAME" help:"Set how many calls wait in a pool, instead of the limit of lanes."`
		Lane       string `arg:"" optional:"" help:"Lanes: the first two segments of resource keys. * at the end of a segment stands for any text, as in 'account/*'."`
	} `cmd:"" help:"Set or replace the limit of the lanes that match, of a tenant or of a pool."`
	Ls struct{} `cmd:"" help:"List limits. A lane follows the first one that matches."`
	Rm struct {
		Tenant string `placeholder:"NAME" help:"Remove the limit of a tenant."`
		Pool   string `placeholder:"NAME" help:"Remove the limit of a pool."`
		Lane   string `arg:"" optional:"" help:"Lanes, as in the list."`
	} `cmd:"" help:"Remove a limit."`

	rule limits.Rule // of set
}

// limitsVerb is one of the subcommands.
type limitsVerb struct {
	command *limitsCommand
	reads   bool         // it changes nothing
	check   func() error // reads the flags and arguments; may be nil
	act     func(ctx context.Context, p program, store *limits.Store) error
}

// commands are the subcommands as kong names them.
func (c *limitsCommand) commands() map[string]command {
	set := limitsVerb{command: c, check: c.readRule, act: c.set}
	rm := limitsVerb{command: c, check: c.checkRemove, act: c.remove}
	return map[string]command{
		"limits set": set, "limits set <lane>": set,
		"limits ls": limitsVerb{command: c, reads: true, act: c.list},
		"limits rm": rm, "limits rm <lane>": rm,
	}
}

func (v limitsVerb) run(ctx context.Context, p program) error {
	c := v.command
	if err := checkTimeout(c.Timeout); err != nil {
		return err
	}
	if v.check != nil { // before anything is connected to
		if err := v.check(); err != nil {
			return cli.Usagef("%v", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	fl, err := c.Connect(ctx, "limits", p.common.Logger(p.Program), natsio.CallRights(protocol.Fleet(c.Fleet), protocol.DefaultPool))
	if err != nil {
		return err
	}
	defer fl.Close()
	parts := fl.Parts()
	if v.reads {
		parts = parts[:1]
	}
	return eachLimits(ctx, parts, func(store *limits.Store) error { return v.act(ctx, p, store) })
}

// eachLimits opens the limits of parts of a fleet: pools with servers of their own have a copy.
func eachLimits(ctx context.Context, parts []*fleet.Fleet, do func(*limits.Store) error) error {
	for _, part := range parts {
		store, err := limits.Open(ctx, part.JS, part.Name)
		if err != nil {
			return err
		}
		if err := natsio.CheckRights(ctx, part.NC, natsio.LimitRights(part.Name)); err != nil {
			return err
		}
		if err := do(store); err != nil {
			return err
		}
	}
	return nil
}

// readRule reads the rule that limits set asks for.
func (c *limitsCommand) readRule() (err error) {
	c.rule = limits.Rule{
		Lane: limits.Pattern(c.Set.Lane), Tenant: protocol.Tenant(c.Set.Tenant), Pool: protocol.Pool(c.Set.Pool), Weight: c.Set.Weight,
		Concurrent: c.Set.Concurrent, Burst: c.Set.Burst, Waiting: c.Set.Waiting, Sessions: c.Set.Sessions,
	}
	if c.Set.Rate != "" {
		c.rule.Rate, err = limits.ParseRate(c.Set.Rate)
	}
	if c.Set.Tokens != "" {
		var failed error
		c.rule.Tokens, failed = limits.ParseRate(c.Set.Tokens)
		err = errors.Join(err, failed)
	}
	return errors.Join(err, c.rule.Validate())
}

// checkRemove returns the fault of limits rm without a lane and a tenant.
func (c *limitsCommand) checkRemove() error {
	if c.Rm.Lane+c.Rm.Tenant+c.Rm.Pool != "" {
		return nil
	}
	return errors.New("limits rm: needs a lane, such as 'account/*', --tenant or --pool")
}

func (c *limitsCommand) set(ctx context.Context, _ program, store *limits.Store) error {
	return store.Set(ctx, c.rule)
}

func (c *limitsCommand) remove(ctx context.Context, _ program, store *limits.Store) error {
	return store.Remove(ctx, limits.Rule{Lane: limits.Pattern(c.Rm.Lane), Tenant: protocol.Tenant(c.Rm.Tenant), Pool: protocol.Pool(c.Rm.Pool)})
}

func (c *limitsCommand) list(ctx context.Context, p program, store *limits.Store) error {
	rules, err := store.Rules(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, append([]limits.Rule{}, rules.List()...))
	}
	table := tabwriter.NewWriter(p.out(), 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "LANE\tCONCURRENT\tRATE\tBURST\tTOKENS\tWAITING\tTENANT\tWEIGHT\tSESSIONS\tPOOL")
	for _, r := range rules.List() {
		_, burst := r.PerSecond()
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", orDash(string(r.Lane)), numberOrDash(r.Concurrent), orDash(r.Rate.String()), numberOrDash(burst), orDash(r.Tokens.String()),
			numberOrDash(r.Waiting), orDash(string(r.Tenant)), numberOrDash(r.Weight), numberOrDash(r.Sessions), orDash(string(r.Pool)))
	}
	return table.Flush()
}

func numberOrDash(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// readLimits reads a file of limits, as limits ls --json prints them; no name has none.
func readLimits(file string) ([]limits.Rule, error) {
	if file == "" {
		return nil, nil
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--limits: %w", err)
	}
	rules, err := limits.Parse(body)
	if err != nil {
		return nil, cli.Usagef("--limits %s: %v", file, err)
	}
	return rules, nil
}
