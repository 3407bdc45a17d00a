package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/terminal/prompt"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace/backup"
	"github.com/toolfleet/toolfleet/internal/workspace/transfer"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type runCommand struct {
	Continue bool   `help:"Continue the last session of this directory. Without a prompt, run continues its unfinished turn."`
	Model    string `placeholder:"M" brief:"openai:, anthropic: or google:NAME, or script:FILE." help:"Model: openai:NAME (OPENAI_API_KEY, OPENAI_BASE_URL), anthropic:NAME (ANTHROPIC_API_KEY), google:NAME (GEMINI_API_KEY), script:FILE or replay:FILE. Required."`

	turnFlags
	providerFlags `group:"Model:"`
	agentFlag     `group:"Tools:"`
	hookFlag      `group:"Policy:"`
	replayFlag
	environment.Flags

	asks   *prompt.Prompt                                                             // the person at this terminal; nil until a question may be asked
	editor approve                                                                    // asks the person at an editor; nil without one
	fill   func(context.Context, string, *protocol.Question) (protocol.Answer, error) // for answers, where the editor can ask for them
}

// prepared is what a session runs with, as far as it needs no fleet.
type prepared struct {
	checked

	tools   *environment.Toolbox
	model   loop.Model
	gate    *model.Gate
	options loop.Options
}

// prepare checks the flags and opens what they name; it connects to nothing, and writes nothing.
func (c *runCommand) prepare(p program, session protocol.SessionID, warn func(string)) (turn prepared, err error) {
	if c.Workspace, err = c.FindWorkspace(c.Workspace, c.Session, warn); err != nil {
		return turn, err
	}
	var confirm func(string) bool
	if file, isFile := p.Stdin.(*os.File); isFile && isTerminal(p) && !c.JSON {
		confirm = func(question string) bool { return prompt.Confirm(file, p.err(), "coordinator: "+question) }
	}
	if turn.checked, err = c.check(session, confirm); err != nil {
		return turn, err
	}
	if err := c.CheckTemplate(c.Nats, c.Workspace); err != nil {
		return turn, err
	}
	o := &turn.options
	*o = loop.Options{
		Workspace: turn.workspace, MaxSteps: c.MaxSteps, MaxTokens: c.MaxTokens, Timeout: c.Timeout, Budget: turn.budget, PromoteAfter: c.PromoteAfter,
		System: turn.system, Settings: turn.settings, Guard: c.FileGuard(), MinLevel: c.DefaultMinLevel(), Tracer: telemetry.Tracer(),
	}
	if o.Project, err = c.project(turn.workspace, warn); err != nil {
		return turn, err
	}
	if turn.tools, o.Policy, err = environment.OpenTools(&c.Flags, &c.SessionFlags, session, c.Toolset, warn); err != nil {
		return turn, err
	}
	if o.Hooks, err = c.hooks(turn.workspace); err != nil {
		return turn, err
	}
	turn.gate = &model.Gate{}
	opener := model.Opener{Env: p.Getenv, MaxWait: c.ModelWait, Gate: turn.gate} // the screen shows retries
	known, err := c.openModel(opener, c.Model, &turn)
	if err != nil {
		return turn, err
	}
	if o.Agents, err = c.openAgents(opener, known, warn); err != nil {
		return turn, err
	}
	turn.tools.CheckAgents(o.Agents, warn)
	if price, err := c.price(); err != nil || price != nil {
		o.Price = price
		if price != nil {
			price.Tools = known.prices.ToolsOf(o.ModelName)
		}
	}
	if err := o.CheckPrices(turn.model, turn.tools.Table); err != nil {
		return turn, cli.Usagef("--%v: name its price with --price or --prices", err)
	}
	return turn, nil
}

