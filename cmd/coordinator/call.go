package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/system/moment"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/terminal/prompt"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type callCommand struct {
	Tool      string   `arg:"" optional:"" help:"Name of the tool."`
	Arguments string   `arg:"" optional:"" help:"Arguments as a JSON object, or - to read them from stdin. Default: {}."`
	Workspace string   `placeholder:"DIR" brief:"Working directory. Default: the current one." help:"Working directory. Without --nats it is used in place. With --nats the session works on a copy, and changes are copied back. Default: as for run."`
	WholeHome bool     `group:"Workspace:" help:"Allow --workspace to be the root directory or the home directory."`
	Session   string   `placeholder:"ID" help:"Session whose sandbox the call uses. Default: a new session, which is removed after the call."`
	Toolset   []string `default:"core" help:"Toolsets to look for the tool in, separated by commas."`

	sendFlags
	batchFlags

	shareFlags               `group:"Fleet:"`
	hookFlag                 `group:"Policy:"`
	environment.TemplateFlag `group:"Workspace:"`
	environment.SessionFlags
	environment.Flags

	asks *prompt.Prompt // the person at this terminal; nil until a question may be asked
}

// sendFlags say when a call runs, and how often.
type sendFlags struct {
	Timeout   time.Duration `default:"0s" brief:"Time limit of the call; 0 means unlimited." help:"Time limit of the call, including its wait; 0 means unlimited."`
	ID        string        `name:"id" placeholder:"ID" brief:"Own id of the call, so that sending it again does not run it again." help:"Own id of the call, of letters, digits, - and _. With the same --session and --id the call runs once: sending it again returns the first result, as long as results are kept. With another tool or other arguments it is rejected, as id_reused."`
	NotBefore moment.Moment `placeholder:"WHEN" brief:"Earliest start: a time, or a duration from now." help:"Earliest start: a time such as 2026-12-01T07:00:00+01:00, or a duration from now such as 90m. Until then the call waits in the fleet, and delays no other call. --timeout begins then."`
}

// batchFlags are about calls from a file.
type batchFlags struct {
	Batch   string `placeholder:"FILE" brief:"Make the calls of the file, a JSON object in each line." help:"Make the calls of the file, or of stdin with -, concurrently as far as their resources allow: in each line a JSON object with tool, arguments and, with --session, id. Results are printed as JSON lines, with the number of their line, as they end. A bad line is an error before any call is sent."`
	Ordered bool   `help:"Print the results of --batch in the order of the lines."`
}

// callRun is which worker ran a call, and how long it took.
type callRun struct {
	WorkerID protocol.WorkerID `json:"worker_id,omitempty"`
	Attempt  int               `json:"attempt,omitempty"`
	Tries    []protocol.Try    `json:"tries,omitempty"`
	Level    string            `json:"level,omitempty"`
	QueueMS  float64           `json:"queue_ms"`
	RunMS    float64           `json:"run_ms"`
	Waits    protocol.Waits    `json:"waits,omitzero"`
}

// callOutput is the JSON object that a call prints.
type callOutput struct {
	Line      int                `json:"line,omitempty"` // of a batch, from 1
	Status    protocol.Status    `json:"status"`
	Content   string             `json:"content"`
	Result    json.RawMessage    `json:"result,omitempty"`
	Error     *protocol.Error    `json:"error,omitempty"`
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id,omitempty"`
	Name      string             `json:"name,omitempty"`
	callRun
	TraceID string `json:"trace_id,omitempty"` // when this process exports traces
}

// planning is what calls are planned with.
type planning struct {
	session   protocol.SessionID
	workspace string // absolute path; "" is an empty one
	box       *environment.Toolbox
	options   loop.SingleOptions
}

// judgedInFleet reports whether calls are judged once the fleet is there, because the journal of
// the session has the calls before them, and gets what is decided.
func (c *callCommand) judgedInFleet(with planning) bool { return c.Session != "" && with.judges() }

// judges reports whether something decides about calls.
func (p *planning) judges() bool { return p.options.Policy != nil || len(p.options.Hooks) > 0 }

