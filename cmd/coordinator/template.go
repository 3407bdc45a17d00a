package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/environment"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type templateCommand struct {
	environment.ExistingFleet

	JSON    bool          `name:"json" help:"Print JSON."`
	Timeout time.Duration `default:"10m" help:"Time limit of the command."`

	Create struct {
		Name string `arg:"" help:"Name of the template: lower case letters, digits, - and _."`
		From string `arg:"" name:"dir|session" help:"Directory of this machine, or else the id of a session."`
	} `cmd:"" help:"Store a directory, or a session's workspace, as a template for new sessions."`
	Ls struct{} `cmd:"" help:"List templates."`
	Rm struct {
		Name string `arg:"" help:"Name of the template."`
	} `cmd:"" help:"Remove a template. Sessions that began with it stay as they are."`
}

// templateVerb is one of the subcommands.
type templateVerb struct {
	command *templateCommand
	name    *string // nil when it is about none
	act     func(ctx context.Context, p program, store *workspace.Store) error
}

// commands are the subcommands as kong names them.
func (c *templateCommand) commands() map[string]command {
	return map[string]command{
		"template create <name> <dir|session>": templateVerb{c, &c.Create.Name, c.create},
		"template ls":                          templateVerb{c, nil, c.list},
		"template rm <name>":                   templateVerb{c, &c.Rm.Name, c.remove},
	}
}

func (v templateVerb) run(ctx context.Context, p program) error {
	c := v.command
	if err := checkTimeout(c.Timeout); err != nil {
		return err
	}
	if v.name != nil {
		if err := workspace.CheckTemplate(*v.name); err != nil {
			return cli.Usagef("NAME %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	fl, err := c.Connect(ctx, "template", p.common.Logger(p.Program), natsio.WorkspaceRights(protocol.Fleet(c.Fleet)))
	if err != nil {
		return err
	}
	defer fl.Close()
	store, err := workspace.Open(ctx, fl.Conn(protocol.DefaultPool), fl.Name)
	if err != nil {
		return err
	}
	return v.act(ctx, p, store)
}

func (c *templateCommand) create(ctx context.Context, _ program, store *workspace.Store) (err error) {
	root, err := os.OpenRoot(c.Create.From)
	if err == nil {
		defer func() { err = errors.Join(err, root.Close()) }()
		err = store.TemplateFrom(ctx, c.Create.Name, root)
	} else {
		id, invalid := protocol.ParseSessionID(c.Create.From)
		if invalid != nil || !errors.Is(err, os.ErrNotExist) {
			return cli.Usagef("%s is no directory, and no id of a session: %v", c.Create.From, err)
		}
		err = store.TemplateOf(ctx, c.Create.Name, wire.HashLane(protocol.SandboxKey(string(id)).Lane()))
	}
	if errors.Is(err, workspace.ErrExists) {
		return fmt.Errorf("there is a template %s already (template rm %[1]s)", c.Create.Name)
	}
	if err != nil {
		return fmt.Errorf("template %s of %s: %w", c.Create.Name, c.Create.From, err)
	}
	return nil
}

func (c *templateCommand) list(ctx context.Context, p program, store *workspace.Store) error {
	list, err := store.Templates(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, list)
	}
	for _, t := range list {
		if _, err := fmt.Fprintf(p.Stdout, "%s  %s  %s, %d bytes\n", t.Name, t.Time.Local().Format(time.DateTime), terminal.Plural(t.Files, "file"), t.Bytes); err != nil {
			return err
		}
	}
	return nil
}

func (c *templateCommand) remove(ctx context.Context, _ program, store *workspace.Store) error {
	if err := store.RemoveTemplate(ctx, c.Rm.Name); err != nil {
		return fmt.Errorf("template %s: %w", c.Rm.Name, err)
	}
	return nil
}