// openModel opens the model of a session, with what is known of it.
func (c *runCommand) openModel(opener model.Opener, spec string, turn *prepared) (k known, err error) {
	o := &turn.options
	if turn.model, o.ModelName, err = opener.Open(spec); err != nil {
		if spec == "" && c.Session != "" {
			return k, cli.Usagef("--model is missing: a session does not keep it; this names the last one: coordinator session show%s %s", c.Reach(), c.Session)
		}
		return k, cli.Usagef("--model: %v", err)
	}
	if err := (loop.Input{Attachments: turn.attachments}).Check(turn.model); err != nil {
		return k, cli.Usagef("--attach: model %s: %v", o.ModelName, attachmentError(err))
	}
	if o.Replay = model.RecordingOf(turn.model); o.Replay != nil {
		o.Replay.Live, c.CompactAt = c.LiveTools, "none"
	} else if c.LiveTools {
		return k, cli.Usagef("--live-tools: needs --model replay:FILE")
	}
	if k, err = c.openCosts(opener); err != nil {
		return k, err
	}
	if turn.model, err = c.withFallback(opener, k, o.ModelName, turn.model); err != nil {
		return k, err
	}
	o.Price, o.Compaction = k.about(o.ModelName)
	return k, nil
}

func (c *runCommand) run(ctx context.Context, p program) error {
	if c.Prompt == "" && strings.HasPrefix(strings.TrimSpace(c.Model), "replay:") {
		c.talks = true
		return c.with(ctx, p, cli.Signals, playBack)
	}
	if err := c.readPrompt(p); err != nil {
		return err
	}
	if c.Prompt == "" && isTerminal(p) && !c.JSON {
		return (&chatCommand{runCommand: *c}).run(ctx, p)
	}
	if err := c.findLast(); err != nil {
		return err
	}
	c.resumes = c.Session != "" && len(c.Attach) == 0
	return c.with(ctx, p, cli.Signals, func(ctx context.Context, s *started) (loop.TurnResult, error) {
		return s.turn(ctx, loop.Input{Text: c.Prompt, Attachments: s.attachments, AnswerSchema: s.schema})
	})
}

// with starts a session, lets converse run its turns, and shows how the last one ended.
func (c *runCommand) with(
	ctx context.Context, p program, signals func(context.Context, func()) (context.Context, func()),
	converse func(context.Context, *started) (loop.TurnResult, error),
) (err error) {
	c.fleet = c.Nats != ""
	show, err := newView(p, &c.viewFlags)
	if err != nil {
		return err
	}
	defer show.screen.Close()
	logger := p.common.LoggerTo(show.screen)
	session, err := findSession(ctx, p, &c.FleetFlags, &c.Session)
	if err != nil {
		return err
	}
	turn, err := c.prepare(p, session, show.warn)
	if err != nil {
		return err
	}
	aborts := make(chan func(), 1)
	ctx, stop := signals(ctx, func() {
		time.AfterFunc(hardExit, func() { os.Exit(cli.ExitInterrupted) })
		select {
		case abort := <-aborts:
			abort()
		default: // no worker runs yet
		}
	})
	defer stop()
	ctx, s, end, err := c.open(ctx, p, turn, show, logger, func(abort func()) { aborts <- abort })
	if err != nil {
		return err
	}
	defer func() { end(err) }()
	result, runErr := converse(ctx, s)
	_ = s.env.Client.Close() // with everything of the session that still runs
	bill := s.sums().bill
	result.Usage, result.CostUSD = bill.Usage, bill.CostUSD
	return finish(ctx, s.show, turn.session, result, runErr, s.env.Git, c.howToGoOn(turn.session))
}

