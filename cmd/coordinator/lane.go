package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type laneCommand struct {
	environment.ExistingFleet

	Pool    string        `default:"default" help:"Pool that the lane's calls are for."`
	JSON    bool          `name:"json" help:"Print JSON."`
	Timeout time.Duration `default:"30s" help:"Time limit of the command."`

	Ls struct {
		Limit int `default:"100" help:"Maximum number of lanes to print."`
	} `cmd:"" help:"List lanes with waiting or running calls, the lane with the oldest call first."`
	Show struct {
		laneArg

		Limit int `default:"256" help:"Maximum number of calls to print."`
	} `cmd:"" help:"Show a lane's calls in their order."`
	Pause  laneArg `cmd:"" help:"Pause a lane: running calls continue, waiting calls do not start until it is resumed."`
	Resume laneArg `cmd:"" help:"End a pause."`
	Wake   laneArg `cmd:"" help:"Publish a missing ready message of a lane. Workers do this themselves within a second or two."`
	Skip   struct {
		laneArg

		Call string `arg:"" help:"Id of the call."`
	} `cmd:"" help:"Cancel one call of a lane, whether it waits or runs."`
	Kill laneArg `cmd:"" help:"Cancel the running calls of a lane."`
}

// laneArg is the lane that most verbs are about.
type laneArg struct {
	Lane string `arg:"" help:"The lane, as in: sandbox/abc."`
}

// parse checks the lane.
func (a laneArg) parse() (protocol.Lane, error) {
	key, err := protocol.ParseResourceKey(a.Lane)
	if err != nil {
		return "", cli.Usagef("LANE: %v", err)
	}
	if string(key.Lane()) != string(key) {
		return "", cli.Usagef("LANE %s: must be the first two segments of a resource key: %s", a.Lane, key.Lane())
	}
	return key.Lane(), nil
}

// laneTarget is what a verb works with.
type laneTarget struct {
	fleet.Lanes

	pool protocol.Pool
	lane protocol.Lane   // "" when the verb is about none
	call protocol.CallID // of skip
}

// verbs implements [group].
func (c *laneCommand) verbs() map[string]command {
	verb := func(arg *laneArg, act func(context.Context, program, laneTarget) error) command {
		var of laneTarget
		return fleetVerb{&c.ExistingFleet, c.Timeout, func() (err error) {
			of, err = c.target(arg)
			return err
		}, func(ctx context.Context, p program, client *fleet.Client) error {
			of.Lanes = client.Lanes(of.pool)
			return act(ctx, p, of)
		}}
	}
	return map[string]command{
		"ls": verb(nil, c.list), "show": verb(&c.Show.laneArg, c.show), "pause": verb(&c.Pause, c.pause), "resume": verb(&c.Resume, c.resume),
		"wake": verb(&c.Wake, c.wake), "skip": verb(&c.Skip.laneArg, c.skip), "kill": verb(&c.Kill, c.kill),
	}
}

// target reads the flags and arguments; arg is nil for a verb about no lane.
func (c *laneCommand) target(arg *laneArg) (of laneTarget, err error) {
	if c.Ls.Limit < 1 || c.Show.Limit < 1 {
		return of, cli.Usagef("--limit %d: must be positive", min(c.Ls.Limit, c.Show.Limit))
	}
	if of.pool, err = protocol.ParsePool(c.Pool); err != nil {
		return of, cli.Usagef("--pool: %v", err)
	}
	if arg == nil {
		return of, nil
	}
	if of.lane, err = arg.parse(); err != nil {
		return of, err
	}
	if arg == &c.Skip.laneArg {
		if of.call, err = protocol.ParseCallID(c.Skip.Call); err != nil {
			return of, cli.Usagef("CALL: %v", err)
		}
	}
	return of, nil
}

