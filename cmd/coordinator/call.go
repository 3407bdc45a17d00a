package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type callCommand struct {
	Tool      string        `arg:"" help:"Name of the tool."`
	Arguments string        `arg:"" optional:"" help:"Arguments as a JSON object, or - to read them from stdin. Default: {}."`
	Workspace string        `placeholder:"DIR" brief:"Working directory. Default: the current one." help:"Working directory. Without --nats it is used in place. With --nats the session works on a copy, and changes are copied back. Default: as for run."`
	Session   string        `placeholder:"ID" help:"Session whose sandbox the call uses. Default: a new session, which is removed after the call."`
	Toolset   []string      `default:"core" help:"Toolsets to look for the tool in, separated by commas."`
	Timeout   time.Duration `default:"0s" brief:"Time limit of the call; 0 means unlimited." help:"Time limit of the call, including its wait; 0 means unlimited."`

	templateFlag `group:"Workspace:"`
	guardFlag    `group:"Policy:"`
	copyFlags    `group:"Workspace:"`
	cli.Protect  `group:"Workspace:"`
	folderFlag   `group:"Tools:"`
	policyFlags  `group:"Policy:"`
	fleetFlags   `group:"Fleet:"`
	workerFlags  `group:"Sandbox:"`
	hostFlags    `group:"Host:"`

	asks *prompt // the person at this terminal; nil until somebody may be asked
}

// callOutput is the JSON object that a call prints.
type callOutput struct {
	Status    protocol.Status    `json:"status"`
	Content   string             `json:"content"`
	Result    json.RawMessage    `json:"result,omitempty"`
	Error     *protocol.Error    `json:"error,omitempty"`
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id,omitempty"`
	Name      string             `json:"name"`
	WorkerID  protocol.WorkerID  `json:"worker_id,omitempty"`
	Attempt   int                `json:"attempt,omitempty"`
	Level     string             `json:"level,omitempty"`
	QueueMS   float64            `json:"queue_ms"`
	RunMS     float64            `json:"run_ms"`
	TraceID   string             `json:"trace_id,omitempty"` // when this process exports traces
}

