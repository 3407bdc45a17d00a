package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type limitsCommand struct {
	environment.ExistingFleet `group:"Fleet:"`

	JSON    bool          `name:"json" help:"Print JSON."`
	Timeout time.Duration `default:"1m" help:"Time limit of the command."`

	Set struct {
		Concurrent bound    `placeholder:"N" help:"Maximum number of calls of a lane that run at once; of a tenant, of accepted calls without a result."`
		Rate       string   `placeholder:"N/UNIT" help:"Maximum number of calls of a lane that start, or of a tenant that are accepted, in a second, minute or hour: 5/s, 60/min, 1000/h."`
		Tokens     string   `placeholder:"N/UNIT" help:"Maximum number of tokens of a model's provider, all coordinators together, as in 'model/openai' --tokens 2000000/min."`
		Burst      bound    `placeholder:"N" help:"Maximum number of calls at once after a pause; with --rate. Default: what the rate allows in a tenth of a second, or for a tenant in ten seconds, and at least 1."`
		Waiting    bound    `placeholder:"N" help:"Maximum number of calls that wait in a lane or a pool; further calls wait in their callers."`
		Sessions   bound    `placeholder:"N" help:"Maximum number of turns of a tenant that are submitted and have not ended."`
		Stored     cli.Size `placeholder:"SIZE" help:"Approximate maximum number of bytes stored for a tenant, such as 10GiB: results, outputs, workspaces and journals."`
		Weight     bound    `placeholder:"N" help:"Share of the tenant: with weights 3 and 1, two tenants with waiting calls get slots 3 to 1. Tenants without a weight have 1."`
		Tenant     string   `placeholder:"NAME" help:"Set what a tenant may use, instead of the limit of lanes."`
		Pool       string   `placeholder:"NAME" help:"Set how many calls wait in a pool, instead of the limit of lanes."`
		Lane       string   `arg:"" optional:"" help:"Lanes: the first two segments of resource keys. * at the end of a segment stands for any text, as in 'account/*'."`
	} `cmd:"" help:"Set limits of the lanes that match, of a tenant or of a pool. Limits that you do not name stay."`
	Ls struct{} `cmd:"" help:"List limits. A lane follows the first one that matches."`
	Rm struct {
		Tenant string `placeholder:"NAME" help:"Remove the limit of a tenant."`
		Pool   string `placeholder:"NAME" help:"Remove the limit of a pool."`
		Lane   string `arg:"" optional:"" help:"Lanes, as in the list."`
	} `cmd:"" help:"Remove a limit."`
}

// bound is a number of calls or turns. 0 is refused: a reader may take it for no call or for no
// bound.
type bound int

// UnmarshalText implements [encoding.TextUnmarshaler].
func (b *bound) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if err != nil || n == 0 {
		return fmt.Errorf("%q: must be a whole number, at least 1; limits rm removes a limit", text)
	}
	*b = bound(n)
	return nil
}

// verbs implements [group].
func (c *limitsCommand) verbs() map[string]command {
	verb := func(check func() error, act func(context.Context, program, fleet.Limits) error) command {
		return fleetVerb{&c.ExistingFleet, c.Timeout, check, func(ctx context.Context, p program, client *fleet.Client) error {
			return act(ctx, p, client.Limits())
		}}
	}
	return map[string]command{"set": fleetVerb{&c.ExistingFleet, c.Timeout, c.checkSet, c.set}, "ls": verb(nil, c.list), "rm": verb(c.checkRemove, c.remove)}
}

// given is the limit that limits set stores.
func (c *limitsCommand) given() fleet.Limit {
	return fleet.Limit{
		Lane: c.Set.Lane, Tenant: protocol.Tenant(c.Set.Tenant), Pool: protocol.Pool(c.Set.Pool), Weight: int(c.Set.Weight),
		Concurrent: int(c.Set.Concurrent), Rate: c.Set.Rate, Burst: int(c.Set.Burst), Tokens: c.Set.Tokens,
		Waiting: int(c.Set.Waiting), Sessions: int(c.Set.Sessions), Stored: int64(c.Set.Stored),
	}
}

func (c *limitsCommand) checkSet() error {
	if c.Set.Lane+c.Set.Tenant+c.Set.Pool == "" {
		return cli.Usagef("limits set: needs a lane, such as 'account/*', --tenant or --pool")
	}
	if err := c.given().Validate(); err != nil {
		return cli.Usagef("%v", err)
	}
	if err := model.CheckLane(c.Set.Lane); err != nil {
		return cli.Usagef("%v", err)
	}
	return nil
}

// checkRemove returns the error of limits rm without a lane and a tenant.
func (c *limitsCommand) checkRemove() error {
	if c.Rm.Lane+c.Rm.Tenant+c.Rm.Pool != "" {
		return nil
	}
	return cli.Usagef("limits rm: needs a lane, such as 'account/*', --tenant or --pool")
}

func (c *limitsCommand) set(ctx context.Context, p program, client *fleet.Client) error {
	if err := client.Limits().Set(ctx, c.given()); err != nil || c.Set.Pool == "" {
		return err
	}
	pools, err := client.Pools(ctx)
	if err == nil && !slices.Contains(pools, protocol.Pool(c.Set.Pool)) {
		p.warn(unknownPool(c.Set.Pool, pools))
	}
	return nil // without the rights to list pools there is no warning
}