// open opens what a prepared session runs with, until end. It passes to running what kills the
// worker of this process.
func (c *runCommand) open(
	ctx context.Context, p program, turn prepared, show view, logger *slog.Logger, running func(abort func()),
) (_ context.Context, s *started, end func(error), err error) {
	options := environment.Options{
		Process: environment.Process{Program: p.Program, Logger: logger, Client: "coordinator run " + string(turn.session), Span: "run"},
		Flags:   &c.Flags, Session: &c.SessionFlags,
		ID: turn.session, Workspace: turn.workspace, Template: &c.TemplateFlag, Warn: show.warn, Alert: show.alert, Busy: show.busy,
	}
	if c.talks {
		options.Span = "" // each turn is a trace of its own
	}
	if ctx, err = c.share(ctx, c.Nats); err != nil {
		return ctx, nil, nil, err
	}
	ctx, env, err := environment.Open(ctx, options)
	if err != nil {
		return ctx, nil, nil, err
	}
	defer func() {
		if err != nil {
			env.Close(err)
		}
	}()
	if c.fleet { // a private fleet has no limits
		turn.gate.Bind(env.Fleet.Dispatcher.ModelLimits())
	}
	if env.Host != nil {
		running(env.Fleet.Abort)
	}
	limited, done := within(ctx, c.Timeout)
	defer done()
	if err := overLimit(limited, env.Begin(limited, c.Timeout > 0)); err != nil {
		return ctx, nil, nil, err
	}
	if err := turn.tools.List(ctx, env.Fleet, turn.session, show.warn); err != nil {
		return ctx, nil, nil, err
	}
	s, silence, err := c.start(ctx, p, env, turn, show)
	if err != nil {
		return ctx, nil, nil, err
	}
	if c.Session != "" {
		if err := s.goOn(ctx, c.Prompt); err != nil {
			silence()
			return ctx, nil, nil, err
		}
	}
	c.remember(turn.session)
	return ctx, s, func(err error) {
		silence()
		env.Close(err)
	}, nil
}

// start makes the session's runner, and the part that answers its questions until end.
func (c *runCommand) start(ctx context.Context, p program, env *environment.Environment, turn prepared, show view) (_ *started, end func(), err error) {
	if c.JSON && env.Host != nil {
		show.observe = withHost(show.observe, func() { _ = env.Host.WriteEvent(p.Stdout, turn.session) }) // the events report a reader that went away
	}
	silence, err := show.output(ctx, env.Client, turn.session)
	if err != nil {
		return nil, nil, err
	}
	observe, end := noticeWaiting(show, &c.FleetFlags), silence
	turn.options.Approve = c.approver(p, env.Client, show, turn)
	if c.mayBeAsked(turn) {
		answers := prompt.NewAnswers(c.asks, env.Client, c.Reach(), show.warn)
		if answers.Alone = c.Nats == ""; c.fill != nil {
			answers.Fill = c.fill
		}
		end = func() { answers.Close(); silence() }
		waiting := observe
		observe = func(e loop.Event) {
			waiting(e)
			if e.Type != loop.EventApprovalAsked { // approve answers those
				answers.Observe(ctx, e)
			}
		}
	}
	if env.Host == nil { // else the embedded worker sets variables instead
		turn.options.Author = environment.Author(ctx, turn.workspace)
	}
	s := &started{prepared: turn, show: show, env: env, talks: c.talks}
	turn.options.Observe, turn.options.Logger = func(e loop.Event) {
		s.see(&e)
		observe(e)
	}, env.Fleet.Logger
	if c.talks {
		turn.options.Additions = &loop.Additions{}
	}
	if err := s.use(turn); err != nil {
		end()
		return nil, nil, err
	}
	return s, end, nil
}

// use has the next turns run as it was prepared.
func (s *started) use(turn prepared) (err error) {
	s.prepared = turn
	s.runner, err = s.env.Client.Runner(turn.model, turn.tools.Table, &turn.options)
	return err
}

// withHost is an observer that calls host after the first event.
func withHost(observe func(loop.Event), host func()) func(loop.Event) {
	var once sync.Once
	return func(e loop.Event) {
		observe(e)
		once.Do(host)
	}
}

// started is a session that runs turns.
type started struct {
	prepared

	runner *loop.Runner
	show   view
	env    *environment.Environment
	renew  func() error // after the tools were read again
	turns  int
	seen   sync.Mutex // held while totals change
	totals totals
	talks  bool // the terminal asks for prompts
}

// see adds what an event says to the totals.
func (s *started) see(e *loop.Event) {
	s.seen.Lock()
	defer s.seen.Unlock()
	s.totals.see(e)
}

