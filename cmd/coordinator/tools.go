package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type toolsCommand struct {
	Toolset []string `default:"core" help:"Toolsets to print, separated by commas."`
	Doc     string   `placeholder:"NAME" help:"Print the full documentation of one tool instead."`

	Workspace string `placeholder:"DIR" help:"Directory in which MCP servers are started to list their tools, without --nats. Default: an empty one."`
	environment.Flags
}

func (c *toolsCommand) run(ctx context.Context, p program) error {
	broken := 0
	warn := func(message string) {
		broken++
		_, _ = fmt.Fprintln(p.err(), message)
	}
	box, err := c.OpenToolbox(c.Toolset, warn)
	if err == nil && len(box.Servers) > 0 {
		err = c.list(ctx, p, box, warn)
	}
	if err != nil {
		return err
	}
	table := box.Table
	if c.Doc != "" {
		text, found := table.Document(c.Doc)
		if !found {
			return cli.Usagef("--doc %s: there is no such tool; the tools are %s", c.Doc, strings.Join(table.Names(), ", "))
		}
		_, err = fmt.Fprint(p.out(), text)
		return err
	}
	var body strings.Builder
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(table.Definitions()); err != nil {
		return fmt.Errorf("print tools: %w", err)
	}
	if _, err = fmt.Fprintln(terminal.JSONWriter(p.Stdout), body.String()); err != nil {
		return err
	}
	if broken > 0 { // so that a check of manifests is a command
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

// list lists the tools of the MCP servers, which run in a session that is removed afterwards.
func (c *toolsCommand) list(ctx context.Context, p program, box *environment.Toolbox, warn func(string)) error {
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	call := callCommand{Tool: "tools", Flags: c.Flags}
	workspace, err := environment.CheckWorkspace(c.Workspace)
	if err != nil {
		return err
	}
	if workspace != "" && c.Nats != "" {
		return cli.Usagef("--workspace %s: works only without --nats, for MCP servers of this process", c.Workspace)
	}
	if err := environment.CheckWhole("--workspace "+c.Workspace, workspace, nil); err != nil {
		return err
	}
	session := protocol.NewSessionID()
	box.Rules.MinLevel = c.DefaultMinLevel()
	return call.inFleet(ctx, p, session, workspace, func(ctx context.Context, env *environment.Environment, _ view) (*protocol.Call, error) {
		box.Rules.Pool = env.Pool()
		return nil, box.List(ctx, env.Fleet, session, warn)
	})
}
