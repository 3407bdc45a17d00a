package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// turnFlags describe a turn; run and submit have them both.
type turnFlags struct {
	Prompt    string        `arg:"" optional:"" brief:"The prompt; - or none reads stdin." help:"The prompt. Without it, or with -, the prompt is read from stdin if that is a pipe or a file."`
	Session   string        `placeholder:"ID" brief:"Session to continue, or last. Default: a new one." help:"Session to continue: its id, the beginning of its id (4 characters or more), or last for the most recent one. Any other name starts a session with that id. Default: a new session."`
	Workspace string        `placeholder:"DIR" brief:"Working directory. Default: the current one." help:"Working directory. Without --nats it is used in place. With --nats the session works on a copy, and changes are copied back. Default: the directory where the session worked before; for a new session without --nats the current directory, unless it contains your home directory; else an empty workspace."`
	WholeHome bool          `group:"Workspace:" help:"Allow the root or home directory as the workspace, where the session could change every file you own. On a terminal, run and chat ask instead."`
	Toolset   []string      `default:"core" brief:"Toolsets of the model." help:"Toolsets of the model, separated by commas."`
	MaxSteps  int           `default:"64" brief:"Maximum number of model requests." help:"Maximum number of model requests."`
	MaxTokens int64         `default:"0" brief:"Token limit, input plus output; 0 means unlimited." help:"Token limit, input plus output; 0 means unlimited."`
	Timeout   time.Duration `default:"0s" brief:"Time limit, such as 10m; 0 means unlimited." help:"Time limit of the session, such as 90s or 10m; 0 means unlimited."`

	templateFlag     `group:"Workspace:"`
	viewFlags        `group:"Output:"`
	guardFlag        `group:"Policy:"`
	replyFlags       `group:"Model:"`
	instructionFlags `group:"Model:"`
	copyFlags        `group:"Workspace:"`
	cli.Protect      `group:"Workspace:"`

	talks   bool                       // the prompt is asked for
	confirm func(question string) bool // asks the person at the terminal; nil without one
}

type runCommand struct {
	Model string `placeholder:"M" brief:"openai:NAME, or script:FILE with scripted replies." help:"Model: openai:NAME (OPENAI_API_KEY, OPENAI_BASE_URL) or script:FILE. Required."`

	turnFlags
	folderFlag  `group:"Tools:"`
	policyFlags `group:"Policy:"`
	fleetFlags  `group:"Fleet:"`
	workerFlags `group:"Sandbox:"`
	hostFlags   `group:"Host:"`

	asks *prompt // the person at this terminal; nil until somebody is asked
}

// guardFlag says how careful a session's tools are.
type guardFlag struct {
	Guard string `default:"none" enum:"none,changed,read" help:"Check before a file is changed: changed refuses if the file changed since the session last read or wrote it; read refuses also if the session never read it."`
}

// guard is the flag in words of the wire: kong allows no others.
func (f *guardFlag) guard() protocol.Guard {
	guard, _ := protocol.ParseGuard(f.Guard)
	return guard
}

// checked is a turn's flags after every check that needs no fleet.
type checked struct {
	session   protocol.SessionID
	workspace string
	protect   []string // nil means the default
	settings  loop.Settings
	system    string
}

func (f *turnFlags) check() (c checked, err error) {
	c.session = protocol.NewSessionID()
	if f.Session != "" {
		if c.session, err = protocol.ParseSessionID(f.Session); err != nil {
			return c, cli.Usagef("--session: %v", err)
		}
	}
	if strings.TrimSpace(f.Prompt) == "" && !f.talks {
		return c, cli.Usagef("PROMPT is empty: say what the agent is to do")
	}
	if f.MaxSteps < 1 {
		return c, cli.Usagef("--max-steps %d: must be at least 1", f.MaxSteps)
	}
	if f.MaxTokens < 0 {
		return c, cli.Usagef("--max-tokens %d: must not be negative", f.MaxTokens)
	}
	if f.Timeout < 0 {
		return c, cli.Usagef("--timeout %s: must not be negative", f.Timeout)
	}
	if c.settings, err = f.settings(); err != nil {
		return c, err
	}
	if c.system, err = f.system(); err != nil {
		return c, err
	}
	if c.protect, err = f.Places(); err != nil {
		return c, err
	}
	if c.workspace, err = checkWorkspace(f.Workspace); err != nil {
		return c, err
	}
	return c, f.narrow(c.workspace)
}

