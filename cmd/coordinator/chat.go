package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/terminal/prompt"
	"github.com/toolfleet/toolfleet/internal/workspace/backup"
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
		return cli.Usagef("--json: works with run and submit, not with chat")
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
	states     *backup.States    // of the workspace
	begin      backup.State      // at the beginning
	before     []backup.State    // before each of the last turns that were not undone, at most maxUndone
	back       int               // turns that /undo went back since the last message
	undone     int               // of these, those up to the last one whose changes were undone
	attached   []loop.Attachment // files that belong to the next message
	protect    []string          // paths that /undo does not change
	typed      bool              // the message was typed here
	kept       []string          // messages for the next turn that were typed while one ran
	over       bool              // the person has ended the conversation
	edits      int               // the turn whose input the next message replaces; 0 is none
	interrupts chan os.Signal
	getenv     func(string) string
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
		editor: prompt.NewEditor(c.asks, p.Stderr, s.workspace, commandNames()...), getenv: p.Getenv,
	}
}

// run runs turns until the person ends the conversation.
func (v *conversation) run(ctx context.Context) (last loop.TurnResult, err error) {
	v.say("/help lists commands. Ctrl-C stops a turn; twice at the prompt it ends chat.")
	v.states = v.openStates()
	sums, text := v.session.sums(), strings.TrimSpace(v.command.Prompt)
	if sums.open != nil {
		v.begin = v.states.Resume(ctx, sums.turn)
	} else {
		v.begin = v.states.Save(ctx, sums.turn+1, backup.Before)
	}
	signal.Notify(v.interrupts, os.Interrupt)
	defer signal.Stop(v.interrupts)
	if sums.open != nil { // its changes are not those of the prompt's turn
		if last, err = v.turn(ctx, ""); err != nil {
			return last, err
		}
		switch prompt := (loop.Input{Text: text, Attachments: v.attached}); {
		case prompt.Same(*sums.open): // the command was repeated
			text, v.attached = "", nil
		case last.Outcome == loop.OutcomeInterrupted:
			v.editor.Begin(text)
			text = ""
		}
	}
	for ; ; text = "" {
		if text == "" && len(v.kept) > 0 {
			text, v.kept = strings.Join(v.kept, "\n\n"), nil
		}
		if v.typed = text == ""; v.typed {
			if text, err = v.editor.Read(ctx); err != nil {
				break
			}
		}
		edits := v.edits
		v.edits = 0
		switch text = strings.TrimSpace(text); {
		case isCommand(text):
			v.typed = false
			if text = v.obey(ctx, text); v.over {
				return v.ended(), nil
			}
		case text != "" && edits > 0:
			text = v.goBack(ctx, edits-1, text)
		}
		if text == "" {
			continue
		}
		if last, err = v.turn(ctx, text); err != nil {
			return last, err
		}
		if last.Outcome == loop.OutcomeInterrupted && len(v.kept) > 0 { // who stopped the turn may not want them as they are
			v.editor.Begin(strings.Join(v.kept, "\n"))
			v.kept = nil
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
	if turn := v.session.sums().turn; text != "" {
		v.before = append(v.before, v.states.Save(ctx, turn+1, backup.Before))
	} else {
		v.before = append(v.before, v.states.Resume(ctx, turn))
	}
	if len(v.before) > maxUndone {
		v.before = v.before[1:]
	}
	defer func() {
		if sums := v.session.sums(); sums.open == nil { // else the files are changed by halves
			v.states.Save(context.WithoutCancel(ctx), sums.turn, backup.End)
		}
	}()
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
		input.AnswerSchema = v.session.schema
		input.Attachments, v.attached = v.attached, nil
	}
	listened := v.listen(ctx, cancel)
	result, err = v.session.turn(ctx, input)
	listened()
	v.session.env.Git.AlertNew(ctx)
	return result, err
}

// listen passes what is typed while a turn runs to that turn, until the function that it returns is
// called. Without a live view nothing is read: what is typed waits for the prompt.
func (v *conversation) listen(ctx context.Context, stop context.CancelCauseFunc) (end func()) {
	if !v.session.show.live {
		return func() {}
	}
	ctx, over := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			text, later, err := v.editor.Meanwhile(ctx)
			switch text = strings.TrimSpace(text); {
			case errors.Is(err, prompt.ErrStopped):
				stop(prompt.ErrStopped)
				return
			case errors.Is(err, io.EOF):
				v.say("a turn runs: Ctrl-C stops it; Ctrl-D ends chat only at the prompt")
			case err != nil:
				return
			case text == "":
			case isCommand(text):
				v.obeyMeanwhile(ctx, text)
			case later:
				v.kept = append(v.kept, text)
				v.say("this message is for the next turn")
			default:
				v.add(ctx, text)
			}
		}
	}()
	return func() { over(); <-done }
}

// add passes a message to the turn that runs; if it takes no more, the next turn gets it.
func (v *conversation) add(ctx context.Context, text string) {
	v.session.show.screen.Typed()
	switch taken, err := v.session.options.Additions.Add(context.WithoutCancel(ctx), text); {
	case err != nil:
		v.say("the message may not have reached the session: %v", err)
	case !taken:
		v.kept = append(v.kept, text)
		v.say("the turn accepts no more messages: this one is for the next turn")
	}
}

// undoneNote tells the model that turns were undone.
func undoneNote(turns int) string {
	if turns == 1 {
		return "[The files are as they were before your last turn: I have undone its changes.]"
	}
	return fmt.Sprintf("[The files are as they were before your last %d turns: I have undone their changes.]", turns)
}
