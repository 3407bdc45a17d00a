package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/system/moment"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/terminal/prompt"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type submitCommand struct {
	environment.ExistingFleet `group:"Fleet:"`
	cli.Tracing               `group:"Fleet:"`

	Model  string `placeholder:"M" help:"Model that a coordinator serves. Default: the default model of the coordinator that runs the turn."`
	Detach bool   `help:"Return when the turn is accepted, and print the session's id: session attach shows it, session pull copies the workspace back."`

	NotBefore moment.Moment `placeholder:"WHEN" brief:"Earliest start: a time, or a duration from now." help:"Earliest start: a time such as 2026-12-01T07:00:00+01:00, or a duration from now such as 90m. Until then the turn waits in the fleet, and delays no other turn of the session. --timeout begins then."`

	turnFlags
}

func (c *submitCommand) run(ctx context.Context, p program) (err error) {
	if err := c.readPrompt(p); err != nil {
		return err
	}
	if ctx, err = c.share(ctx, c.Nats); err != nil {
		return err
	}
	turn, policies, err := c.prepare(ctx, p)
	if err != nil {
		return err
	}
	c.fleet = true
	show, err := newView(p, &c.viewFlags)
	if err != nil {
		return err
	}
	defer show.screen.Close()
	if !c.Detach {
		show.screen.DeferChanges()
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	logger := p.common.LoggerTo(show.screen)
	ctx, env, err := environment.Open(ctx, environment.Options{
		Process: environment.Process{Program: p.Program, Logger: logger, Service: "toolfleet-client", Span: "submit", Client: "coordinator submit " + string(turn.session)},
		Flags:   &environment.Flags{FleetFlags: c.where()}, Session: &c.SessionFlags,
		ID: turn.session, Workspace: turn.workspace, Template: &c.TemplateFlag, Warn: show.warn, Alert: show.alert, Busy: show.busy,
		Existing: &c.ExistingFleet,
	})
	if err != nil {
		return err
	}
	defer func() { env.Close(err) }()
	all := env.Client.Sessions("")
	limited, done := within(ctx, c.Timeout)
	defer done()
	switch err := all.CheckModel(limited, c.Model); {
	case errors.Is(err, fleet.ErrInvalid):
		return cli.Usagef("--%v", err)
	case err != nil:
		return overLimit(limited, err)
	}
	project, err := c.project(turn.workspace, show.warn)
	if err != nil {
		return err
	}
	if err := env.Begin(limited, c.Timeout > 0); err != nil {
		return overLimit(limited, err)
	}
	request := c.request(turn, policies, project, environment.Author(ctx, turn.workspace))
	if c.Detach {
		return overLimit(limited, c.leave(limited, p, all, request, turn.workspace))
	}
	flags := c.Reach()
	answers := prompt.NewAnswers(prompt.New(p.Stdin, show.screen, prompt.StoredFiles(env.Client, turn.session)), env.Client, flags, show.warn)
	defer answers.Close()
	result, err := c.follow(ctx, env.Client, request, show, answers)
	err = errors.Join(err, bringBack(context.WithoutCancel(ctx), env.Copy, show))
	if env.Copy == nil {
		show.stored(context.WithoutCancel(ctx), env.Client, turn.session)
	}
	return finish(ctx, show, turn.session, result, err, env.Git, "")
}

// where returns the flags of the fleet.
func (c *submitCommand) where() environment.FleetFlags {
	return environment.FleetFlags{Nats: c.Nats, Connection: c.Connection, Tracing: c.Tracing}
}

// prepare finds the session, checks the flags, and encodes the policies of the turn.
func (c *submitCommand) prepare(ctx context.Context, p program) (turn checked, policies []json.RawMessage, err error) {
	where := c.where()
	session, err := findSession(ctx, p, &where, &c.Session)
	if err != nil {
		return turn, nil, err
	}
	if turn, err = c.check(session, nil); err != nil {
		return turn, nil, err
	}
	if err := c.CheckTemplate(c.Nats, c.Workspace); err != nil {
		return turn, nil, err
	}
	if _, err := (environment.ToolFlags{}).OpenToolbox(c.Toolset, nil); err != nil {
		return turn, nil, err
	}
	policies, err = c.Encoded()
	return turn, policies, err
}

// request is the turn that is asked for.
func (c *submitCommand) request(turn checked, policies []json.RawMessage, project []protocol.InstructionFile, who protocol.Author) fleet.Turn {
	return fleet.Turn{
		Session: turn.session, ID: wire.RandomCallID(), Prompt: c.Prompt, Attachments: turn.attachments, AnswerSchema: turn.schema, Model: c.Model, Toolsets: c.Toolset,
		MaxSteps: c.MaxSteps, MaxTokens: c.MaxTokens, Timeout: c.Timeout, Budget: turn.budget, PromoteAfter: c.PromoteAfter, Policies: policies, Guard: c.FileGuard(),
		Settings: turn.settings, System: turn.system, Project: project, Author: who,
		NotBefore: c.NotBefore.After(time.Now()), Tenant: protocol.Tenant(c.Tenant), Priority: protocol.Priority(c.Priority),
	}
}

// follow sends the turn and shows its events: live ones as they come, and with --json those of the
// journal when it has ended, because none of them may be missing.
func (c *submitCommand) follow(ctx context.Context, client *fleet.Client, turn fleet.Turn, show view, answers *prompt.Answers) (loop.TurnResult, error) {
	all, live, delay := client.Sessions(""), &liveTurn{show: show.observe}, max(time.Until(turn.NotBefore), 0)
	waits := time.AfterFunc(delay+waitNotice, func() {
		show.warn(fmt.Sprintf("the turn has waited %s: every coordinator is busy, or an earlier turn of the session still runs (coordinator lane ls%s --pool %s)",
			waitNotice, c.Reach(), protocol.SessionPool))
	})
	defer waits.Stop()
	show.screen.Waits(cmp.Or(untilThen(turn.NotBefore), "waiting for a coordinator"))
	silent, err := show.output(ctx, client, turn.Session)
	if err != nil {
		return loop.TurnResult{Outcome: loop.OutcomeFailed}, err
	}
	defer silent()
	limited, done := ctx, func() {}
	if c.Timeout > 0 { // the coordinator's limit comes first, and says more
		limited, done = within(ctx, delay+c.Timeout+answerWithin)
	}
	defer done()
	result, err := all.Run(limited, turn, func(e loop.Event) {
		if e.Type == loop.EventToolQueued && e.CallID == turn.ID {
			waits.Stop()
			show.warn("the turn waits: " + e.Text)
			return
		}
		waits.Stop()
		answers.Observe(ctx, e)
		if !c.JSON { // which prints what is journaled
			live.observe(e)
		}
	})
	over := ctx.Err() == nil && limited.Err() != nil
	unknown := result.Outcome == loop.OutcomeInterrupted || result.Error != nil && result.Error.Code == protocol.CodeOutcomeUnknown
	if over && (err != nil || unknown) {
		limit := codes.TimeLimit(c.Timeout)
		limit.Message += "; the fleet did not answer in time, so the turn may continue (coordinator session show" + c.Reach() + " " + string(turn.Session) + ")"
		return loop.TurnResult{Outcome: loop.OutcomeLimitReached, Error: limit}, nil
	}
	if err != nil {
		return result, wrong(err)
	}
	if !c.JSON {
		result.TraceID = live.complete(result)
		return result, nil
	}
	history, err := all.Log(context.WithoutCancel(ctx), turn.Session)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return result, err
	}
	for _, e := range turnOf(history.Events, turn.ID) {
		result.TraceID = cmp.Or(result.TraceID, e.TraceID)
		show.observe(e)
	}
	return result, nil
}