// sums are the totals so far.
func (s *started) sums() totals {
	s.seen.Lock()
	defer s.seen.Unlock()
	return s.totals
}

// errCancelled is why a turn ends that session cancel of another terminal has ended.
var errCancelled = errors.New("cancelled by session cancel")

// turn runs a turn, and brings back what it changed.
func (s *started) turn(ctx context.Context, input loop.Input) (loop.TurnResult, error) {
	begun := time.Now()
	if s.turns++; s.turns > 1 {
		err := s.tools.Reload(s.show.warn)
		if err == nil { // servers may have other tools by now
			err = s.tools.List(ctx, s.env.Fleet, s.session, s.show.warn)
		}
		if err != nil {
			s.show.warn(fmt.Sprintf("the tools could not be read again, so the earlier ones stay: %v", err))
		}
		s.runner = s.runner.With(s.tools.Table)
		if s.renew != nil {
			if err := s.renew(); err != nil {
				return loop.TurnResult{Outcome: loop.OutcomeFailed}, err
			}
		}
	}
	var before backup.Stamps
	s.show.screen.DeferChanges()
	if s.workspace != "" && s.env.Copy == nil {
		before = backup.StampsOf(ctx, s.workspace)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	unasked, err := s.env.Stoppable(func() { cancel(errCancelled) })
	if err != nil {
		return loop.TurnResult{Outcome: loop.OutcomeFailed}, err
	}
	result, err := s.runner.Run(ctx, s.session, input)
	unasked()
	if err == nil { // else it is open, and may continue
		telemetry.NewTurnMetrics(telemetry.Meter()).Ended(ctx, s.options.ModelName, string(result.Outcome), result.Error.ErrorType(), result.CostUSD, time.Since(begun))
	} else if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil // the result says that it was interrupted
	}
	switch ctx := context.WithoutCancel(ctx); {
	case s.env.Copy != nil:
		err = errors.Join(err, bringBack(ctx, s.env.Copy, s.show))
	case s.workspace != "":
		s.show.screen.ShowChanges(before.Since(ctx, s.workspace), backup.Look(s.workspace))
	default:
		s.show.stored(ctx, s.env.Client, s.session)
	}
	return result, err
}

// bringBack brings back what a session changed in its copy of a workspace, and shows it; nil is no
// copy.
func bringBack(ctx context.Context, w *transfer.Workspace, show view) error {
	if w == nil {
		return nil
	}
	changes, before, err := w.Fetch(ctx)
	if errors.Is(err, transfer.ErrNotAccepted) { // the error of the turn would hide it
		show.warn(err.Error())
	}
	if err == nil {
		show.screen.ShowChanges(cameBack(before, &changes), backup.Look(w.Dir))
		transfer.ReportSkipped(changes, show.warn)
	}
	return err
}

// cameBack lists the files that were brought back; before is what the directory was.
func cameBack(before snapshot.Manifest, changes *snapshot.Changes) (changed []terminal.Changed) {
	isDir := func(m snapshot.Manifest, path string) bool { return m[path].Type == protocol.TypeDir }
	for _, path := range changes.Written {
		if _, was := before[path]; !isDir(changes.Base, path) {
			changed = append(changed, terminal.Changed{Path: path, Created: !was})
		}
	}
	for _, path := range changes.Removed {
		if !isDir(before, path) {
			changed = append(changed, terminal.Changed{Path: path, Gone: true})
		}
	}
	return changed
}

// lookTime bounds the look at what a turn has changed.
const lookTime = 5 * time.Second

