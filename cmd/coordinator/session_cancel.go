package main

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// cancel ends the turns of a session that run or wait.
func (c *sessionCommand) cancel(ctx context.Context, p program, desk sessionDesk) error {
	if c.Nats == "" { // the process that runs it has its server
		f, err := c.reach(ctx, p, desk)
		if err != nil {
			return fmt.Errorf("%w; stop that process (Ctrl-C)", err)
		}
		f.Close()
		return c.cancelled(p, desk, nil)
	}
	f, err := c.connect(ctx, p, natsio.LaneRights(desk.fleet, protocol.SessionPool), natsio.LaneChangeRights(desk.fleet, protocol.SessionPool))
	if err != nil {
		return err
	}
	defer f.Close()
	ids, err := session.Cancel(ctx, f, desk.id)
	if err != nil {
		return err
	}
	return c.cancelled(p, desk, ids)
}

// cancelled prints what was cancelled.
func (c *sessionCommand) cancelled(p program, desk sessionDesk, ids []protocol.CallID) error {
	if c.JSON {
		return printJSON(p, struct {
			Cancelled []protocol.CallID `json:"cancelled"`
		}{append([]protocol.CallID{}, ids...)})
	}
	what := "nothing of it runs or waits"
	if len(ids) > 0 {
		what = terminal.Plural(len(ids), "turn") + " cancelled"
	}
	_, err := fmt.Fprintf(p.Stdout, "session %s: %s\n", desk.id, what)
	return err
}
