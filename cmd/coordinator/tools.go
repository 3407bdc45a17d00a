package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type toolsCommand struct {
	folderFlag `group:"Tools:"`

	Toolset []string `default:"core" help:"Toolsets to print, separated by commas."`
	Doc     string   `placeholder:"NAME" help:"Print the full documentation of one tool instead."`

	// MCP servers run in a fleet to be asked.
	Workspace   string `placeholder:"DIR" help:"Directory in which MCP servers are started to list their tools, without --nats. Default: an empty one."`
	fleetFlags  `group:"Fleet:"`
	workerFlags `group:"Sandbox:"`
	hostFlags   `group:"Host:"`
}

func (c *toolsCommand) run(ctx context.Context, p program) error {
	folder, err := c.openFolder()
	if err != nil {
		return err
	}
	broken := 0
	warn := func(message string) {
		broken++
		_, _ = fmt.Fprintln(p.err(), message)
	}
	box, err := c.toolbox(c.Toolset, folder, warn)
	if err == nil && len(box.servers) > 0 {
		err = c.ask(ctx, p, &box, warn)
	}
	if err != nil {
		return err
	}
	table := box.table
	if c.Doc != "" {
		text, found := table.Document(c.Doc)
		if !found {
			return cli.Usagef("--doc %s: there is no such tool; the tools are %s", c.Doc, strings.Join(table.Names(), ", "))
		}
		_, err = fmt.Fprint(p.out(), text)
		return err
	}
	body, err := tools.MarshalDefinitions(table.Definitions())
	if err != nil {
		return fmt.Errorf("print tools: %w", err)
	}
	if _, err = fmt.Fprintln(terminal.JSONWriter(p.Stdout), string(body)); err != nil {
		return err
	}
	if broken > 0 { // so that a check of manifests is a command
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

// ask asks the servers of a toolbox for their tools, in a session of which nothing is kept.
func (c *toolsCommand) ask(ctx context.Context, p program, box *toolbox, warn func(string)) error {
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	call := callCommand{Tool: "tools", folderFlag: c.folderFlag, fleetFlags: c.fleetFlags, workerFlags: c.workerFlags, hostFlags: c.hostFlags}
	workspace, err := checkWorkspace(c.Workspace)
	if err != nil {
		return err
	}
	if workspace != "" && c.Nats != "" {
		return cli.Usagef("--workspace %s: is for servers in this process: leave --nats out", c.Workspace)
	}
	if err := (&turnFlags{Workspace: c.Workspace}).narrow(workspace); err != nil {
		return err
	}
	session := protocol.NewSessionID()
	_, err = call.dispatch(ctx, p, session, func(ctx context.Context, fl *fleet.Fleet, _ func(string)) (*protocol.Call, error) {
		return nil, box.ask(ctx, fl, session, warn)
	}, workspace, &callOutput{})
	return err
}