// wrong makes an error about an invalid turn a usage error: other flags are checked before.
func wrong(err error) error {
	if errors.Is(err, protocol.ErrInvalidCall) {
		return cli.Usagef("--not-before: %v", err)
	}
	return err
}

// untilThen says that something waits for a time; "" when it does not.
func untilThen(at time.Time) string {
	if time.Until(at) <= 0 {
		return ""
	}
	return "waiting until " + at.Local().Format(time.DateTime)
}

// answerWithin is how long the fleet may take to report that a turn has reached its limit.
const answerWithin = 3 * time.Second

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

// detached is what submit --detach prints with --json.
type detached struct {
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id"`
	TraceID   string             `json:"trace_id,omitempty"` // when this process exports traces
}

// leave sends the turn, and prints how to follow it.
func (c *submitCommand) leave(ctx context.Context, p program, all fleet.Sessions, turn fleet.Turn, workspace string) error {
	sent, err := all.Submit(ctx, turn)
	if err != nil {
		return fmt.Errorf("the turn was not accepted: %w", wrong(err))
	}
	where := c.Reach()
	_, _ = fmt.Fprintf(p.Stderr, "coordinator: follow it with: coordinator session attach%s %s\n", where, sent.SessionID)
	if workspace != "" {
		_, _ = fmt.Fprintf(p.Stderr, "coordinator: copy its changes back with: coordinator session pull%s %s %s\n", where, sent.SessionID, cli.ShellWord(workspace))
	}
	if c.JSON {
		return printJSON(p, detached{sent.SessionID, sent.ID, telemetry.TraceID(ctx)})
	}
	_, err = fmt.Fprintln(p.Stdout, sent.SessionID)
	return err
}

// liveTurn shows a turn that runs elsewhere by its live events. Some of them may be lost: with a
// connection, or with a coordinator that has journaled them before it died.
type liveTurn struct {
	show func(loop.Event)

	mu    sync.Mutex // events come from another goroutine
	last  loop.Event // the last one of the turn
	reply string     // the text of the last reply, and of what it goes on with
	cut   bool       // that reply was cut, and has no tool calls

	traceID string
}

// observe shows an event.
func (l *liveTurn) observe(e loop.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.show(e)
	l.last = e
	switch e.Type {
	case loop.EventTurnStarted: // one that was open may have come before
		l.reply, l.cut, l.traceID = "", false, e.TraceID
	case loop.EventModelReply:
		if !l.cut {
			l.reply = ""
		}
		l.reply += e.Text
		l.cut = e.Finish == loop.FinishLength && len(e.ToolCalls) == 0
	default:
	}
}

// complete shows the answer if its event was lost, and returns the turn's trace.
func (l *liveTurn) complete(r loop.TurnResult) (traceID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Outcome == loop.OutcomeAnswered && l.reply != r.Text {
		l.show(loop.Event{Type: loop.EventModelReply, SessionID: l.last.SessionID, Turn: l.last.Turn, Step: r.Steps, Text: r.Text})
	}
	return l.traceID
}