// prepared is what a session runs with, as far as it needs no fleet.
type prepared struct {
	checked

	tools     toolbox
	judge     loop.Policy // nil allows everything
	model     loop.Model
	modelName string
	project   []protocol.InstructionFile
}

// prepare checks the flags and opens what they name; nothing is connected or written yet.
func (c *runCommand) prepare(p program, logger *slog.Logger, warn func(string)) (turn prepared, err error) {
	if !c.JSON {
		c.confirm = confirmed(p)
	}
	if c.Workspace, err = c.place(c.Workspace, c.Session, warn); err != nil {
		return turn, err
	}
	if turn.checked, err = c.check(); err != nil {
		return turn, err
	}
	if err := c.templateFlag.check(c.Nats, c.Workspace); err != nil {
		return turn, err
	}
	if turn.project, err = c.project(turn.workspace, warn); err != nil {
		return turn, err
	}
	folder, err := c.openFolder()
	if err != nil {
		return turn, err
	}
	if turn.tools, err = c.toolbox(c.Toolset, folder, warn); err != nil {
		return turn, err
	}
	if turn.judge, err = c.judge(); err != nil {
		return turn, err
	}
	c.warnUnmatched(turn.tools, warn)
	if err := c.checkHost(c.Nats != ""); err != nil {
		return turn, err
	}
	if turn.model, turn.modelName, err = (model.Opener{Env: p.Getenv, Logger: logger}).Open(c.Model); err != nil {
		return turn, cli.Usagef("--model: %v", err)
	}
	return turn, nil
}

func (c *runCommand) run(ctx context.Context, p program) error {
	if err := c.readPrompt(p); err != nil {
		return err
	}
	if c.Prompt == "" && isTerminal(p) && !c.JSON {
		return (&chatCommand{runCommand: *c}).run(ctx, p)
	}
	return c.with(ctx, p, cli.Signals, func(ctx context.Context, s *started) (loop.TurnResult, error) { return s.turn(ctx, c.Prompt) })
}

