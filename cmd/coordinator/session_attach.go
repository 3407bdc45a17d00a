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
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	all, err := c.open(ctx, p, desk)
	if err != nil {
		return err
	}
	defer all.close()
	client := all.client
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
	result, err := all.Follow(ctx, desk.id, show.observe, func(e loop.Event) { answers.Observe(ctx, e) })
	if ctx.Err() != nil {
		return &cli.ExitError{Code: cli.ExitInterrupted, Message: "detached; the turn continues (session cancel ends it)"}
	}
	if err != nil {
		return err
	}
	show.stored(ctx, client, desk.id)
	return finish(ctx, show, desk.id, result, nil, &gitguard.Report{}, "")
}
