package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/session/evaluation"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type sessionEval struct {
	File      string `arg:"" help:"File of cases, in YAML or JSON (docs/cli.md, Evaluation)."`
	Parallel  int    `default:"8" help:"Maximum number of cases that run at once."`
	WholeHome bool   `help:"Allow the workspace of a case to be the root directory or the home directory."`
	JUnit     string `name:"junit" placeholder:"XML" help:"File for the results as JUnit XML."`
}

// maxCases bounds a file of cases, in bytes.
const maxCases = 16 << 20

// cases checks the flags, and reads the file.
func (c *sessionEval) cases() ([]evaluation.Case, error) {
	if c.Parallel < 1 {
		return nil, cli.Usagef("--parallel %d: must be at least 1", c.Parallel)
	}
	content, err := regular.Read(c.File, maxCases)
	if err != nil {
		return nil, cli.Usagef("FILE %s: %v", c.File, errors.Unwrap(err))
	}
	dir, err := filepath.Abs(filepath.Dir(c.File))
	if err != nil {
		return nil, cli.Usagef("FILE %s: %v", c.File, err)
	}
	cases, err := evaluation.Parse(content, dir, parseBudget)
	if err != nil {
		return nil, cli.Usagef("FILE %s: %v", c.File, err)
	}
	for i := range cases {
		if cases[i].Workspace, err = environment.CheckWorkspace(cases[i].Workspace); err != nil {
			return nil, cli.Usagef("FILE %s: case %s: %v", c.File, cases[i].Name, err)
		}
		if c.WholeHome {
			continue
		}
		if err := environment.CheckWhole(fmt.Sprintf("FILE %s: case %s: workspace", c.File, cases[i].Name), cases[i].Workspace, nil); err != nil {
			return nil, err
		}
	}
	return cases, nil
}

// eval runs the cases of a file, and fails unless all pass.
func (c *sessionCommand) eval(ctx context.Context, p program) error {
	pool, err := c.check()
	if err != nil {
		return err
	}
	if c.Nats == "" {
		return cli.Usagef("--nats is missing: cases run on a fleet (coordinator serve)")
	}
	cases, err := c.Eval.cases()
	if err != nil {
		return err
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	all, err := c.open(ctx, p, pool)
	if err != nil {
		return err
	}
	defer all.close()
	results := evaluation.Run(ctx, evaluation.Options{
		Client: all.client, Pool: pool, Parallel: c.Eval.Parallel, Warn: p.warn,
		Project: func(dir string) ([]protocol.InstructionFile, error) {
			return (&instructionFlags{}).project(dir, p.warn)
		},
		Ended: func(r evaluation.Result) {
			p.warn(strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", r.Name, r.State, r.Why), ": "))
		},
	}, cases)
	if err := c.Eval.report(p, results, c.JSON); err != nil {
		return err
	}
	switch passed := evaluation.Count(results, evaluation.Passed); {
	case ctx.Err() != nil:
		return &cli.ExitError{Code: cli.ExitInterrupted, Message: "interrupted"}
	case passed < len(results):
		return &cli.ExitError{Code: cli.ExitFailed, Message: fmt.Sprintf("%d of %d cases have not passed", len(results)-passed, len(results))}
	default:
		return nil
	}
}

// report prints the results, and writes those for CI systems.
func (c *sessionEval) report(p program, results []evaluation.Result, asJSON bool) error {
	if c.JUnit != "" {
		var content bytes.Buffer
		err := evaluation.JUnit(&content, filepath.Base(c.File), results)
		if err == nil {
			err = os.WriteFile(c.JUnit, content.Bytes(), 0o666) //nolint:gosec // the umask says who else may read it
		}
		if err != nil {
			return fmt.Errorf("--junit %s: %w", c.JUnit, err)
		}
	}
	if asJSON {
		return printJSON(p, results)
	}
	return evaluation.Table(terminal.Writer(p.Stdout), results)
}
