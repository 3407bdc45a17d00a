package main

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type toolsCommand struct {
	folderFlag

	Toolset []string `default:"core" help:"Toolsets to print, separated by commas."`
}

func (c *toolsCommand) run(_ context.Context, p program) error {
	folder, err := c.openFolder()
	if err != nil {
		return err
	}
	broken := 0
	table, err := openTools(c.Toolset, folder, func(message string) {
		broken++
		_, _ = fmt.Fprintln(p.Stderr, message)
	})
	if err != nil {
		return err
	}
	body, err := tools.MarshalDefinitions(table.Definitions())
	if err != nil {
		return fmt.Errorf("print tools: %w", err)
	}
	if _, err = fmt.Fprintln(p.Stdout, string(body)); err != nil {
		return err
	}
	if broken > 0 { // so that a check of manifests is a command
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}
