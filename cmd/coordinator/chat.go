package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type chatCommand struct {
	runCommand

	Continue bool `help:"Continue the last conversation of this directory."`
}

// readPrompt reads the prompt from standard input where that is asked for, or is all there is.
func (f *turnFlags) readPrompt(p program) error {
	file, isFile := p.Stdin.(*os.File)
	piped := false
	if isFile && f.Prompt == "" {
		info, err := file.Stat()
		piped = err == nil && info.Mode()&os.ModeCharDevice == 0
	}
	if f.Prompt != "-" && !piped {
		return nil
	}
	content, err := io.ReadAll(p.Stdin)
	if err != nil {
		return fmt.Errorf("read the prompt: %w", err)
	}
	f.Prompt = strings.TrimSpace(string(content))
	return nil
}

// isTerminal reports whether somebody can talk here.
func isTerminal(p program) bool {
	file, isFile := p.Stdin.(*os.File)
	return isFile && terminal.IsTerminal(file) && terminal.IsTerminal(p.Stderr)
}

func (c *chatCommand) run(ctx context.Context, p program) error {
	if !isTerminal(p) {
		return cli.Usagef("chat needs a terminal on stdin and stderr; coordinator run takes one prompt")
	}
	if c.JSON {
		return cli.Usagef("--json: is for run and submit; a conversation is for people")
	}
	c.talks = true
	if c.Continue {
		if c.Session != "" {
			return cli.Usagef("--continue: takes the last session; leave --session out")
		}
		last, err := c.lastSession()
		if err != nil {
			return err
		}
		c.Session = string(last)
	}
	return c.with(ctx, p, withoutInterrupt, func(ctx context.Context, s *started) (loop.TurnResult, error) {
		return newConversation(c, p, s).run(ctx)
	})
}

// withoutInterrupt ends a context with the signals that end a conversation: Ctrl-C is for its turn.
func withoutInterrupt(ctx context.Context, _ func()) (context.Context, func()) {
	return signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGHUP)
}

// conversation is turns that somebody asks for, one after the other.
type conversation struct {
	command    *chatCommand
	session    *started
	editor     *editor
	begin      *workspaceCopy   // what the workspace was
	before     []*workspaceCopy // what it was before each of the last turns that were not undone, at most maxUndone
	undone     int              // turns, which the model has not been told
	turns      int
	usage      protocol.Usage
	interrupts chan os.Signal
}

// maxNamed is how many files of each kind /undo names.
const maxNamed = 20

// maxUndone is how many turns can be undone, one after the other.
const maxUndone = 10

func newConversation(c *chatCommand, p program, s *started) *conversation {
	if c.asks == nil {
		c.asks = newPrompt(p, s.show.screen, "")
	}
	return &conversation{
		command: c, session: s, interrupts: make(chan os.Signal, 1),
		editor: &editor{keys: c.asks.keys, out: p.Stderr, view: s.show.screen, workspace: s.workspace, history: loadHistory()},
	}
}

// run takes turns until there is no more to say.
func (v *conversation) run(ctx context.Context) (last loop.TurnResult, err error) {
	v.command.remember(v.session.session)
	v.say("/help says what else can be done here; Ctrl-C stops a turn, and twice at the prompt ends.")
	v.begin = v.copied(ctx)
	defer func() {
		for _, c := range append(v.before, v.begin) {
			c.remove()
		}
	}()
	signal.Notify(v.interrupts, os.Interrupt)
	defer signal.Stop(v.interrupts)
	for text := v.command.Prompt; ; text = "" {
		if text == "" {
			if text, err = v.editor.read(ctx); err != nil {
				break
			}
		}
		switch text = strings.TrimSpace(text); {
		case text == "":
		case text == "/quit" || text == "/exit":
			return v.ended(), nil
		case strings.HasPrefix(text, "/") && !strings.Contains(text, "\n"):
			v.obey(ctx, text)
		default:
			if last, err = v.turn(ctx, text); err != nil {
				return last, err
			}
		}
	}
	if ctx.Err() != nil {
		return loop.TurnResult{Outcome: loop.OutcomeInterrupted}, nil
	}
	return v.ended(), nil // Ctrl-D, or the terminal is gone
}

// ended is the end of a conversation, however its turns went.
func (v *conversation) ended() loop.TurnResult {
	return loop.TurnResult{Outcome: loop.OutcomeAnswered, Usage: v.usage}
}

