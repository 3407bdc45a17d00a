package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/dispatch"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/serve"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type submitCommand struct {
	existingFleet `group:"Fleet:"`

	Model  string `placeholder:"M" help:"Model that a coordinator serves. Default: the default model of the coordinator that runs the turn."`
	Detach bool   `help:"Return when the turn is accepted, and print the session's id: session attach shows it, session pull brings the workspace back."`

	turnFlags
	policyFlags `group:"Policy:"`
}

func (c *submitCommand) run(ctx context.Context, p program) (err error) {
	if err := c.readPrompt(p); err != nil {
		return err
	}
	sessions := sessionCommand{Nats: c.Nats, Login: c.Login, Pools: c.Pools, Fleet: c.Fleet}
	if c.Session, err = sessions.continued(ctx, p, c.Session, ""); err != nil {
		return err
	}
	turn, err := c.check()
	if err != nil {
		return err
	}
	if err := c.templateFlag.check(c.Nats, c.Workspace); err != nil {
		return err
	}
	if _, err := openTools(c.Toolset, nil, nil); err != nil {
		return err
	}
	policies, err := c.encoded()
	if err != nil {
		return err
	}
	c.fleet = true
	show, err := newView(p, &c.viewFlags)
	if err != nil {
		return err
	}
	defer show.screen.Close()
	if c.Workspace != "" && !c.Detach {
		show.screen.Hold()
	}
	logger := p.common.LoggerTo(show.screen)
	end, err := p.Telemetry(ctx, "toolfleet-client", telemetry.Options{Logger: logger})
	if err != nil {
		return err
	}
	defer end()
	ctx, ended := spanOf(ctx, "submit")
	defer func() { ended(err) }()
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	fl, err := c.connect(ctx, "submit "+string(turn.session), logger, natsio.CallRights(protocol.Fleet(c.Fleet), protocol.SessionPool))
	if err != nil {
		return err
	}
	defer fl.Close()
	limited, done := within(ctx, c.Timeout)
	defer done()
	if err := c.served(limited, fl); err != nil {
		return overLimit(limited, err)
	}
	project, err := c.project(turn.workspace, show.warn)
	if err != nil {
		return err
	}
	if err := c.begin(limited, fl, turn.session); err != nil {
		return overLimit(limited, err)
	}
	git := watchGit(ctx, turn.workspace, show.alert)
	var remote *remoteWorkspace
	if turn.workspace != "" {
		if remote, err = c.importWorkspace(limited, fl, turn.session, turn.workspace, turn.protect, c.copyFlags, show); err != nil {
			return overLimit(limited, err)
		}
		remote.hurry = c.Timeout > 0
	}
	call := c.call(turn, policies, project, author(ctx, turn.workspace))
	if c.Detach {
		return overLimit(limited, c.leave(limited, p, fl, call, turn.workspace))
	}
	answers := newAnswers(p, fl, at(c.Nats, c.Login, c.Fleet), turn.session, show)
	defer answers.close()
	result, err := c.follow(ctx, fl, call, show, answers)
	if remote != nil {
		err = errors.Join(err, remote.sync(context.WithoutCancel(ctx), show))
	}
	return finish(ctx, show, turn.session, result, err, git)
}

// served refuses a model that no coordinator serves, before anything is sent. Without a
// coordinator, or the right to ask, the turn waits.
func (c *submitCommand) served(ctx context.Context, fl *fleet.Fleet) error {
	err := fl.CheckRights(ctx, natsio.WorkersRights(fl.Name, protocol.SessionPool))
	if errors.Is(err, natsio.ErrRights) {
		return nil
	}
	if err != nil {
		return err
	}
	if why := dispatch.Unserved(ctx, fl.NC, fl.Name, c.Model); why != "" {
		return cli.Usagef("--model %s: %s", c.Model, why)
	}
	return nil
}

// call asks for the turn.
func (c *submitCommand) call(turn checked, policies []json.RawMessage, project []protocol.InstructionFile, who protocol.Author) protocol.Call {
	return serve.NewCall(turn.session, protocol.TurnRun{
		Prompt: c.Prompt, Model: c.Model, Toolsets: c.Toolset, MaxSteps: c.MaxSteps, MaxTokens: c.MaxTokens,
		Policies: policies, Guard: c.guard(),
		Temperature: turn.settings.Temperature, Reasoning: turn.settings.Effort, MaxOutput: turn.settings.MaxOutput,
		System: turn.system, Project: project, Author: who,
	}, c.Timeout)
}