// unknownPool is the warning about the limit of a pool that no worker has served yet.
func unknownPool(pool string, pools []protocol.Pool) string {
	names := make([]string, len(pools))
	for i := range pools {
		names[i] = string(pools[i])
	}
	text := fmt.Sprintf("--pool %s: the limit is set, but no worker has served this pool yet; the fleet's pools: %s", pool, cmp.Or(strings.Join(names, ", "), "none"))
	if nearest, is := prose.Nearest(pool, names); is {
		text += fmt.Sprintf("; did you mean %s? limits rm --pool %s removes this limit", nearest, pool)
	}
	return text
}

func (c *limitsCommand) remove(ctx context.Context, _ program, all fleet.Limits) error {
	return all.Remove(ctx, fleet.Limit{Lane: c.Rm.Lane, Tenant: protocol.Tenant(c.Rm.Tenant), Pool: protocol.Pool(c.Rm.Pool)})
}

func (c *limitsCommand) list(ctx context.Context, p program, all fleet.Limits) error {
	list, err := all.List(ctx)
	if err != nil {
		return err
	}
	columns := "LANE\tCONCURRENT\tRATE\tBURST\tTOKENS\tWAITING\tTENANT\tWEIGHT\tSESSIONS\tSTORED\tPOOL"
	return printList(p, c.JSON, list, "there are no limits", columns, func(l *fleet.Limit) []any {
		return []any{
			orDash(l.Lane), numberOrDash(l.Concurrent), orDash(l.Rate), numberOrDash(cmp.Or(l.Burst, l.DefaultBurst)), orDash(l.Tokens), numberOrDash(l.Waiting),
			orDash(string(l.Tenant)), numberOrDash(l.Weight), numberOrDash(l.Sessions), bytesOf(l.Stored), orDash(string(l.Pool)),
		}
	})
}

func numberOrDash(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

type templateCommand struct {
	environment.ExistingFleet

	JSON    bool          `name:"json" help:"Print JSON."`
	Timeout time.Duration `default:"10m" help:"Time limit of the command."`

	Create struct {
		Name string `arg:"" help:"Name of the template: lower case letters, digits, - and _."`
		From string `arg:"" name:"dir|session" help:"Directory of this machine, or else the id of a session."`

		environment.CopyFlags
		WholeHome bool `help:"Allow DIR to be the root directory or the home directory."`
	} `cmd:"" help:"Store a directory, or a session's workspace, as a template for new sessions."`
	Ls struct{} `cmd:"" help:"List templates."`
	Rm struct {
		Name string `arg:"" help:"Name of the template."`
	} `cmd:"" help:"Remove a template. Sessions that began with it stay as they are."`
}

// verbs implements [group].
func (c *templateCommand) verbs() map[string]command {
	verb := func(act func(context.Context, program, fleet.Templates) error) command {
		return fleetVerb{&c.ExistingFleet, c.Timeout, nil, func(ctx context.Context, p program, client *fleet.Client) error {
			return act(ctx, p, client.Templates())
		}}
	}
	return map[string]command{"create": verb(c.create), "ls": verb(c.list), "rm": verb(c.remove)}
}

func (c *templateCommand) create(ctx context.Context, p program, all fleet.Templates) error {
	if !c.Create.WholeHome {
		if err := environment.CheckWhole("DIR "+c.Create.From, c.Create.From, nil); err != nil {
			return err
		}
	}
	err := all.Create(ctx, c.Create.Name, c.Create.From, fleet.Copy{IncludeIgnored: c.Create.IncludeIgnored, Warn: p.warn})
	if errors.Is(err, os.ErrNotExist) {
		id, invalid := protocol.ParseSessionID(c.Create.From)
		if invalid != nil {
			return cli.Usagef("%s is no directory, and no id of a session: %v", c.Create.From, err)
		}
		err = all.CreateFromSession(ctx, c.Create.Name, id)
	}
	if errors.Is(err, fleet.ErrExists) {
		return fmt.Errorf("there is a template %s already (template rm %[1]s)", c.Create.Name)
	}
	if err != nil {
		return fmt.Errorf("template %s of %s: %w", c.Create.Name, c.Create.From, err)
	}
	return nil
}

func (c *templateCommand) list(ctx context.Context, p program, all fleet.Templates) error {
	list, err := all.List(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, list)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(p.Stdout, "there are no templates")
		return err
	}
	for _, t := range list {
		if _, err := fmt.Fprintf(p.Stdout, "%s  %s  %s, %d bytes\n", t.Name, t.Time.Local().Format(time.DateTime), terminal.Plural(t.Files, "file"), t.Bytes); err != nil {
			return err
		}
	}
	return nil
}

func (c *templateCommand) remove(ctx context.Context, _ program, all fleet.Templates) error {
	err := all.Remove(ctx, c.Rm.Name)
	if errors.Is(err, fleet.ErrNotFound) {
		return fmt.Errorf("there is no template %s (template ls lists them)", c.Rm.Name)
	}
	if err != nil {
		return fmt.Errorf("template %s: %w", c.Rm.Name, err)
	}
	return nil
}
