package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/backup"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/environment"
	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/prompt"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

type chatCommand struct {
	runCommand
}

// isTerminal reports whether a person is at the terminal.
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
	if err := c.findLast(); err != nil {
		return err
	}
	return c.with(ctx, p, withoutInterrupt, func(ctx context.Context, s *started) (loop.TurnResult, error) {
		return newConversation(c, p, s).run(ctx)
	})
}

// withoutInterrupt ends a context on the signals that end a conversation: Ctrl-C ends only a turn.
func withoutInterrupt(ctx context.Context, _ func()) (context.Context, func()) {
	return signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGHUP)
}

// conversation is the turns that a person starts at the terminal, one after the other.
type conversation struct {
	command    *chatCommand
	session    *started
	editor     *prompt.Editor
	begin      *backup.Copy      // the workspace at the beginning
	before     []*backup.Copy    // the workspace before each of the last turns that were not undone, at most maxUndone
	back       int               // turns that /undo went back since the last message
	undone     int               // of these, those up to the last one whose changes were undone
	attached   []loop.Attachment // files that belong to the next message
	typed      bool              // the message was typed here
	interrupts chan os.Signal
}

// maxNamed is the number of files of each kind that /undo lists.
const maxNamed = 20

// maxUndone is the number of turns that can be undone, one after the other.
const maxUndone = 10

func newConversation(c *chatCommand, p program, s *started) *conversation {
	if c.asks == nil {
		c.asks = prompt.New(p.Stdin, s.show.screen, prompt.FilesOf(""))
	}
	return &conversation{
		command: c, session: s, attached: s.attachments, interrupts: make(chan os.Signal, 1),
		editor: prompt.NewEditor(c.asks, p.Stderr, s.workspace, commands()...),
	}
}

