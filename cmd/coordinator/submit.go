package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/dispatch"
	"github.com/toolfleet/toolfleet/internal/environment"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/prompt"
	"github.com/toolfleet/toolfleet/internal/serve"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type submitCommand struct {
	environment.ExistingFleet `group:"Fleet:"`

	Model  string `placeholder:"M" help:"Model that a coordinator serves. Default: the default model of the coordinator that runs the turn."`
	Detach bool   `help:"Return when the turn is accepted, and print the session's id: session attach shows it, session pull brings the workspace back."`

	NotBefore cli.Moment `placeholder:"WHEN" brief:"Earliest start: a time, or a duration from now." help:"Earliest start: a time such as 2026-12-01T07:00:00+01:00, or a duration from now such as 90m. Until then the turn waits in the fleet, and delays no other turn of the session. --timeout begins then."`

	turnFlags
}

func (c *submitCommand) run(ctx context.Context, p program) (err error) {
	if err := c.readPrompt(p); err != nil {
		return err
	}
	if ctx, err = c.share(ctx); err != nil {
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
		show.screen.Hold()
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	logger := p.common.LoggerTo(show.screen)
	ctx, env, err := environment.Open(ctx, environment.Options{
		Process: environment.Process{Program: p.Program, Logger: logger, Service: "toolfleet-client", Span: "submit"}, Flags: &environment.Flags{FleetFlags: c.where()}, Session: &c.SessionFlags,
		ID: turn.session, Workspace: turn.workspace, Template: &c.TemplateFlag, Warn: show.warn, Alert: show.alert, Busy: show.busy,
		Connect: func(ctx context.Context) (*fleet.Fleet, error) {
			return c.Connect(ctx, "submit "+string(turn.session), logger, natsio.CallRights(protocol.Fleet(c.Fleet), protocol.SessionPool))
		},
	})
	if err != nil {
		return err
	}
	defer func() { env.Close(err) }()
	fl := env.Fleet
	limited, done := within(ctx, c.Timeout)
	defer done()
	if err := c.served(limited, fl); err != nil {
		return overLimit(limited, err)
	}
	project, err := c.project(turn.workspace, show.warn)
	if err != nil {
		return err
	}
	if err := env.Begin(limited, c.Timeout > 0); err != nil {
		return overLimit(limited, err)
	}
	call := c.call(turn, policies, project, environment.Author(ctx, turn.workspace))
	call.NotBefore = c.NotBefore.From(time.Now())
	call.Tenant, call.Priority = protocol.Tenant(c.Tenant), protocol.Priority(c.Priority)
	if err := call.Validate(); err != nil {
		return cli.Usagef("--not-before: %v", err)
	}
	if c.Detach {
		return overLimit(limited, c.leave(limited, p, fl, call, turn.workspace))
	}
	flags := flagsOf(c.Nats, c.Login, c.Fleet)
	answers := prompt.NewAnswers(prompt.New(p.Stdin, show.screen, prompt.StoredFiles(fl, turn.session)), fl, flags, show.warn)
	defer answers.Close()
	result, err := c.follow(ctx, fl, call, show, answers)
	err = errors.Join(err, bringBack(context.WithoutCancel(ctx), env.Copy, show))
	if env.Copy == nil {
		show.stored(context.WithoutCancel(ctx), fl, turn.session)
	}
	return finish(ctx, show, turn.session, result, err, env.Git)
}

// where returns the flags of the fleet.
func (c *submitCommand) where() environment.FleetFlags {
	return environment.FleetFlags{Nats: c.Nats, Connection: c.Connection}
}

// prepare finds the session, checks the flags, and encodes the policies of the turn.
func (c *submitCommand) prepare(ctx context.Context, p program) (turn checked, policies []json.RawMessage, err error) {
	where := c.where()
	if c.Session, err = continued(ctx, p, &where, c.Session); err != nil {
		return turn, nil, err
	}
	if turn, err = c.check(nil); err != nil {
		return turn, nil, err
	}
	if err := c.CheckTemplate(c.Nats, c.Workspace); err != nil {
		return turn, nil, err
	}
	if _, err := (environment.ToolFlags{}).OpenToolbox(c.Toolset, nil, nil); err != nil {
		return turn, nil, err
	}
	policies, err = c.Encoded()
	return turn, policies, err
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

// call returns the call that asks for the turn.
func (c *submitCommand) call(turn checked, policies []json.RawMessage, project []protocol.InstructionFile, who protocol.Author) protocol.Call {
	return serve.NewCall(turn.session, wire.TurnRun{
		Prompt: c.Prompt, Model: c.Model, Toolsets: c.Toolset, TurnBounds: wire.TurnBounds{MaxSteps: c.MaxSteps, MaxTokens: c.MaxTokens, Budget: turn.budget, PromoteAfter: protocol.MillisOf(c.PromoteAfter)},
		Policies: policies, Guard: c.FileGuard(),
		ReplySettings: wire.ReplySettings{Temperature: turn.settings.Temperature, Reasoning: turn.settings.Effort, MaxOutput: turn.settings.MaxOutput},
		System:        turn.system, Project: project, Author: who,
	}, c.Timeout)
}

// follow sends the turn and shows its events: live ones as they come, and with --json those of the
// journal when it has ended, because none of them may be missing.
func (c *submitCommand) follow(ctx context.Context, fl *fleet.Fleet, call protocol.Call, show view, answers *prompt.Answers) (loop.TurnResult, error) {
	live := &liveTurn{show: show.observe}
	waits := time.AfterFunc(call.Delay()+waitNotice, func() {
		show.warn(fmt.Sprintf("the turn has waited %s: no coordinator serves or is free (coordinator serve), or an earlier turn of the session still runs (coordinator lane ls --pool %s)",
			waitNotice, protocol.SessionPool))
	})
	defer waits.Stop()
	show.screen.Waits(cmp.Or(untilThen(&call), "waiting for a coordinator"))
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
		answers.Observe(ctx, e)
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
		limited, done = within(ctx, call.Delay()+c.Timeout+answerWithin)
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

// untilThen says that a call waits for its time; "" when it does not.
func untilThen(call *protocol.Call) string {
	if call.Delay() == 0 {
		return ""
	}
	return "waiting until " + call.NotBefore.Local().Format(time.DateTime)
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

// turnResult reads the outcome of a turn from its call's result.
func turnResult(r *protocol.Result) loop.TurnResult {
	value, ok := r.Value.(wire.TurnRunResult)
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

// detached is what submit --detach prints with --json.
type detached struct {
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id"`
	TraceID   string             `json:"trace_id,omitempty"` // when this process exports traces
}

// leave sends the turn, and prints how to follow it.
func (c *submitCommand) leave(ctx context.Context, p program, fl *fleet.Fleet, call protocol.Call, workspace string) error {
	if err := accepted(ctx, fl, call); err != nil {
		return err
	}
	where := flagsOf(c.Nats, c.Login, c.Fleet)
	_, _ = fmt.Fprintf(p.Stderr, "coordinator: follow it with: coordinator session attach%s %s\n", where, call.SessionID)
	if workspace != "" {
		_, _ = fmt.Fprintf(p.Stderr, "coordinator: bring what it changes back with: coordinator session pull%s %s %s\n", where, call.SessionID, shellWord(workspace))
	}
	if c.JSON {
		return printJSON(p, detached{call.SessionID, call.ID, telemetry.TraceID(ctx)})
	}
	_, err := fmt.Fprintln(p.Stdout, call.SessionID)
	return err
}

// accepted sends a call and returns when the fleet has stored it.
func accepted(ctx context.Context, fl *fleet.Fleet, call protocol.Call) error {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	var result *protocol.Result
	err := fl.Dispatcher.Dispatch(ctx, []protocol.Call{call}, func(u loop.Update) {
		result = u.Result
		if u.State != loop.StateDone {
			leave(loop.ErrDetached)
		}
	})
	switch {
	case result != nil && result.Error != nil: // refused, or over already
		return fmt.Errorf("the turn was not accepted: %w", result.Error)
	case errors.Is(err, loop.ErrDetached):
		return nil
	default:
		return err
	}
}

// flagsOf returns the flags by which another command reaches the fleet, quoted for a shell and with
// a space in front. It leaves out a password of the URL.
func flagsOf(nats string, login cli.Login, fleet string) string {
	var flags strings.Builder
	add := func(flag, value string) {
		if value != "" {
			fmt.Fprintf(&flags, " %s %s", flag, shellWord(value))
		}
	}
	add("--nats", natsio.Redact(nats))
	add("--creds", login.Creds)
	add("--tls-ca", login.TLS.CA)
	add("--tls-cert", login.TLS.Cert)
	add("--tls-key", login.TLS.Key)
	if fleet != string(protocol.DefaultFleet) {
		add("--fleet", fleet)
	}
	return flags.String()
}

// liveTurn shows a turn that runs elsewhere by its live events. Some of them may be lost: with a
// connection, or with a coordinator that has journaled them before it died.
type liveTurn struct {
	show func(loop.Event)

	mu    sync.Mutex // events come from another goroutine
	last  loop.Event // the last one of the turn
	reply string     // the text of the last reply, and of what it goes on with
	cut   bool       // that reply was cut, and has no tool calls
	ended bool

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
		l.reply, l.cut, l.ended, l.traceID = "", false, false, e.TraceID
	case loop.EventModelReply:
		if !l.cut {
			l.reply = ""
		}
		l.reply += e.Text
		l.cut = e.Finish == loop.FinishLength && len(e.ToolCalls) == 0
	case loop.EventTurnEnded:
		l.ended = true
	default:
	}
}

const (
	// lastEvents is how long the live events of a turn may come after its result.
	lastEvents = time.Second
	// lastLook is the time between two checks.
	lastLook = 5 * time.Millisecond
)

// complete waits for the last events, which may come a moment after the result, and shows the
// answer if its event was lost. It returns the turn's trace.
func (l *liveTurn) complete(ctx context.Context, r loop.TurnResult) (traceID string) {
	ctx, cancel := context.WithTimeout(ctx, lastEvents)
	defer cancel()
	for !l.over() {
		if !pause.For(ctx, lastLook) {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Outcome == loop.OutcomeAnswered && l.reply != r.Text {
		l.show(loop.Event{Type: loop.EventModelReply, SessionID: l.last.SessionID, Turn: l.last.Turn, Step: r.Steps, Text: r.Text})
	}
	return l.traceID
}

func (l *liveTurn) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}