func (c *laneCommand) list(ctx context.Context, p program, of laneTarget) error {
	list, err := of.List(ctx, c.Ls.Limit)
	if err != nil {
		return err
	}
	if list.LeftOut > 0 {
		_, _ = fmt.Fprintf(p.Stderr, "%d more lanes are not shown; --limit shows more\n", list.LeftOut)
	}
	if list.Incomplete {
		_, _ = fmt.Fprintln(p.Stderr, "there are too many lanes to count: some lanes may be missing, and numbers may be too small")
	}
	if c.JSON {
		return printJSON(p, list.Lanes)
	}
	return printLanes(p.out(), list.Lanes)
}

func (c *laneCommand) show(ctx context.Context, p program, of laneTarget) error {
	shown, err := of.Show(ctx, of.lane, c.Show.Limit)
	if err != nil {
		return err
	}
	if shown.LeftOut > 0 {
		_, _ = fmt.Fprintf(p.Stderr, "%d more calls are not shown; --limit shows more\n", shown.LeftOut)
	}
	if c.JSON {
		return printJSON(p, shown)
	}
	return printLane(p.out(), shown)
}

// laneDone is what a verb that changes something prints.
type laneDone struct {
	Lane      protocol.Lane        `json:"lane"`
	Pool      protocol.Pool        `json:"pool"`
	Confirmed *bool                `json:"confirmed,omitempty"`  // of pause: no call starts any more
	WasPaused *bool                `json:"was_paused,omitempty"` // of resume
	MadeReady *bool                `json:"made_ready,omitempty"` // of wake: it had no ready message
	CallID    protocol.CallID      `json:"call_id,omitempty"`    // of skip
	Killed    []report.RunningCall `json:"killed,omitempty"`     // of kill
}

// done prints what was done, for scripts or as a sentence.
func (c *laneCommand) done(p program, of laneTarget, done laneDone, sentence string) error {
	if c.JSON {
		done.Lane, done.Pool = of.lane, of.pool
		return printJSON(p, done)
	}
	_, err := fmt.Fprintf(p.Stdout, "lane %s %s\n", prose.OneLine(string(of.lane)), sentence)
	return err
}

func (c *laneCommand) pause(ctx context.Context, p program, of laneTarget) error {
	confirmed, err := of.Pause(ctx, of.lane)
	if err != nil {
		return err
	}
	sentence := "is paused"
	if !confirmed {
		sentence = "is paused, but its holder does not answer, and may start calls until its lease ends"
	}
	return c.done(p, of, laneDone{Confirmed: &confirmed}, sentence)
}

func (c *laneCommand) resume(ctx context.Context, p program, of laneTarget) error {
	was, err := of.Resume(ctx, of.lane)
	if err != nil {
		return err
	}
	sentence := "is resumed"
	if !was {
		sentence = "was not paused"
	}
	return c.done(p, of, laneDone{WasPaused: &was}, sentence)
}

func (c *laneCommand) wake(ctx context.Context, p program, of laneTarget) error {
	made, err := of.Wake(ctx, of.lane)
	if err != nil {
		return err
	}
	sentence := "was ready or held already"
	if made {
		sentence = "is ready now"
	}
	return c.done(p, of, laneDone{MadeReady: &made}, sentence)
}

func (c *laneCommand) skip(ctx context.Context, p program, of laneTarget) error {
	if err := of.Cancel(ctx, of.lane, of.call); err != nil {
		return err
	}
	return c.done(p, of, laneDone{CallID: of.call}, "skips call "+string(of.call)+": it ends cancelled as soon as a worker holds the lane")
}

func (c *laneCommand) kill(ctx context.Context, p program, of laneTarget) error {
	killed, err := of.CancelRunning(ctx, of.lane)
	if err != nil {
		return err
	}
	ids := make([]string, len(killed))
	for i, run := range killed {
		ids[i] = string(run.CallID)
	}
	return c.done(p, of, laneDone{Killed: killed}, "cancels these calls: "+strings.Join(ids, " "))
}

// printJSON prints one value on one line.
func printJSON(p program, value any) error {
	encoder := json.NewEncoder(terminal.JSONWriter(p.Stdout))
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