// with starts a session, has it take turns, and shows how the last one ended.
func (c *runCommand) with(
	ctx context.Context, p program, signals func(context.Context, func()) (context.Context, func()),
	talk func(context.Context, *started) (loop.TurnResult, error),
) (err error) {
	c.fleet = c.Nats != ""
	show, err := newView(p, &c.viewFlags)
	if err != nil {
		return err
	}
	defer show.screen.Close()
	logger := p.common.LoggerTo(show.screen)
	if c.Session, err = c.sessions().continued(ctx, p, c.Session, c.Data); err != nil {
		return err
	}
	turn, err := c.prepare(p, logger, show.warn)
	if err != nil {
		return err
	}
	aborts := make(chan func(), 1)
	ctx, stop := signals(ctx, func() {
		time.AfterFunc(hardExit, func() { os.Exit(cli.ExitInterrupted) })
		select {
		case abort := <-aborts:
			abort()
		default: // nothing runs yet
		}
	})
	defer stop()
	data, cleanup, err := c.dataDir(turn.session, true)
	if err != nil {
		return err
	}
	defer cleanup()
	worker, err := c.openWorker(ctx, &c.fleetFlags, data, c.folderFlag, turn.protect, logger)
	if err != nil {
		return err
	}
	if err := worker.see(ctx, &c.hostFlags, turn.workspace, data); err != nil {
		return err
	}
	defer func() { _ = worker.forget() }() // its cache is brought below its bound another time
	if worker != nil && c.JSON {
		show.observe = worker.host.told(p.Stdout, turn.session, show.observe)
	}
	end, err := p.Telemetry(ctx, "toolfleet-coordinator", telemetry.Options{Logger: logger})
	if err != nil {
		return err
	}
	defer end()
	if !c.talks { // else each turn is a trace of its own
		var ended func(error)
		ctx, ended = spanOf(ctx, "run")
		defer func() { ended(err) }()
	}
	fl, err := c.connect(ctx, connection{name: "coordinator run " + string(turn.session), data: data, p: p, logger: logger, warn: show.warn})
	if err != nil {
		return err
	}
	logger = fl.Logger()
	defer fl.Close()
	git := watchGit(ctx, turn.workspace, show.alert)
	var remote *remoteWorkspace
	if worker != nil {
		err = worker.start(ctx, fl, data, show.warn, turn.session, turn.workspace)
		aborts <- fl.Abort
	} else {
		limited, done := within(ctx, c.Timeout)
		defer done()
		if err = c.begin(limited, fl, turn.session); err == nil && turn.workspace != "" {
			if remote, err = c.importWorkspace(limited, fl, turn.session, turn.workspace, turn.protect, c.copyFlags, show); err == nil {
				remote.hurry = c.Timeout > 0
			}
		}
		err = overLimit(limited, err)
	}
	if err != nil {
		return err
	}
	if err := turn.tools.ask(ctx, fl, turn.session, show.warn); err != nil {
		return err
	}
	silence, err := show.output(fl, turn.session)
	if err != nil {
		return err
	}
	defer silence()
	observe := noticeWaiting(show, c.Nats)
	approve := c.approver(p, fl, show, turn)
	if c.mayBeServed(turn) {
		answers := answersOf(c.asks, fl, at(c.Nats, c.Login, c.Fleet), show)
		answers.alone = c.Nats == ""
		defer answers.close()
		waiting := observe
		observe = func(e loop.Event) {
			waiting(e)
			if e.Type != loop.EventApprovalAsked { // which approve answers
				answers.observe(ctx, e)
			}
		}
	}
	var commits protocol.Author // of a worker's own process the variables say it
	if worker == nil {
		commits = author(ctx, turn.workspace)
	}
	runner, err := loop.New(turn.model, fl.Dispatcher, fl.Journal, turn.tools.table, &loop.Options{
		ModelName: turn.modelName, Workspace: turn.workspace, MaxSteps: c.MaxSteps, MaxTokens: c.MaxTokens, Timeout: c.Timeout,
		System: turn.system, Project: turn.project, Author: commits, Settings: turn.settings, Guard: c.guard(), Policy: turn.judge, MinLevel: c.least(), Approve: approve, Observe: observe, Tracer: telemetry.Tracer(), Logger: logger,
	})
	if err != nil {
		return err
	}
	s := &started{prepared: turn, runner: runner, show: show, remote: remote, fleet: fl, git: git}
	result, runErr := talk(ctx, s)
	fl.Close() // with everything of the session that still runs
	return finish(ctx, show, turn.session, result, runErr, git)
}

// started is a session that takes turns.
type started struct {
	prepared

	runner *loop.Runner
	show   view
	remote *remoteWorkspace // nil when the workspace is used in place
	fleet  *fleet.Fleet
	git    *gitWatch
	turns  int
}

// turn runs a turn, and brings back what it changed.
func (s *started) turn(ctx context.Context, text string) (loop.TurnResult, error) {
	begun := time.Now()
	if s.turns++; s.turns > 1 {
		err := s.tools.load(news(s.show.warn))
		if err == nil { // servers may have other tools by now
			err = s.tools.ask(ctx, s.fleet, s.session, s.show.warn)
		}
		if err != nil {
			s.show.warn(fmt.Sprintf("the tools are as they were: %v", err))
		}
		s.runner = s.runner.With(s.tools.table)
	}
	var before stamps
	if s.workspace != "" {
		s.show.screen.Hold()
	}
	if s.workspace != "" && s.remote == nil {
		before = stampsOf(ctx, s.workspace)
	}
	result, err := s.runner.Run(ctx, s.session, loop.Input{Text: text})
	if err == nil { // else it is open, and may go on
		telemetry.NewTurnMetrics(telemetry.Meter()).Ended(ctx, s.modelName, string(result.Outcome), result.Error.ErrorType(), time.Since(begun))
	}
	if s.remote != nil {
		err = errors.Join(err, s.remote.sync(context.WithoutCancel(ctx), s.show))
	} else if s.workspace != "" {
		s.show.screen.CameBack(before.since(context.WithoutCancel(ctx), s.workspace), isIn(s.workspace))
	}
	return result, err
}

