package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type approveCommand struct {
	existingFleet

	Session string `arg:"" help:"Session, as the question named it."`
	Call    string `arg:"" help:"Id of the call, as the question named it."`
	Deny    bool   `help:"Say no."`
	Note    string `placeholder:"TEXT" help:"What the model is told with the answer whether a call may be made."`
	Content string `placeholder:"JSON" help:"Answer to what a running call asks: an object of the schema that the question names; - reads it from stdin. Default: what has a default."`
	Pool    string `default:"default" help:"Pool of the running call, as the question named it."`
}

func (c *approveCommand) run(ctx context.Context, p program) error {
	session, err := protocol.ParseSessionID(c.Session)
	if err != nil {
		return cli.Usagef("SESSION: %v", err)
	}
	call, err := protocol.ParseCallID(c.Call)
	if err != nil {
		return cli.Usagef("CALL: %v", err)
	}
	asked := approval.Asked{Pool: protocol.Pool(c.Pool), Session: session, Call: call}
	if asked.Pool, err = protocol.ParsePool(c.Pool); err != nil {
		return cli.Usagef("--pool: %v", err)
	}
	content, err := c.content(p)
	if err != nil {
		return err
	}
	fl, err := c.connect(ctx, "approve", p.common.Logger(p.Program), natsio.ApprovalRights(protocol.Fleet(c.Fleet), asked.Pool)...)
	if err != nil {
		return err
	}
	defer fl.Close()
	if content == nil {
		err = approval.Say(ctx, fl.NC, fl.Conn(asked.Pool), fl.Name, asked, protocol.Approval{Granted: !c.Deny, By: userName(), Note: c.Note})
	} else {
		err = approval.Reply(ctx, fl.Conn(asked.Pool), fl.Name, asked, protocol.Answer{Action: protocol.ActionAccept, Content: content, By: userName()})
	}
	if errors.Is(err, approval.ErrNotAsked) || errors.Is(err, approval.ErrRefused) {
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

// content is the answer of the flags; nil without one.
func (c *approveCommand) content(p program) (json.RawMessage, error) {
	text := c.Content
	if text == "" {
		return nil, nil
	}
	if c.Deny || c.Note != "" {
		return nil, cli.Usagef("--content: answers a question, and cannot be beside --deny or --note")
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
		return nil, cli.Usagef("--content %s: must be a JSON object", shortened(text))
	}
	return json.RawMessage(text), nil
}
