package main

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

// configCommand is about settings in files.
type configCommand struct {
	Show  configShow  `cmd:"" help:"Print the settings of a command, and where each comes from: flag, variable, context, project, user or default."`
	Trust configTrust `cmd:"" help:"Trust the toolfleet.yaml of a project as it is now, with the files in the project that it names."`
}

type configShow struct {
	JSON    bool     `name:"json" help:"Print JSON."`
	Changed bool     `help:"Leave out defaults."`
	Command []string `arg:"" optional:"" passthrough:"" help:"Command line to look at, such as: serve --slots 4. Default: run."`
}

func (c *configShow) run(_ context.Context, p program) error {
	// Behind the command, --changed is still meant for this one: no other command has it.
	if at := slices.Index(c.Command, "--changed"); at >= 0 && !slices.Contains(c.Command[:at], "--") {
		c.Command, c.Changed = slices.Delete(c.Command, at, at+1), true
	}
	if len(c.Command) == 0 {
		c.Command = []string{"run"}
	}
	settings, notes, err := cli.Settings(p.Program, &grammar{}, c.Command)
	if err != nil {
		return err
	}
	for _, note := range notes {
		p.warn(note)
	}
	shown := []cli.Setting{}
	for _, s := range settings {
		if !c.Changed || s.From != "default" {
			shown = append(shown, s)
		}
	}
	if c.JSON {
		return printJSON(p, shown)
	}
	table := tabwriter.NewWriter(p.out(), 0, 0, 2, ' ', 0)
	for _, s := range shown {
		value, err := prose.JSON(s.Value)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", s.Name, value, s.From)
	}
	return table.Flush()
}

type configTrust struct {
	Dir  string `arg:"" optional:"" help:"Directory in the project. Default: the current one."`
	Undo bool   `help:"Forget the trust instead."`
}

func (c *configTrust) run(_ context.Context, p program) error {
	path, err := cli.Trust(c.Dir, c.Undo)
	if err != nil {
		return err
	}
	word := "trusted: "
	if c.Undo {
		word = "not trusted: "
	}
	_, err = fmt.Fprintln(p.out(), word+path)
	return err
}