func (v *conversation) say(format string, args ...any) { v.session.show.screen.Notice(format, args...) }

// turn runs a turn, which Ctrl-C stops.
func (v *conversation) turn(ctx context.Context, text string) (result loop.TurnResult, err error) {
	v.before = append(v.before, v.copied(ctx))
	if len(v.before) > maxUndone {
		v.before[0].remove()
		v.before = v.before[1:]
	}
	if v.undone > 0 {
		text = told(v.undone) + "\n\n" + text
		v.undone = 0
	}
	select {
	case <-v.interrupts: // was for what has ended
	default:
	}
	ctx, ended := spanOf(ctx, "chat")
	defer func() { ended(err) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-v.interrupts:
			cancel(errStopped)
		case <-done:
		}
	}()
	result, err = v.session.turn(ctx, text)
	v.session.git.tellNew(ctx)
	v.turns, v.usage = v.turns+1, v.usage.Add(result.Usage)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	return result, err
}

// told tells the model that turns were undone.
func told(turns int) string {
	if turns == 1 {
		return "[The files are as they were before your last turn: I have undone its changes.]"
	}
	return fmt.Sprintf("[The files are as they were before your last %d turns: I have undone their changes.]", turns)
}

// commands are what is not said to the model.
func commands() []string { return []string{"/diff", "/help", "/quit", "/session", "/undo"} }

func (v *conversation) obey(ctx context.Context, command string) {
	switch command {
	case "/help":
		v.say("%s", `@path      a file of the workspace; Tab completes it, and commands too
\          at the end of a line goes on with another one; pasted lines stay together
/diff      what has changed in the workspace since this conversation began here
/undo      has the files as they were before the last turn; again, before the one before it
/session   which session this is, and how to go on with it
/quit      ends, as do Ctrl-D, and Ctrl-C twice`)
	case "/session":
		v.say("session %s, %s, %d tokens; go on with: coordinator chat --continue, or --session %s",
			v.session.session, terminal.Plural(v.turns, "turn"), v.usage.Total(), v.session.session)
	case "/diff":
		v.diff(ctx)
	case "/undo":
		v.undo(ctx)
	default:
		v.say("there is no %s; there are %s", command, strings.Join(commands(), ", "))
	}
}

func (v *conversation) diff(ctx context.Context) {
	text, err := v.begin.diff(ctx)
	switch {
	case err != nil:
		v.say("%v", err)
	case text == "":
		v.say("nothing has changed")
	default:
		v.session.show.screen.Diff(text)
	}
}

func (v *conversation) undo(ctx context.Context) {
	last := len(v.before) - 1
	if last < 0 {
		v.say("there is no turn to undo")
		return
	}
	var changes snapshot.Changes
	err := inOrder(ctx, v.session.workspace, "/undo", v.session.session, func(m string) { v.say("%s", m) }, func() (err error) {
		changes, err = v.before[last].restore(ctx)
		return err
	})
	if err != nil {
		v.say("%v", err)
		return
	}
	v.before[last].remove()
	v.before, v.undone = v.before[:last], v.undone+1
	if len(changes.Written)+len(changes.Removed)+len(changes.Conflicts)+len(changes.Protected) == 0 {
		v.say("the last turn changed no files here, so nothing is undone; /undo again goes back one turn more")
		return
	}
	v.say("undone: %s, %s; what commands did elsewhere, and git's commits, stay",
		terminal.Plural(len(changes.Written), "file")+" as before", terminal.Plural(len(changes.Removed), "new file")+" removed")
	for i, paths := range [][]string{changes.Written, changes.Removed} {
		if what := []string{"as before", "removed"}[i]; len(paths) > 0 {
			more := ""
			if len(paths) > maxNamed {
				paths, more = paths[:maxNamed], ", ..."
			}
			v.say("%s: %s%s", what, strings.Join(paths, ", "), more)
		}
	}
	if left := slices.Concat(changes.Conflicts, changes.Protected); len(left) > 0 {
		v.say("left as they are: %s", strings.Join(left, ", "))
	}
}

// copied copies the workspace, so that it can be looked at and brought back.
func (v *conversation) copied(ctx context.Context) *workspaceCopy {
	return copyWorkspace(ctx, v.session.workspace, v.session.remote == nil, v.session.protect)
}
