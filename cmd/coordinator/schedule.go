package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/environment"
	"github.com/toolfleet/toolfleet/pkg/fleet"
)

type scheduleCommand struct {
	environment.ExistingFleet `group:"Fleet:"`

	JSON    bool          `name:"json" help:"Print JSON."`
	Timeout time.Duration `default:"1m" help:"Time limit of the command."`

	Add struct {
		Cron   string   `required:"" placeholder:"TIMES" help:"When to start: the five fields of crontab (minute, hour, day, month, weekday), @hourly, @daily, @weekly, @monthly, or '@every 10m'."`
		TZ     string   `name:"tz" placeholder:"ZONE" help:"Time zone, such as Europe/Berlin. Default: UTC."`
		Missed string   `default:"once" enum:"once,skip,all" help:"What to do about times at which no coordinator ran: start once for the latest (once), not at all (skip), or once for each of the last 100 (all)."`
		Name   string   `arg:"" help:"Name of the schedule: letters, digits, - and _."`
		Turn   []string `arg:"" passthrough:"" name:"submit ..." help:"The turn, as a command line of coordinator submit after --."`
	} `cmd:"" help:"Add a schedule. Each time starts a new session, or a turn of the session that submit --session names."`
	Ls    struct{}     `cmd:"" help:"List schedules, with their last and next times, and how the last turn ended."`
	Pause scheduleName `cmd:"" help:"Stop a schedule until it is resumed. Times that pass meanwhile are skipped."`
	Cont  scheduleName `cmd:"" name:"resume" help:"Resume a schedule."`
	Rm    scheduleName `cmd:"" help:"Remove a schedule. Turns that have started continue."`
}

type scheduleName struct {
	Name string `arg:"" help:"Name of the schedule."`
}

// verbs implements [group].
func (c *scheduleCommand) verbs() map[string]command {
	verb := func(act func(context.Context, program, fleet.Schedules) error) command {
		return fleetVerb{&c.ExistingFleet, c.Timeout, nil, func(ctx context.Context, p program, client *fleet.Client) error {
			return act(ctx, p, client.Schedules())
		}}
	}
	return map[string]command{"add": verb(c.add), "ls": verb(c.list), "pause": verb(c.pause), "resume": verb(c.resume), "rm": verb(c.remove)}
}

// scheduledTurn is what can be scheduled of coordinator submit.
type scheduledTurn struct {
	Submit struct {
		Model string `placeholder:"M" help:"Model that a coordinator serves. Default: the default model of the coordinator that runs the turn."`

		turnFlags
	} `cmd:"" help:"Start a turn."`
}

func (c *scheduleCommand) add(ctx context.Context, p program, all fleet.Schedules) error {
	args := c.Add.Turn
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 || args[0] != "submit" {
		return cli.Usagef("only turns can be scheduled; give one as: -- submit \"PROMPT\"")
	}
	var turn scheduledTurn
	if err := cli.Parse(p.Program, &turn, args); err != nil {
		return err
	}
	t := &turn.Submit
	switch {
	case t.Workspace != "" || t.Template != "":
		return cli.Usagef("--workspace, --template: a scheduled turn begins with an empty workspace, or continues --session")
	case len(t.Attach) > 0:
		return cli.Usagef("--attach: a scheduled turn has no attachments")
	case t.Prompt == "-":
		return cli.Usagef("PROMPT: must be text")
	case t.Session == "last":
		return cli.Usagef("--session last: name the session by its id: last would be another one at each time")
	}
	submit := submitCommand{Model: t.Model, turnFlags: t.turnFlags, ExistingFleet: c.ExistingFleet}
	checked, policies, err := submit.prepare(ctx, p)
	if err != nil {
		return err
	}
	repeated := fleet.Turn{
		Prompt: t.Prompt, Model: t.Model, Toolsets: t.Toolset, MaxSteps: submit.MaxSteps, MaxTokens: t.MaxTokens, Timeout: t.Timeout, PromoteAfter: t.PromoteAfter,
		Budget: checked.budget, Policies: policies, Guard: t.FileGuard(), Settings: checked.settings, System: checked.system,
	}
	if t.Session != "" {
		repeated.Session = checked.session
	}
	added, err := all.Add(ctx, fleet.Schedule{Name: c.Add.Name, Cron: c.Add.Cron, TimeZone: c.Add.TZ, Missed: c.Add.Missed}, repeated)
	if err != nil {
		return err
	}
	return c.print(p, added)
}

func (c *scheduleCommand) list(ctx context.Context, p program, all fleet.Schedules) error {
	list, err := all.List(ctx)
	return errors.Join(c.print(p, list...), err)
}

func (c *scheduleCommand) pause(ctx context.Context, p program, all fleet.Schedules) error {
	s, err := all.Pause(ctx, c.Pause.Name)
	if err != nil {
		return err
	}
	return c.print(p, s)
}

func (c *scheduleCommand) resume(ctx context.Context, p program, all fleet.Schedules) error {
	s, err := all.Resume(ctx, c.Cont.Name)
	if err != nil {
		return err
	}
	return c.print(p, s)
}

func (c *scheduleCommand) remove(ctx context.Context, _ program, all fleet.Schedules) error {
	return all.Remove(ctx, c.Rm.Name)
}

// print prints schedules: a table with the next time, or JSON.
func (c *scheduleCommand) print(p program, all ...fleet.Schedule) error {
	if c.JSON {
		return printJSON(p, append([]fleet.Schedule{}, all...))
	}
	table := tabwriter.NewWriter(p.out(), 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NAME\tTIMES\tZONE\tLAST\tSESSION\tOUTCOME\tNEXT\tPROMPT")
	for _, s := range all {
		last, next := "-", "paused"
		if !s.Last.IsZero() {
			last = s.Last.Format(time.RFC3339)
		}
		if len(s.Next) > 0 {
			next = s.Next[0].Format(time.RFC3339)
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.Cron, s.TimeZone, last, orDash(string(s.SessionID)), orDash(s.Outcome), next, promptOf(s.Prompt, 40))
	}
	return table.Flush()
}
