package main

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/tools"
)

type toolsCommand struct {
	Toolset []string `default:"core" help:"Toolsets to print, separated by commas."`
}

func (c *toolsCommand) run(_ context.Context, p program) error {
	table, err := openTools(c.Toolset)
	if err != nil {
		return err
	}
	body, err := tools.MarshalDefinitions(table.Definitions())
	if err != nil {
		return fmt.Errorf("print tools: %w", err)
	}
	_, err = fmt.Fprintln(p.Stdout, string(body))
	return err
}
