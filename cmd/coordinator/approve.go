package main

import (
	"context"
	"errors"
	"fmt"

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
	Note    string `placeholder:"TEXT" help:"What the model is told with the answer."`
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
	fl, err := c.connect(ctx, "approve", p.common.Logger(p.Program), natsio.ApprovalRights(protocol.Fleet(c.Fleet)))
	if err != nil {
		return err
	}
	defer fl.Close()
	err = approval.Answer(ctx, fl.NC, fl.Name, session, call, protocol.Approval{Granted: !c.Deny, By: userName(), Note: c.Note})
	if errors.Is(err, approval.ErrNotAsked) {
		return &cli.ExitError{Code: cli.ExitFailed, Message: err.Error()}
	}
	if err != nil {
		return err
	}
	word := "approved"
	if c.Deny {
		word = "denied"
	}
	_, err = fmt.Fprintf(p.Stdout, "%s\n", word)
	return err
}