// run runs turns until the person ends the conversation.
func (v *conversation) run(ctx context.Context) (last loop.TurnResult, err error) {
	v.say("/help says what else can be done here; Ctrl-C stops a turn, and twice at the prompt ends.")
	v.begin = v.copied(ctx)
	defer func() {
		for _, c := range append(v.before, v.begin) {
			c.Remove()
		}
	}()
	signal.Notify(v.interrupts, os.Interrupt)
	defer signal.Stop(v.interrupts)
	if v.session.open && v.command.Prompt == "" {
		if last, err = v.turn(ctx, ""); err != nil {
			return last, err
		}
	}
	for text := v.command.Prompt; ; text = "" {
		v.typed = text == ""
		if v.typed {
			if text, err = v.editor.Read(ctx); err != nil {
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

// ended is the result of a conversation, whatever its turns were.
func (v *conversation) ended() loop.TurnResult {
	return loop.TurnResult{Outcome: loop.OutcomeAnswered}
}

func (v *conversation) say(format string, args ...any) { v.session.show.screen.Notice(format, args...) }

// turn runs a turn, which Ctrl-C stops.
func (v *conversation) turn(ctx context.Context, text string) (result loop.TurnResult, err error) {
	v.before = append(v.before, v.copied(ctx))
	if len(v.before) > maxUndone {
		v.before[0].Remove()
		v.before = v.before[1:]
	}
	if v.undone > 0 {
		text = undoneNote(v.undone) + "\n\n" + text
		v.typed = false
	}
	v.back, v.undone = 0, 0
	if v.typed {
		v.session.show.screen.Typed()
	}
	select {
	case <-v.interrupts: // of an earlier turn
	default:
	}
	ctx, ended := environment.Span(ctx, "chat")
	defer func() { ended(err) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-v.interrupts:
			cancel(prompt.ErrStopped)
		case <-done:
		}
	}()
	input := loop.Input{Text: text}
	if text != "" { // else it resumes a turn
		input.Attachments, v.attached = v.attached, nil
	}
	result, err = v.session.turn(ctx, input)
	v.session.env.Git.AlertNew(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	return result, err
}

// undoneNote tells the model that turns were undone.
func undoneNote(turns int) string {
	if turns == 1 {
		return "[The files are as they were before your last turn: I have undone its changes.]"
	}
	return fmt.Sprintf("[The files are as they were before your last %d turns: I have undone their changes.]", turns)
}

// commands are the lines that the model does not get.
func commands() []string {
	return []string{"/attach", "/compact", "/diff", "/help", "/quit", "/session", "/undo"}
}

func (v *conversation) obey(ctx context.Context, command string) {
	if path, is := strings.CutPrefix(command, "/attach "); is {
		v.attach(strings.TrimSpace(path))
		return
	}
	switch command {
	case "/help":
		v.say("%s", `@path      a file of the workspace; Tab completes it, and commands too
\          at the end of a line goes on with another one; pasted lines stay together
/attach F  sends the file F with your next message: an image, a PDF document or a text
/compact   has older replies replaced by a summary, so that there is room for more
/diff      what has changed in the workspace since this conversation began here
/undo      has the files as they were before the last turn; again, before the one before it
/session   which session this is, and how to go on with it
/quit      ends, as do Ctrl-D, and Ctrl-C twice`)
	case "/session":
		v.say("session %s, %s, %d tokens; continue with: coordinator chat --continue, or --session %s",
			v.session.session, terminal.Plural(v.session.totals.turns, "turn"), v.session.totals.usage.Total(), v.session.session)
	case "/attach":
		v.say("name the file: /attach FILE")
	case "/compact":
		v.compact(ctx)
	case "/diff":
		v.diff(ctx)
	case "/undo":
		v.undo(ctx)
	default:
		v.say("there is no %s; there are %s", command, strings.Join(commands(), ", "))
	}
}

// attach adds a file to the next message.
func (v *conversation) attach(path string) {
	a, err := readAttachment(path)
	list := append(slices.Clone(v.attached), a)
	if err == nil {
		err = loop.Input{Attachments: list}.Check(v.session.model)
	}
	if err != nil {
		v.say("%s is not attached: %v", path, attachmentError(err))
		return
	}
	v.attached = list
	v.say("%s (%s) goes with your next message", a.Name, a.MediaType)
}

func (v *conversation) compact(ctx context.Context) {
	switch done, err := v.session.runner.Compact(ctx, v.session.session, ""); {
	case err != nil:
		v.say("%v", err)
	case !done:
		v.say("there is nothing to replace by a summary")
	}
}

func (v *conversation) diff(ctx context.Context) {
	text, err := v.begin.Diff(ctx)
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
	err := inplace.Change(ctx, v.session.workspace, "/undo", v.session.session, func(m string) { v.say("%s", m) }, func() (err error) {
		changes, err = v.before[last].Restore(ctx)
		return err
	})
	if err != nil {
		v.say("%v", err)
		return
	}
	v.before[last].Remove()
	v.before, v.back = v.before[:last], v.back+1
	left := slices.Concat(changes.Conflicts, changes.Protected)
	switch {
	case len(changes.Written)+len(changes.Removed) > 0:
		v.undone = v.back
		v.say("undone: %s, %s; what commands did elsewhere, and git's commits, stay",
			terminal.Plural(len(changes.Written), "file")+" as before", terminal.Plural(len(changes.Removed), "new file")+" removed")
	case len(left) == 0:
		v.say("the last turn changed no files here, so nothing is undone; /undo again goes back one turn more")
	default:
		v.say("nothing is undone; /undo again goes back one turn more")
	}
	for i, paths := range [][]string{changes.Written, changes.Removed} {
		if what := []string{"as before", "removed"}[i]; len(paths) > 0 {
			more := ""
			if len(paths) > maxNamed {
				paths, more = paths[:maxNamed], ", ..."
			}
			v.say("%s: %s%s", what, strings.Join(paths, ", "), more)
		}
	}
	if len(left) > 0 {
		v.say("left as they are: %s", strings.Join(left, ", "))
	}
}

// copied copies the workspace, for /diff and /undo.
func (v *conversation) copied(ctx context.Context) *backup.Copy {
	protect, _ := v.command.Places() // they were checked at the start
	return backup.Of(ctx, v.session.workspace, v.session.env.Copy == nil, protect)
}
