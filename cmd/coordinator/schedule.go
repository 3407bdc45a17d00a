package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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
		Starts []string `arg:"" passthrough:"" name:"submit|call ..." help:"What starts, as a command line of coordinator submit or coordinator call after --."`
	} `cmd:"" help:"Add a schedule. Each time starts a new session, or a turn of the session that submit --session names, or a tool call."`
	Ls struct {
		Limit int    `default:"100" help:"Maximum number of schedules to print."`
		After string `placeholder:"NAME" help:"Print the schedules whose names come after this one."`
	} `cmd:"" help:"List schedules, with their last and next times, and how the last turn or call ended."`
	Result struct {
		Time time.Time `placeholder:"TIME" help:"Time at which it was due, such as 2026-12-01T07:00:00+01:00. Default: the last one."`
		Name string    `arg:"" help:"Name of the schedule."`
	} `cmd:"" help:"Wait for the result of the turn or call of a time, and print it as coordinator call does."`
	Pause scheduleName `cmd:"" help:"Stop a schedule until it is resumed. Times that pass meanwhile are skipped."`
	Cont  scheduleName `cmd:"" name:"resume" help:"Resume a schedule."`
	Rm    scheduleName `cmd:"" help:"Remove a schedule. Turns and calls that have started continue."`
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
	return map[string]command{
		"add": verb(c.add), "rm": verb(c.remove),
		"pause": verb(c.change(&c.Pause.Name, fleet.Schedules.Pause)), "resume": verb(c.change(&c.Cont.Name, fleet.Schedules.Resume)),
		"ls": fleetVerb{&c.ExistingFleet, c.Timeout, c.checkList, func(ctx context.Context, p program, client *fleet.Client) error {
			return c.list(ctx, p, client.Schedules())
		}},
		"result": fleetVerb{&c.ExistingFleet, c.Timeout, nil, c.result},
	}
}

// scheduled is what can be scheduled of coordinator submit and coordinator call.
type scheduled struct {
	Submit struct {
		Model string `placeholder:"M" help:"Model that a coordinator serves. Default: the default model of the coordinator that runs the turn."`

		turnFlags
	} `cmd:"" help:"Start a turn."`
	Call scheduledCall `cmd:"" help:"Start a tool call."`
}

type scheduledCall struct {
	Tool      string        `arg:"" help:"Name of the tool."`
	Arguments string        `arg:"" default:"{}" help:"Arguments as a JSON object."`
	Session   string        `placeholder:"ID" help:"Session whose sandbox all calls use. Default: a new session, empty at first."`
	Toolset   []string      `default:"core" help:"Toolsets to look for the tool in, separated by commas."`
	Timeout   time.Duration `default:"0s" help:"Time limit of each call, and before that of its wait; 0 means the time limit of the tool, and no limit of the wait."`

	shareFlags              `group:"Fleet:"`
	environment.ToolFlags   `group:"Tools:"`
	environment.GuardFlag   `group:"Policy:"`
	environment.PolicyFlags `group:"Policy:"`
}

// request is the call as it is added.
func (t *scheduledCall) request(session protocol.SessionID, warn func(string)) (call fleet.Call, err error) {
	if t.Timeout < 0 {
		return call, cli.Usagef("--timeout %s: must not be negative", t.Timeout)
	}
	box, err := t.OpenToolbox(t.Toolset, warn)
	if err != nil {
		return call, err
	}
	if err := box.CheckPolicies(&t.PolicyFlags, warn); err != nil {
		return call, err
	}
	judge, err := t.Judge()
	if err == nil && box.OnlyServerOf(t.Tool) {
		err = cli.Usagef("tool %q: is one of an MCP server, which cannot be scheduled", t.Tool)
	}
	return fleet.Call{
		Tool: t.Tool, Arguments: t.Arguments, Table: box.Table, Session: session, Timeout: t.Timeout, QueueTimeout: t.Timeout,
		Tenant: protocol.Tenant(t.Tenant), Priority: protocol.Priority(t.Priority), Policy: judge, Guard: t.FileGuard(),
	}, err
}

func (c *scheduleCommand) add(ctx context.Context, p program, all fleet.Schedules) error {
	args := c.Add.Starts
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 || args[0] != "submit" && args[0] != "call" {
		return cli.Usagef("turns and calls can be scheduled; give one as: -- submit \"PROMPT\", or -- call TOOL ARGUMENTS")
	}
	var starts scheduled
	if err := cli.Parse(p.Program, &starts, args); err != nil {
		return err
	}
	request := fleet.Schedule{Name: c.Add.Name, Cron: c.Add.Cron, TimeZone: c.Add.TZ, Missed: c.Add.Missed}
	if args[0] == "submit" {
		turn, err := c.turn(ctx, p, &starts)
		if err != nil {
			return err
		}
		added, err := all.Add(ctx, request, turn)
		if err != nil {
			return err
		}
		return c.print(p, added)
	}
	call, err := c.call(ctx, p, &starts.Call)
	if err != nil {
		return err
	}
	added, err := all.AddCall(ctx, request, call)
	if err != nil {
		return err
	}
	return c.print(p, added)
}

