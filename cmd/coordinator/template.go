package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
