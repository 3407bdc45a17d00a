package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/session/timeline"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type traceCommand struct {
	Nats                   string `placeholder:"URL" brief:"NATS servers of a fleet. Default: your sessions on this machine." help:"NATS server or servers of the fleet. Default: your sessions on this machine, which ran without --nats and --data."`
	environment.Connection `group:"Fleet:"`
	Data                   string        `placeholder:"DIR" help:"Data directory of the sessions, that of run --data. No other process may use it."`
	Format                 string        `default:"text" enum:"text,json,chrome" placeholder:"FORMAT" help:"text draws bars; json is all that is known; chrome is for Perfetto (ui.perfetto.dev) and chrome://tracing."`
	JSON                   bool          `name:"json" help:"Print JSON, as --format json does."`
	Width                  int           `default:"0" placeholder:"COLUMNS" help:"Width of the bars and words. Default: that of the terminal, or 80."`
	Timeout                time.Duration `default:"60s" help:"Time limit of the command."`

	ID   string `arg:"" name:"session" help:"Id of the session, the beginning of its id, or last."`
	Turn string `arg:"" optional:"" help:"Number of the turn. Default: the last one."`
}

func (c *traceCommand) run(ctx context.Context, p program) error {
	turn, err := c.turn()
	if err != nil {
		return err
	}
	s := &sessionCommand{Nats: c.Nats, Connection: c.Connection, Data: c.Data, Pool: string(protocol.DefaultPool), Timeout: c.Timeout}
	s.Ls.Limit, s.Search.Limit = 1, 1
	return sessionVerb{s, &c.ID, nil, func(ctx context.Context, p program, all *opened) error {
		trace, err := all.Trace(ctx, all.id, turn)
		switch {
		case errors.Is(err, fleet.ErrNotFound) && turn > 0:
			if _, showErr := all.Show(ctx, all.id); showErr == nil {
				return cli.Usagef("TURN %d: the session does not have it; session show lists the turns", turn)
			}
			return err
		case err != nil:
			return err
		case c.JSON || c.Format == "json":
			return printJSON(p, trace)
		case c.Format == "chrome":
			return timeline.WriteChrome(terminal.JSONWriter(p.Stdout), trace)
		}
		width := c.Width
		if width == 0 {
			width = terminal.Width(p.Stdout)
		}
		return terminal.Waterfall{Color: terminal.ColorWanted(p.Stdout, p.Getenv), Width: width}.Write(p.Stdout, trace)
	}}.run(ctx, p)
}

// turn reads the flags; it connects to nothing.
func (c *traceCommand) turn() (turn int, err error) {
	if c.JSON && c.Format == "chrome" {
		return 0, cli.Usagef("--json --format chrome: give one of them")
	}
	if c.Width != 0 && (c.Width < 40 || c.Width > 1000) {
		return 0, cli.Usagef("--width %d: must be 40 to 1000", c.Width)
	}
	if _, err := protocol.ParseSessionID(c.ID); err != nil {
		return 0, cli.Usagef("SESSION: %v", err)
	}
	if c.Turn == "" || c.Turn == "last" {
		return 0, nil
	}
	if turn, err = strconv.Atoi(c.Turn); err != nil || turn < 1 {
		return 0, cli.Usagef("TURN %s: must be a number from 1, or last", c.Turn)
	}
	return turn, nil
}
