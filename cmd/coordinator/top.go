package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/toolfleet/toolfleet/cmd/coordinator/internal/top"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/overview"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type topCommand struct {
	lookedAt

	Once     bool          `help:"Print one picture as text, and end."`
	JSON     bool          `name:"json" help:"With --once: print the picture as JSON."`
	Interval time.Duration `default:"1s" help:"Time between two readings of the fleet: at least 1s."`
	Limit    int           `default:"100" help:"Maximum number of lanes of each pool, those that wait longest, and of sessions, those that changed last; at most 1000."`
}

// leastInterval is the shortest time between two readings.
const leastInterval = time.Second

func (c *topCommand) run(ctx context.Context, p program) error {
	stdin, _ := p.Stdin.(*os.File)
	switch {
	case c.Interval < leastInterval:
		return cli.Usagef("--interval %s: must be at least %s", c.Interval, leastInterval)
	case c.Limit < 1 || c.Limit > 1000:
		return cli.Usagef("--limit %d: must be from 1 to 1000", c.Limit)
	case c.JSON && !c.Once:
		return cli.Usagef("--json: needs --once")
	case c.Once:
	case !terminal.IsTerminal(stdin) || !terminal.IsTerminal(p.Stdout):
		return cli.Usagef("top: stdin and stdout must be a terminal; --once prints one picture as text")
	case p.Getenv("TERM") == "" || p.Getenv("TERM") == "dumb":
		return cli.Usagef("top: the terminal cannot be drawn on (TERM is %q); --once prints one picture as text", p.Getenv("TERM"))
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	logger := p.logger()
	if !c.Once && terminal.IsTerminal(p.Stderr) { // the bar says what the log would draw over it
		logger = slog.New(slog.DiscardHandler)
	}
	all, err := c.open(ctx, logger, "", false)
	if err != nil {
		return err
	}
	defer all.close()
	options := overview.Options{Fleet: protocol.Fleet(c.Fleet), Lanes: c.Limit, Sessions: c.Limit}
	for pool := range c.PoolNats {
		options.Pools = append(options.Pools, protocol.Pool(pool))
	}
	reader := overview.New(all.client, options)
	colors := terminal.ColorWanted(p.Stdout, p.Getenv)
	if c.Once {
		return c.once(ctx, p, reader, colors)
	}
	return top.Run(ctx, &top.Options{
		Client: all.client, Reader: reader, Interval: c.Interval, Colors: colors, In: stdin, Out: p.Stdout, Environ: os.Environ(), Reach: c.Reach(),
	})
}

// once prints one picture. It reads twice, because rates are what changed in between.
func (c *topCommand) once(ctx context.Context, p program, reader *overview.Reader, colors bool) error {
	began := time.Now()
	picture, err := reader.Read(ctx)
	if err == nil {
		select {
		case <-time.After(c.Interval - time.Since(began)):
			picture, err = reader.Read(ctx)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("read the fleet: %w", err)
	}
	if c.JSON {
		return printJSON(p, picture)
	}
	width := terminal.Width(p.Stdout)
	if width == 0 { // nothing is cut for a program
		width = math.MaxInt16
	}
	return top.Print(p.Stdout, picture, width, colors)
}
