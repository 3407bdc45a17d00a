package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/environment"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/schedule"
	"github.com/toolfleet/toolfleet/internal/wire"
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
		Turn   []string `arg:"" passthrough:"" name:"submit ..." help:"The turn, as a command line of coordinator submit after --."`
	} `cmd:"" help:"Add a schedule. Each time starts a new session, or a turn of the session that submit --session names."`
	Ls    struct{}     `cmd:"" help:"List schedules, with their last and next times."`
	Pause scheduleName `cmd:"" help:"Stop a schedule until it is resumed. Times that pass meanwhile are skipped."`
	Cont  scheduleName `cmd:"" name:"resume" help:"Resume a schedule."`
	Rm    scheduleName `cmd:"" help:"Remove a schedule. Turns that have started continue."`
}

type scheduleName struct {
	Name string `arg:"" help:"Name of the schedule."`
}

// scheduleVerb is one of the subcommands.
type scheduleVerb struct {
	command *scheduleCommand
	act     func(ctx context.Context, p program, fl *fleet.Fleet, store *schedule.Store) error
}

// commands are the subcommands as kong names them.
func (c *scheduleCommand) commands() map[string]command {
	return map[string]command{
		"schedule add <name> <submit ...>": scheduleVerb{c, c.add},
		"schedule ls":                      scheduleVerb{c, c.list},
		"schedule pause <name>":            scheduleVerb{c, c.pause(&c.Pause, true)},
		"schedule resume <name>":           scheduleVerb{c, c.pause(&c.Cont, false)},
		"schedule rm <name>":               scheduleVerb{c, c.remove},
	}
}

func (v scheduleVerb) run(ctx context.Context, p program) error {
	c := v.command
	if err := checkTimeout(c.Timeout); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	fl, err := c.Connect(ctx, "schedule", p.common.Logger(p.Program), natsio.CallRights(protocol.Fleet(c.Fleet), protocol.SessionPool))
	if err != nil {
		return err
	}
	defer fl.Close()
	store, err := schedule.Open(ctx, fl.JS, fl.Name)
	if err != nil {
		return err
	}
	if err := fl.CheckRights(ctx, natsio.ScheduleRights(fl.Name)); err != nil {
		return err
	}
	err = v.act(ctx, p, fl, store)
	if errors.Is(err, schedule.ErrInvalid) {
		return cli.Usagef("%v", err)
	}
	return err
}

// scheduledTurn is what can be scheduled of coordinator submit.
type scheduledTurn struct {
	Submit struct {
		Model string `placeholder:"M" help:"Model that a coordinator serves. Default: the default model of the coordinator that runs the turn."`

		turnFlags
	} `cmd:"" help:"Start a turn."`
}

func (c *scheduleCommand) add(ctx context.Context, p program, fl *fleet.Fleet, store *schedule.Store) error {
	args := c.Add.Turn
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 || args[0] != "submit" {
		return cli.Usagef("give the turn as: -- submit \"PROMPT\"")
	}
	var turn scheduledTurn
	if err := cli.Parse(p.Program, &turn, args); err != nil {
		return err
	}
	t := &turn.Submit
	switch {
	case t.Workspace != "" || t.Template != "":
		return cli.Usagef("--workspace, --template: a scheduled turn begins with an empty workspace, or continues --session")
	case t.Prompt == "-":
		return cli.Usagef("PROMPT: must be text")
	case t.Session == "last":
		return cli.Usagef("--session last: name the session by its id: last would be another one at each time")
	}
	submit := submitCommand{Model: t.Model, turnFlags: t.turnFlags, ExistingFleet: c.ExistingFleet}
	keeps := submit.Session != ""
	checked, policies, err := submit.prepare(ctx, p)
	if err != nil {
		return err
	}
	if err := submit.served(ctx, fl); err != nil {
		return err
	}
	added, err := store.Add(ctx, schedule.Schedule{
		Name: c.Add.Name, Cron: c.Add.Cron, TimeZone: c.Add.TZ, Missed: schedule.Missed(c.Add.Missed),
		Call: submit.call(checked, policies, nil, protocol.Author{}), KeepSession: keeps,
	})
	if err != nil {
		return err
	}
	return c.print(p, added)
}

