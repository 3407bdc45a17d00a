package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
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
		"pause": verb(&c.Pause, c.change(fleet.Lanes.Pause, func(d *laneDone) **bool { return &d.Confirmed },
			"is paused", "is paused, but its holder does not answer, and may start calls until its lease ends")),
		"resume": verb(&c.Resume, c.change(fleet.Lanes.Resume, func(d *laneDone) **bool { return &d.WasPaused }, "is resumed", "was not paused")),
		"wake":   verb(&c.Wake, c.change(fleet.Lanes.Wake, func(d *laneDone) **bool { return &d.MadeReady }, "is ready now", "was ready or held already")),
		"ls":     verb(nil, c.list), "show": verb(&c.Show.laneArg, c.show), "skip": verb(&c.Skip.laneArg, c.skip), "kill": verb(&c.Kill, c.kill),
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
	columns := "LANE\tPOOL\tSTATE\tWAITING\tOLDEST\tHOLDER\tHELD\tRUNNING"
	return printList(p, c.JSON, list.Lanes, "no lane has calls, a holder or a pause", columns, func(l *report.Lane) []any {
		name := prose.OneLine(terminal.LaneName(l.Lane, l.Hash))
		return []any{name, l.Pool, l.State, l.Waiting, age(l.OldestMS), orDash(string(l.Holder)), age(l.HeldMS), running(l.Running)}
	})
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

// change is a verb that changes a lane, and says which of two things was so.
func (c *laneCommand) change(
	act func(fleet.Lanes, context.Context, protocol.Lane) (bool, error), field func(*laneDone) **bool, yes, no string,
) func(context.Context, program, laneTarget) error {
	return func(ctx context.Context, p program, of laneTarget) error {
		is, err := act(of.Lanes, ctx, of.lane)
		if err != nil {
			return err
		}
		done := laneDone{}
		*field(&done) = &is
		if !is {
			return c.done(p, of, done, no)
		}
		return c.done(p, of, done, yes)
	}
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

// printLane prints a lane and a table of its calls.
func printLane(w io.Writer, v *report.LaneCalls) error {
	_, _ = fmt.Fprintf(w, "lane %s, pool %s: %s", prose.OneLine(string(v.Lane.Lane)), v.Pool, v.State) // Flush tells of errors
	switch {
	case v.SilentMS > 0:
		_, _ = fmt.Fprintf(w, ", held by %s, which has sent no heartbeat for %s", v.Holder, age(v.SilentMS))
	case v.Holder != "":
		_, _ = fmt.Fprintf(w, ", held by %s for %s", v.Holder, age(v.HeldMS))
	}
	_, _ = fmt.Fprintf(w, ", %d running, %d waiting", len(v.Running), v.Waiting)
	if v.Delayed > 0 {
		_, _ = fmt.Fprintf(w, ", %d delayed", v.Delayed)
	}
	if v.WaitsFor != "" {
		_, _ = fmt.Fprintf(w, "; the next call waits for: %s", prose.OneLine(v.WaitsFor))
	}
	_, _ = fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(v.Calls) > 0 {
		_, _ = fmt.Fprintln(table, "CALL\tTOOL\tSESSION\tSTATE\tACCEPTED\tAGE\tATTEMPT\tSTARTS\tRESOURCES")
	}
	for _, c := range v.Calls {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			c.CallID, orDash(prose.OneLine(c.Tool)), c.SessionID, state(c), c.AcceptedAt.UTC().Format(time.RFC3339), age(c.AgeMS),
			attempt(c), starts(c.Starts), resources(c))
	}
	for i := range v.Calls {
		if c := &v.Calls[i]; c.WaitsFor != "" {
			_, _ = fmt.Fprintln(table, waitsFor(c))
		}
	}
	return table.Flush()
}

func state(c report.Call) string {
	if !c.NotBefore.IsZero() {
		return c.State + " until " + c.NotBefore.UTC().Format(time.RFC3339)
	}
	return c.State
}

func attempt(c report.Call) string {
	if c.Attempt == 0 {
		return "-"
	}
	return fmt.Sprintf("%d (%s)", c.Attempt, age(c.RunningMS))
}

func starts(marks []report.Start) string {
	words := make([]string, len(marks))
	for i, mark := range marks {
		words[i] = fmt.Sprintf("%d by %s", mark.Attempt, prose.OneLine(string(mark.WorkerID)))
	}
	return orDash(strings.Join(words, ", "))
}

// shownUses bounds the resources of a call in a table.
const shownUses = 3

func resources(c report.Call) string {
	if c.Fault != "" {
		return "(not readable: " + prose.OneLine(c.Fault) + ")"
	}
	words := make([]string, 0, len(c.Resources))
	for i, use := range c.Resources {
		if i == shownUses {
			words = append(words, fmt.Sprintf("and %d more", len(c.Resources)-i))
			break
		}
		words = append(words, string(use.Access)+" "+prose.OneLine(string(use.Key)))
	}
	return strings.Join(words, ", ")
}

// running names the call that has been running longest.
func running(calls []report.RunningCall) string {
	if len(calls) == 0 {
		return "-"
	}
	first := calls[0]
	name := prose.OneLine(terminal.ToolName(first.Tool))
	if name == "" {
		name = string(first.CallID)
	}
	text := fmt.Sprintf("%s (attempt %d, %s)", name, first.Attempt, age(first.RunningMS))
	if more := len(calls) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// age formats a duration in milliseconds.
func age(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return terminal.Millis(float64(ms))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// waitsFor is a sentence about a call that waits for a worker that meets its requirements.
func waitsFor(c *report.Call) string {
	return fmt.Sprintf("%s, call %s, waits for: %s", prose.OneLine(c.Tool), c.CallID, prose.OneLine(c.WaitsFor))
}