// prepare checks the flags and opens what they name; it connects to nothing.
func (c *callCommand) prepare(ctx context.Context, p program) (with planning, err error) {
	if with.session, err = findSession(ctx, p, &c.FleetFlags, &c.Session); err != nil {
		return with, err
	}
	if c.Workspace, err = c.ReportWorkspace(c.Workspace, c.Session, p.warn); err != nil {
		return with, err
	}
	if with.workspace, err = environment.UseWorkspace(c.Workspace, c.WholeHome, nil); err != nil {
		return with, err
	}
	if c.Timeout < 0 {
		return with, cli.Usagef("--timeout %s: must not be negative", c.Timeout)
	}
	if err := c.checkBatch(); err != nil {
		return with, err
	}
	if c.ID != "" && c.Session == "" {
		return with, cli.Usagef("--id %s: needs --session, because ids are those of a session", c.ID)
	}
	if c.ID != "" {
		if _, err := protocol.ParseCallID(c.ID); err != nil {
			return with, cli.Usagef("--id: %v", err)
		}
	}
	if err := c.CheckTemplate(c.Nats, c.Workspace); err != nil {
		return with, err
	}
	with.options = loop.SingleOptions{
		Guard: c.FileGuard(), MinLevel: c.DefaultMinLevel(), Logger: p.logger(), Ledger: loop.NewLedger(nil), Interface: "call", By: prompt.UserName(),
	}
	if c.Nats != "" {
		with.options.Author = environment.Author(ctx, with.workspace)
	}
	if with.options.Hooks, err = c.hooks(with.workspace); err != nil {
		return with, err
	}
	with.box, with.options.Policy, err = environment.OpenTools(&c.Flags, &c.SessionFlags, with.session, c.Toolset, p.warn)
	return with, err
}

