package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type sessionCommand struct {
	Nats    string        `required:"" placeholder:"URL" help:"NATS server or servers of the fleet."`
	Creds   string        `placeholder:"FILE" help:"NATS credentials file, or a file with a token."`
	Fleet   string        `default:"tf" help:"Name of the fleet."`
	Pool    string        `default:"default" help:"Pool whose workers have the session's workspace."`
	JSON    bool          `name:"json" help:"Print JSON."`
	Timeout time.Duration `default:"60s" help:"How long it may take."`

	Rm sessionRemove `cmd:"" help:"Remove a session: journal, workspace, results and kept outputs. Done again it completes what was cut short."`
}

type sessionRemove struct {
	Force bool   `help:"Remove it while it runs too: its calls are cancelled."`
	ID    string `arg:"" help:"Id of the session."`
}

// run removes a session, the only verb that there is.
func (c *sessionCommand) run(ctx context.Context, p program) error {
	if c.Timeout <= 0 {
		return cli.Usagef("--timeout %s: must be positive", c.Timeout)
	}
	id, err := protocol.ParseSessionID(c.Rm.ID)
	if err != nil {
		return cli.Usagef("ID: %v", err)
	}
	pool, err := protocol.ParsePool(c.Pool)
	if err != nil {
		return cli.Usagef("--pool: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	flags := fleetFlags{Nats: c.Nats, Creds: c.Creds, Fleet: c.Fleet, Replicas: 1}
	fl, err := flags.connect(ctx, connection{name: "coordinator session", logger: p.common.Logger(p.Program)})
	if err != nil {
		return err
	}
	defer fl.Close()
	removed, err := session.Remove(ctx, fl, id, session.Options{Pool: pool, Force: c.Rm.Force})
	if errors.Is(err, session.ErrBusy) {
		return fmt.Errorf("%w (--force)", err)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, removed)
	}
	if removed == (session.Removed{}) {
		_, err = fmt.Fprintf(p.Stdout, "there is nothing of session %s\n", id)
		return err
	}
	workspace := "no workspace"
	if removed.Workspace {
		workspace = "its workspace"
	}
	_, err = fmt.Fprintf(p.Stdout, "session %s is removed: %d messages of its journal, %d results, %d kept bodies, %s\n",
		id, removed.Events, removed.Results, removed.Bodies, workspace)
	return err
}