// follow has the turn run and shows its events, not those of the session's other turns: live ones
// as they come, and with
// --json those of the journal when it has ended, because none of them may be missing.
func (c *submitCommand) follow(ctx context.Context, fl *fleet.Fleet, call protocol.Call, show view, answers *answers) (loop.TurnResult, error) {
	live := &liveTurn{show: show.observe}
	waits := time.AfterFunc(waitNotice, func() {
		show.warn(fmt.Sprintf("the turn has waited %s: no coordinator serves or is free (coordinator serve), or an earlier turn of the session still runs (coordinator lane ls --pool %s)",
			waitNotice, protocol.SessionPool))
	})
	defer waits.Stop()
	show.screen.Waits("waiting for a coordinator")
	silent, err := show.output(fl, call.SessionID)
	if err != nil {
		return loop.TurnResult{Outcome: loop.OutcomeFailed}, err
	}
	defer silent()
	watch, err := dispatch.NewResults(fl.NC, fl.Name, nil).Watch(ctx, call.SessionID, func(*protocol.Result) {}, func(f *wire.Frame) {
		if f.CallID != call.ID {
			return
		}
		waits.Stop()
		var e loop.Event
		if f.Kind != wire.FrameEvent || json.Unmarshal(f.Data, &e) != nil {
			return
		}
		answers.observe(ctx, e)
		if !c.JSON { // which prints what is journaled
			live.observe(e)
		}
	})
	if err != nil {
		return loop.TurnResult{Outcome: loop.OutcomeFailed}, err
	}
	defer watch.Stop()
	limited, done := ctx, func() {}
	if c.Timeout > 0 { // the coordinator's limit comes first, and says more
		limited, done = within(ctx, c.Timeout+answerWithin)
	}
	defer done()
	result, err := fl.Dispatcher.Told(limited, &call, func(waits string) { show.warn("the turn waits: " + waits) })
	over := ctx.Err() == nil && limited.Err() != nil
	if over && (err != nil || result.Status == protocol.StatusOutcomeUnknown || result.Status == protocol.StatusCancelled) {
		limit := loop.TimeLimit(c.Timeout)
		limit.Message += "; the fleet did not answer in time, so the turn may go on (coordinator session show)"
		return loop.TurnResult{Outcome: loop.OutcomeLimitReached, Error: limit}, nil
	}
	if err != nil {
		return loop.TurnResult{Outcome: loop.OutcomeFailed}, err
	}
	turn := turnResult(result)
	if !c.JSON {
		turn.TraceID = live.complete(context.WithoutCancel(ctx), turn)
		return turn, nil
	}
	history, err := fl.Journal.Load(context.WithoutCancel(ctx), call.SessionID)
	if err != nil {
		return turn, err
	}
	for _, e := range turnOf(history.Events, call.ID) {
		turn.TraceID = cmp.Or(turn.TraceID, e.TraceID)
		show.observe(e)
	}
	return turn, nil
}

// answerWithin is how long the fleet may take to say that a turn has reached its limit.
const answerWithin = 3 * time.Second

// within is ctx with a limit of time; 0 is none.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, limit, loop.TimeLimit(limit))
}

// overLimit is an error, which has an exit code of its own once the time limit of ctx is over.
func overLimit(ctx context.Context, err error) error {
	if err == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	return &cli.ExitError{Code: cli.ExitLimit, Message: fmt.Sprintf("%v: %v", context.Cause(ctx), err)}
}

// turnOf returns the events of the turn that a call asked for, with the session's beginning if it
// is the first one.
func turnOf(events []loop.Event, id protocol.CallID) []loop.Event {
	begin := slices.IndexFunc(events, func(e loop.Event) bool { return e.Type == loop.EventTurnStarted && e.CallID == id })
	if begin < 0 { // it was refused
		return nil
	}
	length := slices.IndexFunc(events[begin:], func(e loop.Event) bool { return e.Type == loop.EventTurnEnded }) + 1
	if length == 0 { // it is open
		length = len(events) - begin
	}
	end := begin + length
	if begin == 1 {
		begin = 0
	}
	return events[begin:end]
}

// turnResult reads the outcome of a turn from its call's result.
func turnResult(r *protocol.Result) loop.TurnResult {
	value, ok := r.Value.(protocol.TurnRunResult)
	t := loop.TurnResult{Outcome: loop.Outcome(value.Outcome), Text: value.Text, Steps: value.Steps, Usage: value.Usage, Error: r.Error}
	switch known := ok && t.Outcome != ""; {
	case r.Status == protocol.StatusTimeout: // before the turn began
		t.Outcome = loop.OutcomeLimitReached
	case !known && r.Status == protocol.StatusCancelled:
		t.Outcome = loop.OutcomeInterrupted
	case !known:
		t.Outcome = loop.OutcomeFailed
	}
	return t
}