func (c *scheduleCommand) list(ctx context.Context, p program, _ *fleet.Fleet, store *schedule.Store) error {
	all, err := store.List(ctx)
	return errors.Join(c.print(p, all...), err)
}

func (c *scheduleCommand) pause(which *scheduleName, paused bool) func(context.Context, program, *fleet.Fleet, *schedule.Store) error {
	return func(ctx context.Context, p program, _ *fleet.Fleet, store *schedule.Store) error {
		s, err := store.Pause(ctx, which.Name, paused)
		if err != nil {
			return err
		}
		return c.print(p, s)
	}
}

func (c *scheduleCommand) remove(ctx context.Context, _ program, _ *fleet.Fleet, store *schedule.Store) error {
	return store.Remove(ctx, c.Rm.Name)
}

// scheduleInfo is what --json prints of a schedule.
type scheduleInfo struct {
	Name      string             `json:"name"`
	Cron      string             `json:"cron"`
	TimeZone  string             `json:"time_zone"`
	Missed    schedule.Missed    `json:"missed"`
	Paused    bool               `json:"paused"`
	Created   time.Time          `json:"created"`
	Last      time.Time          `json:"last,omitzero"`
	Next      []time.Time        `json:"next,omitempty"`
	SessionID protocol.SessionID `json:"session_id,omitempty"` // that of the last turn; with --session that of every turn
	Model     string             `json:"model,omitempty"`
	Prompt    string             `json:"prompt"`
}

// nextShown is how many of the next times are printed as JSON.
const nextShown = 3

// print prints schedules: a table with the next time, or JSON.
func (c *scheduleCommand) print(p program, all ...*schedule.Schedule) error {
	table := tabwriter.NewWriter(p.out(), 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NAME\tTIMES\tZONE\tLAST\tSESSION\tNEXT\tPROMPT")
	infos := []scheduleInfo{}
	for _, s := range all {
		turn, _ := s.Call.Payload.(wire.TurnRun)
		info := scheduleInfo{
			Name: s.Name, Cron: s.Cron, TimeZone: s.TimeZone, Missed: s.Missed, Paused: s.Paused, Created: s.Created, Last: s.Last,
			Model: turn.Model, Prompt: turn.Prompt,
		}
		if info.TimeZone == "" {
			info.TimeZone = "UTC"
		}
		if s.KeepSession || !s.Last.IsZero() {
			info.SessionID = s.At(s.Last).SessionID
		}
		if !s.Paused {
			info.Next = s.Next(time.Now(), nextShown)
		}
		infos = append(infos, info)
		last, next := "-", "paused"
		if !s.Last.IsZero() {
			last = s.Last.Format(time.RFC3339)
		}
		if len(info.Next) > 0 {
			next = info.Next[0].Format(time.RFC3339)
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.Cron, info.TimeZone, last, orDash(string(info.SessionID)), next, promptOf(turn.Prompt, 40))
	}
	if c.JSON {
		return printJSON(p, infos)
	}
	return table.Flush()
}

// startNow has the fleet accept a call of a schedule, and does not wait for its result. A call that
// has a result already was started before.
func startNow(fl *fleet.Fleet, logger *slog.Logger) func(ctx context.Context, call protocol.Call) error {
	return func(ctx context.Context, call protocol.Call) error {
		// When this coordinator stops, it leaves the call: it does not cancel it.
		following, leave := context.WithCancelCause(context.WithoutCancel(ctx))
		defer leave(nil)
		defer context.AfterFunc(ctx, func() { leave(loop.ErrDetached) })()
		var refused error
		err := fl.Dispatcher.Dispatch(following, []protocol.Call{call}, func(u loop.Update) {
			if r := u.Result; r != nil && r.Error != nil {
				if slices.Contains([]protocol.Code{protocol.CodeFleetFull, protocol.CodeFleetUnavailable, protocol.CodeBusy, protocol.CodeQuota}, r.Error.Code) {
					refused = r.Error
				} else if r.Status == protocol.StatusRejected {
					logger.WarnContext(ctx, "scheduled turn was rejected", slog.String("session_id", string(call.SessionID)), slog.Any("error", r.Error))
				}
			}
			leave(loop.ErrDetached)
		})
		switch {
		case refused != nil:
			return refused
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, loop.ErrDetached):
			return nil
		default:
			return err
		}
	}
}