func (c *callCommand) run(ctx context.Context, p program) error {
	with, err := c.prepare(ctx, p)
	if err != nil {
		return err
	}
	arguments := c.Arguments
	if arguments == "-" {
		content, err := io.ReadAll(p.Stdin)
		if err != nil {
			return fmt.Errorf("read arguments: %w", err)
		}
		arguments = string(content)
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	if c.Batch != "" {
		return c.runBatch(ctx, p, with)
	}
	output, err := c.call(ctx, p, with, arguments)
	if err != nil {
		return err
	}
	return output.print(p)
}

// print prints the output. It returns an error for the exit code of a call that is not ok.
func (o *callOutput) print(p program) error {
	if err := printJSON(p, o); err != nil {
		return err
	}
	if o.Status != protocol.StatusOK {
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

// call plans the tool call and runs it, inline or in the fleet.
func (c *callCommand) call(ctx context.Context, p program, with planning, arguments string) (*callOutput, error) {
	show, err := newView(p, &viewFlags{JSON: true})
	if err != nil {
		return nil, err
	}
	box, options := with.box, &with.options
	options.ID = protocol.CallID(c.ID)
	output := &callOutput{SessionID: with.session, Name: c.Tool}
	ofServer := box.OnlyServerOf(c.Tool)
	if with.judges() || ofServer {
		shown := with.workspace
		if c.Nats != "" {
			shown = ""
		}
		c.asks = prompt.New(p.Stdin, show.screen, prompt.FilesOf(shown))
	}
	if c.asks != nil && with.judges() {
		options.Approve = c.asks.Approve
	}
	var single *loop.Single
	plan := func(ctx context.Context, table *tools.Table) *protocol.Call {
		single = loop.PlanSingle(ctx, table, with.session, c.Tool, arguments, options)
		return single.Call
	}
	inside := ofServer || c.judgedInFleet(with)
	if !inside && plan(ctx, box.Table) == nil {
		return output, output.take(single)
	}
	var result *protocol.Result
	err = c.inFleet(ctx, p, with.session, with.workspace, func(ctx context.Context, env *environment.Environment, show view) (call *protocol.Call, err error) {
		output.TraceID = telemetry.TraceID(ctx)
		if ofServer {
			if err := box.List(ctx, env.Fleet, with.session, show.warn); err != nil {
				return nil, err
			}
		}
		if inside {
			if c.Session != "" {
				options.Ledger = loop.NewLedger(env.Fleet.Journal)
			}
			plan(ctx, box.Table)
		}
		if single.Call == nil {
			return nil, nil //nolint:nilnil // it has run, or was refused
		}
		if err := c.bind(single.Call); err != nil {
			return nil, err
		}
		if until := untilThen(single.Call.NotBefore); until != "" {
			show.warn(c.Tool + ": " + until)
		}
		result, err = c.observed(ctx, env, single.Call, show)
		return single.Call, err
	})
	if err != nil {
		return nil, err
	}
	if result == nil {
		return output, output.take(single)
	}
	return output, output.take(single.Finish(ctx, result))
}

func (o *callOutput) take(outcome *loop.Single) error {
	o.Status, o.Error, o.Content = outcome.Status, outcome.Error, outcome.Text
	r := outcome.Result
	if r == nil {
		return nil
	}
	o.CallID, o.WorkerID, o.Attempt, o.Level = r.CallID, r.WorkerID, r.Attempt, r.Level
	o.Tries, o.QueueMS, o.RunMS, o.Waits = r.Tries, r.QueueMS, r.RunMS, r.Waits
	if r.Value == nil {
		return nil
	}
	var err error
	o.Result, err = wire.EncodeValue(r.Value)
	return err
}

// bind sets when a call starts at the earliest, and when it has to end.
func (c *callCommand) bind(call *protocol.Call) error {
	call.NotBefore = c.NotBefore.After(time.Now())
	if c.Timeout > 0 {
		call.Deadline = call.IssuedAt.Add(call.Delay() + c.Timeout)
	}
	if fault := call.Validate(); fault != nil && call.Delay() > 0 {
		return cli.Usagef("--not-before: %v", fault)
	}
	return nil
}

// inFleet opens the fleet, or one of its own, with the workspace, and calls do, which returns one
// of the calls that it made; nil if it made none.
func (c *callCommand) inFleet(
	ctx context.Context, p program, session protocol.SessionID, workspace string,
	do func(context.Context, *environment.Environment, view) (*protocol.Call, error),
) (err error) {
	show, err := newView(p, &viewFlags{JSON: true})
	if err != nil {
		return err
	}
	defer show.screen.Close()
	if ctx, err = c.share(ctx, c.Nats); err != nil {
		return err
	}
	ctx, env, err := environment.Open(ctx, environment.Options{
		Process: environment.Process{Program: p.Program, Logger: p.logger(), Client: strings.TrimSpace("coordinator call " + c.Tool), Span: "call"},
		Flags:   &c.Flags, Session: &c.SessionFlags,
		ID: session, Workspace: workspace, Template: &c.TemplateFlag, Temporary: c.Session == "", Warn: show.warn, Alert: show.alert, Busy: show.busy,
	})
	if err != nil {
		return err
	}
	defer func() { env.Close(err) }()
	if c.Session != "" {
		if err := env.Fleet.Journal.CheckCall(ctx, session); err != nil {
			return err
		}
	}
	limited, done := within(ctx, c.Timeout)
	defer done()
	if err := env.Begin(limited, c.Timeout > 0); err != nil {
		return err
	}
	running := ctx
	if c.Timeout > 0 { // which begins when the workspace is there, and not before it may start
		var cancel context.CancelFunc
		running, cancel = context.WithTimeout(ctx, c.Timeout+max(time.Until(c.NotBefore.After(time.Now())), 0))
		defer cancel()
	}
	call, err := do(running, env, show)
	err = errors.Join(err, bringBack(context.WithoutCancel(ctx), env.Copy, show))
	if c.Nats != "" && c.Session == "" && err == nil && (call == nil || call.Lane() == protocol.SandboxKey(string(session)).Lane()) {
		pool := protocol.DefaultPool
		if call != nil {
			pool = call.Pool
		}
		c.RemoveSession(context.WithoutCancel(ctx), env.Fleet, session, pool, show.warn)
	}
	_ = env.Client.Close() // with everything of the session that still runs
	env.Git.Alert(env.Git.Findings(ctx))
	return err
}

// observed runs a call, reports why it waits, and answers its questions.
func (c *callCommand) observed(ctx context.Context, env *environment.Environment, call *protocol.Call, show view) (*protocol.Result, error) {
	answers := prompt.NewAnswers(c.asks, env.Client, c.Reach(), show.warn)
	answers.Alone = c.Nats == ""
	defer answers.Close()
	return env.Fleet.Dispatcher.CallWith(ctx, call, calls.CallOptions{Observe: func(u loop.Update) {
		if u.Waits != "" {
			show.warn(c.Tool + " waits for: " + u.Waits)
		}
		if u.Lost != "" {
			show.warn(c.Tool + ": " + u.Lost)
		}
		answers.Question(ctx, &report.Question{SessionID: call.SessionID, CallID: call.ID, Tool: c.Tool, Question: u.Question, Lane: string(call.Pool)})
	}})
}