// approver is who is asked about calls: the person at this terminal, or whoever
// watches the fleet.
func (c *runCommand) approver(p program, fl *fleet.Fleet, show view, turn prepared) func(context.Context, loop.ApprovalRequest) (loop.Approval, error) {
	if turn.judge == nil && !c.mayBeServed(turn) {
		return nil // nothing will be asked, so nothing is read from the terminal
	}
	if c.asks = newPrompt(p, show.screen, c.inPlace(turn.workspace)); c.asks != nil {
		if c.Nats != "" {
			c.asks.old = kept(fl, turn.session)
		}
		return c.asks.approve
	}
	if c.Nats == "" || turn.judge == nil {
		return nil
	}
	return announced(show.warn, at(c.Nats, c.Login, c.Fleet), approval.Waiter(fl.NC, fl.Name))
}

// mayBeServed reports whether there may be MCP servers, which ask: those of a folder come and go
// between turns.
func (c *runCommand) mayBeServed(turn prepared) bool {
	return len(turn.tools.servers) > 0 || c.talks && turn.tools.folder != nil
}

// announced says how a question is answered from elsewhere.
func announced(
	say func(string), where string, wait func(context.Context, loop.ApprovalRequest) (loop.Approval, error),
) func(context.Context, loop.ApprovalRequest) (loop.Approval, error) {
	return func(ctx context.Context, request loop.ApprovalRequest) (loop.Approval, error) {
		say(waits(request, where))
		return wait(ctx, request)
	}
}

// waits tells that a call waits for approval, with a command line that can be pasted.
func waits(request loop.ApprovalRequest, where string) string {
	return fmt.Sprintf("%s: %s %s; approve it, or with --deny refuse it, with: coordinator approve%s %s %s",
		request.Reason, request.Tool, shortened(request.Arguments), where, request.SessionID, request.CallID)
}

// shortened is a text that fits a few lines of a terminal.
func shortened(text string) string {
	const most = 1000
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + fmt.Sprintf(" [... and %d more characters]", len(runes)-most)
	}
	return text
}

// hardExit is how long a second signal waits for the embedded worker to kill what runs.
const hardExit = 3 * time.Second

// inPlace maps the session's sandbox to a directory; nil without one.
func inPlace(session protocol.SessionID, dir string) func(string) (string, bool) {
	if dir == "" {
		return nil
	}
	return func(sandbox string) (string, bool) { return dir, sandbox == string(session) }
}

// finish shows how a session ended and, last, what it has left for git to run, and chooses the exit
// code.
func finish(ctx context.Context, show view, session protocol.SessionID, r loop.TurnResult, err error, git *gitWatch) error {
	findings := git.findings(ctx)
	show.found(session, findings)
	defer git.tell(findings)
	show.observe(loop.SessionEnded(session, r))
	err = errors.Join(err, show.answer(r))
	exit := &cli.ExitError{}
	if r.Error != nil {
		exit.Message = r.Error.Message
	} else if err != nil {
		exit.Message = err.Error()
	}
	switch {
	case r.Outcome == loop.OutcomeInterrupted:
		exit.Code, exit.Message = cli.ExitInterrupted, "interrupted"
	case r.Outcome == loop.OutcomeLimitReached:
		exit.Code = cli.ExitLimit
	case r.Outcome == loop.OutcomeFailed, err != nil:
		exit.Code = cli.ExitFailed
	default:
		return nil
	}
	if len(findings) > 0 && exit.Message != "" {
		show.warn(exit.Message) // else it would follow them
		exit.Message = ""
	}
	return exit
}
