package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type templateCommand struct {
	existingFleet

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
	if c.Timeout <= 0 {
		return cli.Usagef("--timeout %s: must be positive", c.Timeout)
	}
	if v.name != nil {
		if err := workspace.CheckTemplate(*v.name); err != nil {
			return cli.Usagef("NAME %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	fl, err := c.connect(ctx, "template", p.common.Logger(p.Program), natsio.WorkspaceRights(protocol.Fleet(c.Fleet)))
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
		err = store.TemplateOf(ctx, c.Create.Name, sessionDesk{id: id}.lane())
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

// templateFlag says what a new workspace begins with.
type templateFlag struct {
	Template string `placeholder:"NAME" help:"Template for the workspace of a new session (template create); with --nats. A session that has a workspace keeps it."`
}

// check finds what does not go together.
func (f *templateFlag) check(nats, dir string) error {
	switch {
	case f.Template == "":
		return nil
	case nats == "":
		return cli.Usagef("--template %s: needs --nats: templates are kept with a fleet", f.Template)
	case dir != "":
		return cli.Usagef("--template %s: not together with --workspace, which the session's files come from", f.Template)
	}
	if err := workspace.CheckTemplate(f.Template); err != nil {
		return cli.Usagef("--template %v", err)
	}
	return nil
}

// begin begins the workspace of a session with the template, if there is one and the session has no
// workspace.
func (f *templateFlag) begin(ctx context.Context, fl *fleet.Fleet, id protocol.SessionID) error {
	if f.Template == "" {
		return nil
	}
	if there, err := session.HasWorkspace(ctx, fl.At(protocol.DefaultPool), id); err != nil || there {
		return err
	}
	store, err := workspace.Open(ctx, fl.Conn(protocol.DefaultPool), fl.Name)
	if err == nil {
		err = store.FromTemplate(ctx, f.Template, sessionDesk{id: id}.lane())
	}
	if err != nil && !errors.Is(err, workspace.ErrExists) {
		return fmt.Errorf("--template %s: %w", f.Template, err)
	}
	return nil
}