const errLast = "--session last: give the id of the session, because last would be another session at each start"

// call is the call to schedule.
func (c *scheduleCommand) call(ctx context.Context, p program, t *scheduledCall) (call fleet.Call, err error) {
	if t.Session == "last" {
		return call, cli.Usagef(errLast)
	}
	session, err := findSession(ctx, p, &environment.FleetFlags{Nats: c.Nats, Connection: c.Connection}, &t.Session)
	if err != nil {
		return call, err
	}
	return t.request(session, p.warn)
}

// turn is the turn to schedule.
func (c *scheduleCommand) turn(ctx context.Context, p program, starts *scheduled) (turn fleet.Turn, err error) {
	t := &starts.Submit
	switch {
	case t.Workspace != "" || t.Template != "":
		return turn, cli.Usagef("--workspace, --template: a scheduled turn begins with an empty workspace, or continues --session")
	case len(t.Attach) > 0:
		return turn, cli.Usagef("--attach: a scheduled turn has no attachments")
	case t.Prompt == "-":
		return turn, cli.Usagef("PROMPT: must be text")
	case t.Session == "last":
		return turn, cli.Usagef(errLast)
	}
	submit := submitCommand{Model: t.Model, turnFlags: t.turnFlags, ExistingFleet: c.ExistingFleet}
	checked, policies, err := submit.prepare(ctx, p)
	if err != nil {
		return turn, err
	}
	turn = fleet.Turn{
		Tenant: protocol.Tenant(t.Tenant), Priority: protocol.Priority(t.Priority),
		Prompt: t.Prompt, AnswerSchema: checked.schema, Model: t.Model, Toolsets: t.Toolset, MaxSteps: submit.MaxSteps,
		MaxTokens: t.MaxTokens, Timeout: t.Timeout, PromoteAfter: t.PromoteAfter,
		Budget: checked.budget, Policies: policies, Guard: t.FileGuard(), Settings: checked.settings, System: checked.system,
	}
	if t.Session != "" {
		turn.Session = checked.session
	}
	return turn, nil
}

// result prints how the turn or call of a time ended.
func (c *scheduleCommand) result(ctx context.Context, p program, client *fleet.Client) error {
	ref, err := client.Schedules().Ref(ctx, c.Result.Name, c.Result.Time)
	if err != nil {
		return err
	}
	call, err := client.Attach(ctx, ref)
	if err != nil {
		return err
	}
	r, err := call.Wait(ctx)
	if err != nil {
		return err
	}
	output := &callOutput{SessionID: ref.SessionID}
	if err := output.take(&loop.Single{Status: r.Status, Text: r.Text, Error: r.Error, Result: &r.Result}); err != nil {
		return err
	}
	return output.print(p)
}

func (c *scheduleCommand) checkList() error {
	if c.Ls.Limit < 1 {
		return cli.Usagef("--limit %d: must be positive", c.Ls.Limit)
	}
	return nil
}

func (c *scheduleCommand) list(ctx context.Context, p program, all fleet.Schedules) error {
	list, leftOut, err := all.Page(ctx, c.Ls.After, c.Ls.Limit)
	err = errors.Join(c.print(p, list...), err)
	if leftOut > 0 && len(list) > 0 {
		_, _ = fmt.Fprintf(p.Stderr, "%d more schedules are not printed (--after %s)\n", leftOut, list[len(list)-1].Name)
	}
	return err
}

// change is a verb that changes a schedule, and prints it.
func (c *scheduleCommand) change(
	name *string, act func(fleet.Schedules, context.Context, string) (fleet.Schedule, error),
) func(context.Context, program, fleet.Schedules) error {
	return func(ctx context.Context, p program, all fleet.Schedules) error {
		s, err := act(all, ctx, *name)
		if err != nil {
			return err
		}
		return c.print(p, s)
	}
}

func (c *scheduleCommand) remove(ctx context.Context, _ program, all fleet.Schedules) error {
	return all.Remove(ctx, c.Rm.Name)
}

// nextOf says when a schedule starts next.
func nextOf(s *fleet.Schedule) string {
	switch {
	case s.Paused:
		return "paused"
	case len(s.Next) > 0:
		return s.Next[0].Format(time.RFC3339)
	case s.Cron == "once":
		return "now"
	default:
		return "waiting" // for a message
	}
}

// print prints schedules: a table with the next time, or JSON.
func (c *scheduleCommand) print(p program, all ...fleet.Schedule) error {
	return printList(p, c.JSON, all, "there are no schedules", "NAME\tTIMES\tZONE\tLAST\tSESSION\tOUTCOME\tNEXT\tSTARTS", func(s *fleet.Schedule) []any {
		last := "-"
		if !s.Last.IsZero() {
			last = s.Last.Format(time.RFC3339)
		}
		starts := s.Prompt
		if s.Payload != nil {
			payload, _ := prose.JSON(s.Payload) // it was read as JSON
			starts = "call " + s.Tool + " " + string(payload)
		}
		return []any{s.Name, s.Cron, s.TimeZone, last, orDash(string(s.SessionID)), orDash(s.Outcome), nextOf(s), promptOf(starts, 60)}
	})
}
