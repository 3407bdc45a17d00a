package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type toolsCommand struct {
	folderFlag

	Toolset []string `default:"core" help:"Toolsets to print, separated by commas."`
	Doc     string   `placeholder:"NAME" help:"Print the full documentation of one tool instead."`
}

func (c *toolsCommand) run(_ context.Context, p program) error {
	folder, err := c.openFolder()
	if err != nil {
		return err
	}
	broken := 0
	table, err := openTools(c.Toolset, folder, func(message string) {
		broken++
		_, _ = fmt.Fprintln(p.err(), message)
	})
	if err != nil {
		return err
	}
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
