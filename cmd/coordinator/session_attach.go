package main

import (
	"context"
	"os"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/terminal/prompt"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// attach follows the running or waiting turn of a session, as submit does, or shows the last one.
// Leaving it stops nothing.
func (c *sessionCommand) attach(ctx context.Context, p program, desk sessionDesk) error {
	if c.Nats == "" {
		return cli.Usagef("--nats is missing: attach follows a turn of a fleet. The process that runs a session of this machine shows it, and so does session log")
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	f := c.flags()
	client, err := f.Client(ctx, p.logger())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing of it is left to lose
	show, err := newView(p, &viewFlags{JSON: c.JSON, Plain: c.Attach.Plain, fleet: true})
	if err != nil {
		return err
	}
	defer show.screen.Close()
	show.screen.DeferChanges()
	answers := prompt.NewAnswers(prompt.New(p.Stdin, show.screen, prompt.StoredFiles(client, desk.id)), client, c.Reach(), show.warn)
	defer answers.Close()
	silent, err := show.output(client, desk.id)
	if err != nil {
		return err
	}
	defer silent()
	result, err := client.Sessions(desk.pool).Follow(ctx, desk.id, show.observe, func(e loop.Event) { answers.Observe(ctx, e) })
	if ctx.Err() != nil {
		return &cli.ExitError{Code: cli.ExitInterrupted, Message: "detached; the turn continues (session cancel ends it)"}
	}
	if err != nil {
		return err
	}
	show.stored(ctx, client, desk.id)
	return finish(ctx, show, desk.id, result, nil, &gitguard.Report{}, "")
}