// stored shows the changes of a session's last turn in a workspace that is only in the fleet, or,
// if those cannot be read, the changes that its tools reported.
func (v view) stored(ctx context.Context, client *fleet.Client, session protocol.SessionID) {
	if v.json {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	all, there := client.Sessions(""), map[string]bool{}
	changed, err := all.ChangedFiles(ctx, session)
	if err == nil {
		var files []report.File
		files, err = all.Files(ctx, session, "")
		for _, file := range files {
			there[file.Path] = true
		}
	}
	if err != nil {
		v.screen.ShowChanges(nil, func(string) (terminal.File, bool) { return terminal.File{Lines: -1}, true })
		return
	}
	var found []terminal.Changed
	for _, file := range changed {
		if file.Type != protocol.TypeDir {
			found = append(found, terminal.Changed{Path: file.Path, Created: file.Change == "created", Gone: file.Change == "removed"})
		}
	}
	v.screen.ShowChanges(found, func(path string) (terminal.File, bool) { return terminal.File{Lines: -1}, there[path] })
}

// approver asks about calls: the person at this terminal, or anybody who follows the session in the
// fleet.
func (c *runCommand) approver(p program, client *fleet.Client, show view, turn prepared) func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
	if c.editor != nil {
		return here(c.editor, client.AwaitApproval)
	}
	if turn.options.Policy == nil && len(turn.options.Hooks) == 0 && !c.mayBeAsked(turn) {
		return nil // no question will be asked: do not read from the terminal
	}
	files := prompt.FilesOf(turn.workspace)
	if c.Nats != "" {
		files = prompt.StoredFiles(client, turn.session)
	}
	if c.asks = prompt.New(p.Stdin, show.screen, files); c.asks != nil {
		return here(c.asks.Approve, client.AwaitApproval)
	}
	if c.Nats == "" || turn.options.Policy == nil && len(turn.options.Hooks) == 0 {
		return nil
	}
	return announced(show.warn, c.Reach(), client.AwaitApproval)
}

// approve asks a question about a call.
type approve = func(context.Context, loop.ApprovalRequest) (protocol.Approval, error)

// here asks the person at this terminal, until one at another terminal answers.
func here(ask, await approve) approve {
	return func(ctx context.Context, request loop.ApprovalRequest) (answer protocol.Approval, err error) {
		asking, answered := context.WithCancel(ctx)
		defer answered()
		awaiting, stop := context.WithCancel(ctx)
		defer stop()
		var elsewhere protocol.Approval
		var none error
		done := make(chan struct{})
		go func() {
			defer close(done)
			if elsewhere, none = await(awaiting, request); none == nil {
				answered()
			}
		}()
		answer, err = ask(asking, request)
		stop()
		<-done
		if none == nil { // it was confirmed to the other terminal
			return elsewhere, nil
		}
		return answer, err
	}
}

// mayBeAsked reports whether calls can ask questions: those of the tool ask_user, or of MCP
// servers; servers of a folder can change between turns.
func (c *runCommand) mayBeAsked(turn prepared) bool {
	_, asks := turn.tools.Table.Lookup(wire.AskUserTool)
	return asks || len(turn.tools.Servers) > 0 || c.talks && turn.tools.Folder != nil
}

// announced reports how a question is answered from elsewhere, and waits for the answer.
func announced(
	report func(string), flags string, wait func(context.Context, loop.ApprovalRequest) (protocol.Approval, error),
) func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
	return func(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
		report(prompt.WaitsForApproval(request, flags))
		return wait(ctx, request)
	}
}

// hardExit is how long a second signal waits for the embedded worker to kill what runs.
const hardExit = 3 * time.Second

// finish shows how a session ended, with a hint how it continues unless it was answered, and, last,
// what it has left for git to run. It returns the exit code.
func finish(
	ctx context.Context, show view, session protocol.SessionID, r loop.TurnResult, err error, git *gitguard.Report, hint string,
) error {
	findings := git.Findings(ctx)
	show.found(session, findings)
	defer git.Alert(findings)
	show.observe(loop.Event{
		Type: loop.EventSessionEnded, SessionID: session, Time: time.Now().UTC(), Turn: r.Turn, Status: string(r.Outcome), Text: r.Text, Answer: r.Answer,
		ReplyFields: loop.ReplyFields{Usage: &r.Usage, CostUSD: r.CostUSD}, StartFields: loop.StartFields{TraceID: r.TraceID}, ResultFields: loop.ResultFields{Error: r.Error},
	})
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
	if hint != "" {
		show.warn(hint)
	}
	return exit
}
