package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/terminal/prompt"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type approveCommand struct {
	Nats string `placeholder:"URL" brief:"NATS servers of a fleet. Default: your sessions on this machine." help:"NATS server or servers of the fleet. Default: your sessions on this machine, which a run or chat of another terminal holds."`
	environment.Connection

	Session string `arg:"" help:"Session, as the question named it; ls lists the calls that wait for approval or for an answer."`
	Call    string `arg:"" optional:"" help:"Id of the call, as the question named it."`
	JSON    bool   `name:"json" help:"Print what ls lists as JSON."`
	Deny    bool   `help:"Refuse the call, or decline to answer the question."`
	Note    string `placeholder:"TEXT" help:"Message for the model, sent with the approval or the refusal."`
	Content string `placeholder:"JSON" help:"Answer to the question of a running call: a JSON object that matches the question's schema; - reads it from stdin. Default: the schema's default values."`
	Pool    string `default:"default" help:"Pool of the running call, as the question named it."`
}

func (c *approveCommand) run(ctx context.Context, p program) error {
	if c.Session == "ls" && c.Call == "" {
		return c.list(ctx, p)
	}
	if c.Call == "" {
		return cli.Usagef("CALL: is missing; coordinator approve ls lists the calls that wait")
	}
	session, err := protocol.ParseSessionID(c.Session)
	if err != nil {
		return cli.Usagef("SESSION: %v", err)
	}
	call, err := protocol.ParseCallID(c.Call)
	if err != nil {
		return cli.Usagef("CALL: %v; coordinator approve ls lists the calls that wait", err)
	}
	pool, err := protocol.ParsePool(c.Pool)
	if err != nil {
		return cli.Usagef("--pool: %v", err)
	}
	content, err := c.content(p)
	if err != nil {
		return err
	}
	all, err := c.open(ctx, p)
	if err != nil {
		return err
	}
	defer all.close()
	if content == nil {
		err = all.client.Sessions(pool).Approve(ctx, session, call, protocol.Approval{Granted: !c.Deny, By: prompt.UserName(), Note: c.Note})
	} else {
		err = all.client.Sessions(pool).Answer(ctx, session, call, protocol.Answer{Action: protocol.ActionAccept, Content: content, By: prompt.UserName()})
	}
	if errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrInvalid) {
		return &cli.ExitError{Code: cli.ExitFailed, Message: err.Error()}
	}
	if err != nil {
		return err
	}
	word := "approved"
	switch {
	case c.Deny:
		word = "denied"
	case content != nil:
		word = "answered"
	}
	_, err = fmt.Fprintf(p.Stdout, "%s\n", word)
	return err
}

// open reaches the fleet of the flags.
func (c *approveCommand) open(ctx context.Context, p program) (*opened, error) {
	return (&lookedAt{Nats: c.Nats, Connection: c.Connection}).open(ctx, p.logger(), "", false)
}

// content reads --content; nil without it.
func (c *approveCommand) content(p program) (json.RawMessage, error) {
	text := c.Content
	if text == "" {
		return nil, nil
	}
	if c.Deny || c.Note != "" {
		return nil, cli.Usagef("--content: answers a question, and cannot be combined with --deny or --note")
	}
	if text == "-" {
		content, err := io.ReadAll(p.Stdin)
		if err != nil {
			return nil, fmt.Errorf("read --content: %w", err)
		}
		text = string(content)
	}
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
		return nil, cli.Usagef("--content %s: must be a JSON object", prompt.Shorten(text))
	}
	return json.RawMessage(text), nil
}

// list prints the calls of the fleet that wait for approval, or ask while they run.
func (c *approveCommand) list(ctx context.Context, p program) error {
	opened, err := c.open(ctx, p)
	if err != nil {
		return err
	}
	defer opened.close()
	all, err := opened.Approvals(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, all)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(p.out(), "no call waits for approval or for an answer")
		return err
	}
	for i := range all {
		a, pool, schema := &all[i], "", ""
		if a.Question != nil {
			pool = prompt.PoolFlag(a.Pool())
			schema = "\n  answer it with --content JSON, which must fit the schema " + prose.OneLine(string(a.Question.Schema))
		}
		_, err = fmt.Fprintf(p.out(), "%s ago: %s %s\n  %s%s\n  coordinator approve%s%s %s %s\n",
			terminal.Ago(a.AskedAt), prose.OneLine(a.Tool), prose.OneLine(prompt.Shorten(a.Arguments)), prose.OneLine(a.Reason), schema,
			c.Reach(), pool, a.SessionID, a.CallID)
	}
	return err
}
