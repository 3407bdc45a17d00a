package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
	protocolacp "github.com/coder/acp-go-sdk"

	"github.com/toolfleet/toolfleet/internal/acp"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/terminal/prompt"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

type acpCommand struct {
	Model       string   `placeholder:"M" brief:"openai:, anthropic: or google:NAME, or script:FILE." help:"Model: openai:NAME (OPENAI_API_KEY, OPENAI_BASE_URL), anthropic:NAME (ANTHROPIC_API_KEY), google:NAME (GEMINI_API_KEY) or script:FILE. Required."`
	SessionMode string   `default:"ask" enum:"ask,auto,read-only" help:"Mode of new sessions, which the editor can change: ask asks you before calls that may change something, auto asks only where a policy says so, and read-only refuses such calls."`
	WholeHome   bool     `group:"Workspace:" help:"Allow the editor to name the root or home directory as the workspace."`
	Unsaved     bool     `group:"Workspace:" help:"Show the model what you have changed in the editor and not saved, when it reads the file, if the editor offers that. The editor reads files as you."`
	Toolset     []string `default:"core" help:"Toolsets of the model, separated by commas."`

	boundFlags
	promoteFlag   `group:"Tools:"`
	agentFlag     `group:"Tools:"`
	hookFlag      `group:"Policy:"`
	shareFlags    `group:"Fleet:"`
	modelFlags    `group:"Model:"`
	providerFlags `group:"Model:"`
	environment.SessionFlags
	environment.Flags
}

// The modes of a session at an editor.
const (
	modeAsk      = "ask"
	modeAuto     = "auto"
	modeReadOnly = "read-only"
)

func editorModes() []protocolacp.SessionMode {
	mode := func(id, name, description string) protocolacp.SessionMode {
		return protocolacp.SessionMode{Id: protocolacp.SessionModeId(id), Name: name, Description: &description}
	}
	return []protocolacp.SessionMode{
		mode(modeAsk, "Ask", "Asks before each call that may change something."),
		mode(modeAuto, "Auto", "Asks only where the policy of the command says so."),
		mode(modeReadOnly, "Read only", "Refuses calls that may change something."),
	}
}