func (c *callCommand) run(ctx context.Context, p program) error {
	session := protocol.NewSessionID()
	var err error
	if c.Session, err = c.sessions().continued(ctx, p, c.Session, c.Data); err != nil {
		return err
	}
	if c.Session != "" {
		if session, err = protocol.ParseSessionID(c.Session); err != nil {
			return cli.Usagef("--session: %v", err)
		}
	}
	say := func(message string) { _, _ = fmt.Fprintln(p.err(), "coordinator: "+message) }
	if c.Workspace, err = c.here(c.Workspace, c.Session, say); err != nil {
		return err
	}
	workspace, err := checkWorkspace(c.Workspace)
	if err != nil {
		return err
	}
	if c.Timeout < 0 {
		return cli.Usagef("--timeout %s: must not be negative", c.Timeout)
	}
	if err := errors.Join(c.checkHost(c.Nats != ""), c.check(c.Nats, c.Workspace)); err != nil {
		return err
	}
	folder, err := c.openFolder()
	if err != nil {
		return err
	}
	box, err := c.toolbox(c.Toolset, folder, say)
	if err != nil {
		return err
	}
	c.warnUnmatched(box, say)
	arguments := c.Arguments
	if arguments == "-" {
		content, err := io.ReadAll(p.Stdin)
		if err != nil {
			return fmt.Errorf("read arguments: %w", err)
		}
		arguments = string(content)
	}
	output, err := c.call(ctx, p, box, session, workspace, arguments)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(terminal.JSONWriter(p.Stdout))
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(output); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	if output.Status != protocol.StatusOK {
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

// call plans the tool call and runs it, inline or in the fleet.
func (c *callCommand) call(ctx context.Context, p program, box toolbox, session protocol.SessionID, workspace, arguments string) (*callOutput, error) {
	judge, err := c.judge()
	if err != nil {
		return nil, err
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	options := &loop.SingleOptions{Guard: c.guard(), Policy: judge, MinLevel: c.least(), Logger: p.common.Logger(p.Program)}
	show, err := newView(p, &viewFlags{JSON: true})
	if err != nil {
		return nil, err
	}
	if c.Nats != "" {
		options.Author = author(ctx, workspace)
	}
	output := &callOutput{SessionID: session, Name: c.Tool}
	box, ofServer := box.of(c.Tool)
	if judge != nil || ofServer {
		c.asks = newPrompt(p, show.screen, c.inPlace(workspace))
	}
	if c.asks != nil && judge != nil {
		options.Approve = c.asks.approve
	}
	var single *loop.Single
	plan := func(ctx context.Context, table *tools.Table) *protocol.Call {
		single = loop.PlanSingle(ctx, table, session, c.Tool, arguments, options)
		return single.Call
	}
	if !ofServer && plan(ctx, box.table) == nil {
		return output, output.take(single.Outcome)
	}
	result, err := c.dispatch(ctx, p, session, func(ctx context.Context, fl *fleet.Fleet, warn func(string)) (*protocol.Call, error) {
		if !ofServer {
			return single.Call, nil
		}
		if err := box.ask(ctx, fl, session, warn); err != nil {
			return nil, err
		}
		return plan(ctx, box.table), nil
	}, workspace, output)
	if err != nil {
		return nil, err
	}
	if result == nil {
		return output, output.take(single.Outcome)
	}
	return output, output.take(single.Finish(ctx, result))
}

func (o *callOutput) take(outcome loop.SingleOutcome) error {
	o.Status, o.Error, o.Content = outcome.Status, outcome.Error, outcome.Text
	r := outcome.Result
	if r == nil {
		return nil
	}
	o.CallID, o.WorkerID, o.Attempt, o.Level = r.CallID, r.WorkerID, r.Attempt, r.Level
	o.QueueMS, o.RunMS = r.QueueMS, r.RunMS
	if r.Value == nil {
		return nil
	}
	var err error
	o.Result, err = wire.EncodeValue(r.Value)
	return err
}

// dispatch runs a call in the fleet, or in one of its own; without a call the result is nil. It
// writes the trace into output.
func (c *callCommand) dispatch(
	ctx context.Context, p program, session protocol.SessionID,
	planned func(context.Context, *fleet.Fleet, func(string)) (*protocol.Call, error), workspace string, output *callOutput,
) (_ *protocol.Result, err error) {
	logger := p.common.Logger(p.Program)
	protect, err := c.Places()
	if err != nil {
		return nil, err
	}
	worker, err := c.openWorker(ctx, &c.fleetFlags, c.Data, c.folderFlag, protect, logger)
	if err != nil {
		return nil, err
	}
	data, cleanup, err := c.dataDir(session, c.Session != "")
	if err != nil {
		return nil, err
	}
	defer cleanup()
	if err := worker.see(ctx, &c.hostFlags, workspace, data); err != nil {
		return nil, err
	}
	defer func() { _ = worker.forget() }() // its cache is brought below its bound another time
	end, err := p.Telemetry(ctx, "toolfleet-coordinator", telemetry.Options{Logger: logger})
	if err != nil {
		return nil, err
	}
	defer end()
	ctx, ended := spanOf(ctx, "call")
	defer func() { ended(err) }()
	output.TraceID = telemetry.TraceID(ctx)
	fl, err := c.connect(ctx, connection{name: "coordinator call " + c.Tool, data: data, p: p, logger: logger})
	if err != nil {
		return nil, err
	}
	defer fl.Close()
	show, err := newView(p, &viewFlags{JSON: true})
	if err != nil {
		return nil, err
	}
	defer show.screen.Close()
	git := watchGit(ctx, workspace, show.alert)
	var remote *remoteWorkspace
	if worker != nil {
		err = worker.start(ctx, fl, data, show.warn, session, workspace)
	} else {
		limited, done := within(ctx, c.Timeout)
		defer done()
		if err = c.begin(limited, fl, session); err == nil && workspace != "" {
			if remote, err = c.importWorkspace(limited, fl, session, workspace, protect, c.copyFlags, show); err == nil {
				remote.hurry = c.Timeout > 0
			}
		}
	}
	if err != nil {
		return nil, err
	}
	running := ctx
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		running, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	var result *protocol.Result
	call, err := planned(running, fl, show.warn)
	if call != nil {
		if c.Timeout > 0 {
			call.Deadline = call.IssuedAt.Add(c.Timeout)
		}
		answers := answersOf(c.asks, fl, at(c.Nats, c.Login, c.Fleet), show)
		answers.alone = c.Nats == ""
		result, err = fl.Dispatcher.Observed(running, call, func(u loop.Update) {
			if u.Waits != "" {
				show.warn(c.Tool + " waits for: " + u.Waits)
			}
			if u.Lost != "" {
				show.warn(c.Tool + ": " + u.Lost)
			}
			answers.question(running, c.Tool, approval.Asked{Pool: call.Pool, Session: session, Call: call.ID}, u.Question)
		})
		answers.close()
	}
	if remote != nil {
		err = errors.Join(err, remote.sync(context.WithoutCancel(ctx), show))
	}
	if c.Nats != "" && c.Session == "" && err == nil && (call == nil || call.Lane() == protocol.SandboxKey(string(session)).Lane()) {
		pool := protocol.DefaultPool
		if call != nil {
			pool = call.Pool
		}
		c.tidy(context.WithoutCancel(ctx), fl, session, pool, show.warn)
	}
	fl.Close() // with everything of the session that still runs
	git.tell(git.findings(ctx))
	return result, err
}

// askAside asks the servers of a toolbox for their tools in a session of which nothing is kept.
func (f *fleetFlags) askAside(ctx context.Context, fl *fleet.Fleet, box *toolbox, warn func(string)) error {
	session := protocol.NewSessionID()
	if len(box.servers) > 0 {
		defer f.tidy(context.WithoutCancel(ctx), fl, session, protocol.DefaultPool, warn)
	}
	return box.ask(ctx, fl, session, warn)
}

// tidyTimeout bounds the removal of what a call leaves.
const tidyTimeout = 30 * time.Second

// tidy removes the workspace of a session that had only such calls, and that nothing lists.
func (f *fleetFlags) tidy(ctx context.Context, fl *fleet.Fleet, id protocol.SessionID, pool protocol.Pool, warn func(string)) {
	ctx, cancel := context.WithTimeout(ctx, tidyTimeout)
	defer cancel()
	if _, err := session.Remove(ctx, fl, id, session.Options{Pool: pool, Force: true, Used: true}); err != nil {
		warn(fmt.Sprintf("what the call left is not removed: %v (coordinator session rm --nats %s %s)", err, natsio.Redact(f.Nats), id))
	}
}
