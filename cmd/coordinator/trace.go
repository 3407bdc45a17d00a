package main

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/session/timeline"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type traceCommand struct {
	lookedAt

	Format  string        `default:"text" enum:"text,json,chrome" placeholder:"FORMAT" help:"text draws bars; json is all that is known; chrome is for Perfetto (ui.perfetto.dev) and chrome://tracing."`
	JSON    bool          `name:"json" help:"Print JSON, as --format json does."`
	Width   int           `default:"0" placeholder:"COLUMNS" help:"Width of the bars and words. Default: that of the terminal, or 80."`
	Timeout time.Duration `default:"60s" help:"Time limit of the command."`

	ID   string `arg:"" name:"session" help:"Id of the session, the beginning of its id, or last."`
	Turn string `arg:"" optional:"" help:"Number of the turn. Default: the last one."`
}

func (c *traceCommand) run(ctx context.Context, p program) error {
	id, turn, err := c.check()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	all, err := c.open(ctx, p.logger(), protocol.DefaultPool, false)
	if err != nil {
		return err
	}
	defer all.close()
	return c.about(ctx, all, id, func() error { return c.print(ctx, p, all, turn) })
}

// print prints where the time of a turn went.
func (c *traceCommand) print(ctx context.Context, p program, all *opened, turn int) error {
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
	width := cmp.Or(c.Width, terminal.Width(p.Stdout))
	return terminal.Waterfall{Color: terminal.ColorWanted(p.Stdout, p.Getenv), Width: width}.Write(p.Stdout, trace)
}

// check reads the flags; it connects to nothing.
func (c *traceCommand) check() (id protocol.SessionID, turn int, err error) {
	if c.JSON && c.Format == "chrome" {
		return "", 0, cli.Usagef("--json --format chrome: give one of them")
	}
	if c.Width != 0 && (c.Width < 40 || c.Width > 1000) {
		return "", 0, cli.Usagef("--width %d: must be 40 to 1000", c.Width)
	}
	if id, err = protocol.ParseSessionID(c.ID); err != nil {
		return "", 0, cli.Usagef("SESSION: %v", err)
	}
	if c.Turn != "" && c.Turn != "last" {
		if turn, err = strconv.Atoi(c.Turn); err != nil || turn < 1 {
			return "", 0, cli.Usagef("TURN %s: must be a number from 1, or last", c.Turn)
		}
	}
	return id, turn, checkTimeout(c.Timeout)
}
