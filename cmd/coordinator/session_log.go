package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// reach connects to the fleet that has the session: that of the flags, or the session's own.
func (c *sessionCommand) reach(ctx context.Context, p program, desk sessionDesk) (*fleet.Fleet, error) {
	if c.Nats != "" {
		return c.connect(ctx, p)
	}
	local, err := c.local(p, desk)
	if err != nil {
		return nil, err
	}
	return local.Open(ctx, desk.id)
}

// history loads the journal of a session that exists.
func (c *sessionCommand) history(ctx context.Context, p program, desk sessionDesk) (loop.History, error) {
	f, err := c.reach(ctx, p, desk)
	if err != nil {
		return loop.History{}, err
	}
	defer f.Close()
	history, err := journalOf(ctx, f, desk)
	if errors.Is(err, session.ErrNone) && c.waits(ctx, f, desk) {
		err = fmt.Errorf("session %s: its turn waits for a coordinator; session show says for what, session attach follows it", desk.id)
	}
	return history, err
}

// waits reports whether the session has no journal because no coordinator has begun its first turn.
func (c *sessionCommand) waits(ctx context.Context, f *fleet.Fleet, desk sessionDesk) bool {
	reader, err := c.reader(ctx, f, desk)
	if err != nil {
		return false
	}
	_, err = reader.Show(ctx, desk.id)
	return err == nil
}

func journalOf(ctx context.Context, f *fleet.Fleet, desk sessionDesk) (loop.History, error) {
	history, err := f.Journal.Load(ctx, desk.id)
	if err == nil && len(history.Events) == 0 {
		err = fmt.Errorf("session %s: %w", desk.id, session.ErrNone)
	}
	return history, err
}

// log prints a session as run shows it, with --json as run --json does.
func (c *sessionCommand) log(ctx context.Context, p program, desk sessionDesk) error {
	history, err := c.history(ctx, p, desk)
	if err != nil {
		return err
	}
	printed := newJSONEvents(terminal.JSONWriter(p.Stdout))
	observe, say := printed.observe, func(string) {}
	if !c.JSON {
		view := terminal.New(p.Stdout, &terminal.Options{Color: terminal.ColorWanted(p.Stdout, p.Getenv), Width: terminal.Width(p.Stdout)})
		observe, say = view.Observe, func(text string) { view.Notice("%s", text) }
	}
	for i, e := range history.Events {
		observe(e)
		if e.Type == loop.EventQuestionAsked && c.Nats != "" && unanswered(e, history.Events[i+1:]) {
			say(c.asking(&session.Approval{SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Question: e.Question, Lane: e.Lane}))
		}
		if e.Type == loop.EventApprovalAsked && c.Nats != "" && undecided(history.Events[i+1:]) {
			say(waits(loop.ApprovalRequest{
				SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Arguments: e.Arguments, Reason: e.Text,
			}, at(c.Nats, c.Login, c.Fleet)))
		}
	}
	return printed.failed
}

// export prints the journal whole: each event as it is stored, one a line, without the seed.
func (c *sessionCommand) export(ctx context.Context, p program, desk sessionDesk) error {
	history, err := c.history(ctx, p, desk)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(terminal.JSONWriter(p.Stdout))
	encoder.SetEscapeHTML(false)
	for _, e := range history.Events {
		e.Seed = ""
		if err := encoder.Encode(e); err != nil {
			return fmt.Errorf("print the journal: %w", err)
		}
	}
	return nil
}