func (c *acpCommand) run(ctx context.Context, p program) error {
	if c.Data != "" {
		return cli.Usagef("--data: editors open several sessions at once, and a data directory serves one process; omit it")
	}
	if _, _, err := (model.Opener{Env: p.Getenv}).Open(c.Model); err != nil {
		return cli.Usagef("--model: %v", err)
	}
	if isTerminal(p) {
		p.warn("an editor starts this command and speaks the Agent Client Protocol with it on stdin and stdout (docs/editors.md); Ctrl-C ends it")
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	agent := acp.New(acp.Options{
		Version: p.Version, Modes: editorModes(), Mode: c.SessionMode, User: prompt.UserName(),
		Open: func(ctx context.Context, o acp.Opening) (acp.Session, error) {
			s, err := c.open(ctx, p, o)
			if bad, is := errors.AsType[*environment.WorkspaceError](err); is {
				err = &acp.CwdError{Fault: bad.Fault}
			}
			return s, err
		},
		List:   func(ctx context.Context) ([]report.Session, error) { return c.list(ctx, p) },
		Delete: func(ctx context.Context, id protocol.SessionID) error { return c.remove(ctx, p, id) },
	})
	return agent.Serve(ctx, p.Stdin, p.Stdout)
}

// maxListed is how many sessions an editor can choose from.
const maxListed = 200

// list returns the sessions that changed last.
func (c *acpCommand) list(ctx context.Context, p program) (list []report.Session, err error) {
	all, err := c.sessions(ctx, p)
	if err != nil {
		return nil, err
	}
	defer all.close()
	if all.local != nil {
		list, _, err = all.local.List(ctx, maxListed)
	} else {
		list, _, err = all.List(ctx, maxListed)
	}
	return list, err
}

// sessions reaches the sessions that an editor can load.
func (c *acpCommand) sessions(ctx context.Context, p program) (*opened, error) {
	return (&lookedAt{Nats: c.Nats, Connection: c.Connection}).open(ctx, p.logger(), "", false)
}

// exists returns an error that wraps [fleet.ErrNotFound] if there is no such session.
func (c *acpCommand) exists(ctx context.Context, p program, id protocol.SessionID) error {
	all, err := c.sessions(ctx, p)
	if err != nil {
		return err
	}
	defer all.close()
	_, err = all.Show(ctx, id)
	return err
}

// remove removes a session.
func (c *acpCommand) remove(ctx context.Context, p program, id protocol.SessionID) error {
	all, err := c.sessions(ctx, p)
	if err != nil {
		return err
	}
	defer all.close()
	if all.use(ctx, id); all.local != nil {
		_, err = all.local.Remove(ctx, id, false)
	} else {
		_, err = all.Remove(ctx, id, false)
	}
	return err
}

// editorSession is a session that an editor has opened.
type editorSession struct {
	*started

	ctx      context.Context //nolint:containedctx // it carries whose calls they are, and lasts as long as the session
	policies []policy.Policy // of the flags
	mode     string
	end      func(error)
}

// open opens a session for the editor.
func (c *acpCommand) open(ctx context.Context, p program, o acp.Opening) (_ acp.Session, err error) {
	id := o.ID
	if id == "" {
		id = protocol.NewSessionID()
	} else if err := c.exists(ctx, p, id); err != nil {
		return nil, err
	}
	warn := func(text string) { p.warn("session " + string(id) + ": " + text) }
	p.Stdin = strings.NewReader("") // the protocol has it
	r := &runCommand{
		Model: c.Model, providerFlags: c.providerFlags, agentFlag: c.agentFlag, hookFlag: c.hookFlag, Flags: c.Flags, editor: o.Approve, fill: o.Fill,
		turnFlags: turnFlags{
			Session: string(o.ID), workspaceFlags: workspaceFlags{Workspace: o.Directory, WholeHome: c.WholeHome}, Toolset: c.Toolset,
			boundFlags: c.boundFlags, promoteFlag: c.promoteFlag, shareFlags: c.shareFlags, modelFlags: c.modelFlags, SessionFlags: c.SessionFlags, talks: true,
		},
	}
	r.fleet = c.Nats != ""
	screen := terminal.New(io.Discard, &terminal.Options{Workers: r.fleet}) // it knows what waits
	show := view{screen: screen, warn: warn, alert: warn, observe: func(e loop.Event) { screen.Observe(e); o.Observe(e) }}
	turn, err := r.prepare(p, id, warn)
	if err != nil {
		return nil, err
	}
	if c.Unsaved && o.ReadText != nil {
		turn.options.Hooks = append([]loop.Hook{unsaved(o.ReadText, o.Directory)}, turn.options.Hooks...)
	}
	s := &editorSession{}
	if s.policies, err = c.Policies(); err != nil {
		return nil, err
	}
	if len(o.Servers) > 0 {
		turn.tools.Configured = append(turn.tools.Configured, o.Servers...)
		if err := turn.tools.Reload(warn); err != nil {
			return nil, err
		}
	}
	s.ctx, s.started, s.end, err = r.open(ctx, p, turn, show, p.logger(), func(func()) {})
	if err != nil {
		screen.Close()
		return nil, err
	}
	s.renew = s.applyMode
	silence, err := s.env.Client.Sessions("").Output(s.ctx, id, o.Output) //nolint:contextcheck // it lasts as long as the session
	end := s.end
	s.end = func(err error) {
		silence()
		_ = s.env.Client.Close() // with everything of the session that still runs
		end(err)
		screen.Close()
	}
	if err != nil {
		silence = func() {}
		s.end(err)
		return nil, err
	}
	return s, nil
}

// ID implements [acp.Session].
func (s *editorSession) ID() protocol.SessionID { return s.session }

// Tools implements [acp.Session].
func (s *editorSession) Tools() *tools.Table { return s.tools.Table }

// Check implements [acp.Session].
func (s *editorSession) Check(input loop.Input) error { return input.Check(s.model) }

// Close implements [acp.Session].
func (s *editorSession) Close() { s.end(nil) }

// History implements [acp.Session].
func (s *editorSession) History(ctx context.Context) ([]loop.Event, error) {
	history, err := s.env.Client.Sessions("").Log(ctx, s.session)
	if errors.Is(err, fleet.ErrNotFound) { // nothing was said yet
		err = nil
	}
	return history.Events, err
}

// during is the context of the session until ctx ends.
func (s *editorSession) during(ctx context.Context) (context.Context, func()) {
	running, cancel := context.WithCancelCause(s.ctx)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return running, func() { stop(); cancel(nil) }
}

// Run implements [acp.Session].
func (s *editorSession) Run(ctx context.Context, input loop.Input) (result loop.TurnResult, err error) {
	ctx, done := s.during(ctx)
	defer done()
	ctx, ended := environment.Span(ctx, "acp")
	defer func() { ended(err) }()
	result, err = s.turn(ctx, input)
	s.env.Git.AlertNew(ctx)
	return result, err
}

// SetMode implements [acp.Session].
func (s *editorSession) SetMode(mode string) error {
	s.mode = mode
	return s.applyMode()
}

// applyMode adds the rule of the mode to the policy. The rule names tools, so it is made again
// whenever the tools were read again.
func (s *editorSession) applyMode() error {
	policies := slices.Clone(s.policies)
	var looking, changing []string
	for _, name := range s.Tools().Names() {
		tool, _ := s.Tools().Lookup(name)
		if e := tool.Effect; e.Loop || e.ReadOnly && !e.Hinted {
			looking = append(looking, name)
		} else {
			changing = append(changing, name)
		}
	}
	switch {
	case s.mode == modeAsk && len(changing) > 0:
		policies = append(policies, policy.Policy{Approval: policy.Approval{Tools: changing}})
	case s.mode == modeReadOnly:
		policies = append(policies, policy.Policy{Tools: policy.Names{Allow: append(looking, "@read")}})
	}
	next := s.prepared
	next.options.Policy = nil
	if len(policies) > 0 {
		judge, err := policy.New(policies...)
		if err != nil {
			return err
		}
		next.options.Policy = judge
	}
	return s.use(next)
}

// RemembersApproval implements [acp.Session]: where the operator's policy demands approval, it is
// for each call.
func (s *editorSession) RemembersApproval() bool {
	return !slices.ContainsFunc(s.policies, func(p policy.Policy) bool { return len(p.Approval.Tools)+len(p.Approval.Commands) > 0 })
}

// Commands implements [acp.Session].
func (s *editorSession) Commands() []protocolacp.AvailableCommand {
	commands := []protocolacp.AvailableCommand{
		{Name: "compact", Description: "Replace older replies by a summary."},
		{Name: "clear", Description: "Begin a new conversation in this session; the files stay as they are."},
	}
	if len(s.tools.Skills) > 0 {
		input := &protocolacp.AvailableCommandInput{Unstructured: &protocolacp.UnstructuredCommandInput{Hint: "NAME what to do"}}
		commands = append(commands, protocolacp.AvailableCommand{Name: "skill", Description: "Use a skill.", Input: input})
	}
	return commands
}

// Command implements [acp.Session].
func (s *editorSession) Command(ctx context.Context, name, argument string) (answer, text string) {
	ctx, done := s.during(ctx)
	defer done()
	switch name {
	case "skill":
		return useSkill(s.tools, argument)
	case "clear":
		if err := s.runner.Rewind(ctx, s.session, 0); err != nil {
			return err.Error(), ""
		}
		return "The conversation begins again.", ""
	default:
		switch changed, err := s.runner.Compact(ctx, s.session, ""); {
		case err != nil:
			return err.Error(), ""
		case !changed:
			return "There are no older replies that a summary could replace.", ""
		}
		return "A summary replaces the older replies.", ""
	}
}

// useSkill lists the skills, or returns the text of a turn that uses one.
func useSkill(box *environment.Toolbox, argument string) (answer, text string) {
	if len(box.Skills) == 0 {
		return "there are no skills: --skills DIR names their folder", ""
	}
	_, list, _ := strings.Cut(box.Skills[0].Hint, "\n")
	name, task, _ := strings.Cut(argument, " ")
	switch {
	case name == "":
		return list, ""
	case !strings.Contains("\n"+list, "\n- "+name+": "):
		return fmt.Sprintf("there is no skill %s; there are:\n%s", name, list), ""
	}
	return "", strings.TrimSpace(fmt.Sprintf("Read the skill %s with the tool skill, and follow it. %s", name, strings.TrimSpace(task)))
}

// maxUnsaved bounds a file whose unsaved changes are shown, and maxShownUnsaved what is shown of
// them, in bytes.
const (
	maxUnsaved      = 1 << 20
	maxShownUnsaved = 32 << 10
)

// unsaved is a hook that shows the model what the person has changed in a file and not saved, when
// it reads that. The file has to be one of the workspace. An editor that does not answer, or that
// knows no such file, changes nothing.
func unsaved(read func(context.Context, string) (string, error), directory string) loop.Hook {
	reads := func(tool string) bool { return terminal.Builtin(tool) == "read" }
	return loop.Hook{Event: loop.HookAfter, Matches: reads, Run: func(ctx context.Context, r loop.HookRequest) (answer loop.HookAnswer, _ error) {
		var given struct{ Path string }
		if json.Unmarshal(r.Input, &given) != nil || given.Path == "" || r.Result.Status != protocol.StatusOK {
			return answer, nil
		}
		name := filepath.FromSlash(strings.TrimPrefix(given.Path, "/workspace/"))
		if relative, err := filepath.Rel(directory, name); err == nil && filepath.IsAbs(name) {
			name = relative
		}
		root, err := os.OpenRoot(directory)
		if err != nil {
			return answer, nil // there is nothing to compare
		}
		defer func() { _ = root.Close() }() // it was only read
		stored, err := regular.ReadIn(root, name, maxUnsaved)
		if err != nil {
			return answer, nil // it is no file of the workspace, or large
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		text, err := read(ctx, filepath.Join(directory, name))
		if err != nil || text == string(stored) || len(text) > maxUnsaved {
			return answer, nil // the file as it is stored is what there is
		}
		diff, err := udiff.ToUnified("saved", "in the editor", string(stored), udiff.Lines(string(stored), text), udiff.DefaultContextLines)
		if err != nil {
			return answer, err
		}
		shown := r.Result.Content +
			"\n[The user has changed this file in the editor and not saved it. Tools work with the file as it is saved. What is different in the editor:]\n" +
			prose.Head(diff, maxShownUnsaved)
		answer.Output = &shown
		return answer, nil
	}}
}
