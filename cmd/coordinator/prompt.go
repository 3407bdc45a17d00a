package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/user"
	"path"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// prompt asks on a terminal, one question at a time.
type prompt struct {
	screen *terminal.View
	keys   *keyboard
	old    func(ctx context.Context) func(path string) ([]byte, bool) // what files of the workspace have; nil for what nobody knows
	always map[string]bool                                            // what need not be asked again
	asking chan struct{}                                              // has room for who asks
}

// newPrompt returns nil when standard input is no terminal.
func newPrompt(p program, screen *terminal.View, workspace string) *prompt {
	file, isFile := p.Stdin.(*os.File)
	if !isFile || !terminal.IsTerminal(file) {
		return nil
	}
	return &prompt{screen: screen, keys: newKeyboard(file), old: filesOf(workspace), always: map[string]bool{}, asking: make(chan struct{}, 1)}
}

// ask puts a question and waits for a line that was typed after it, behind questions that are put.
func (q *prompt) ask(ctx context.Context, question terminal.Question) (string, error) {
	q.keys.drop()
	asked := time.Now()
	answered := q.screen.Ask(question)
	line, err := q.keys.line(ctx, asked)
	answered()
	if ctx.Err() != nil {
		q.screen.Notice("No answer is needed any more.")
		return "", context.Cause(ctx)
	}
	return line, err
}

// begin waits until no other question is put.
func (q *prompt) begin(ctx context.Context) (end func(), err error) {
	select {
	case q.asking <- struct{}{}:
		return func() { <-q.asking }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

var errNoInput = errors.New("the standard input has ended")

// approve asks until there is an answer. Anything but yes is no. What is said beyond that
// is told to the model. What was typed before the question does not count.
func (q *prompt) approve(ctx context.Context, request loop.ApprovalRequest) (loop.Approval, error) {
	kind, says := alike(request)
	if q.always[kind] {
		q.screen.Notice("allowed as before: %s", says)
		return loop.Approval{Granted: true, By: userName()}, nil
	}
	end, err := q.begin(ctx)
	if err != nil {
		return loop.Approval{}, err
	}
	defer end()
	line, err := q.ask(ctx, terminal.Question{
		Reason: request.Reason, Tool: request.Tool, Arguments: request.Arguments, Old: q.old(ctx),
		Answers: "Allow it? y: yes. a: always in this session, " + says + ". \"y: ...\" adds something; anything else is no, and is told to the model:",
	})
	if err != nil {
		return loop.Approval{}, err
	}
	answer, always := answerOf(line)
	if always {
		q.always[kind] = true
	}
	return answer, nil
}

// filesOf looks at the files of a directory; "" is none.
func filesOf(workspace string) func(context.Context) func(string) ([]byte, bool) {
	return func(context.Context) func(string) ([]byte, bool) {
		if workspace == "" {
			return nil
		}
		return func(path string) ([]byte, bool) { return textIn(workspace, path) }
	}
}

func textIn(workspace, path string) ([]byte, bool) {
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return nil, false
	}
	defer func() { _ = root.Close() }() // nothing was written
	if info, err := root.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() > maxShownFile {
		return nil, false
	}
	content, err := root.ReadFile(path)
	return content, err == nil && !bytes.ContainsRune(content, 0)
}

// kept looks at the files of a session's workspace that the fleet keeps: what it was before the
// call. Workers that keep none, or rights that do not reach, tell nothing.
func kept(fl *fleet.Fleet, session protocol.SessionID) func(context.Context) func(string) ([]byte, bool) {
	return func(ctx context.Context) func(string) ([]byte, bool) {
		store, err := workspace.Open(ctx, fl.Conn(protocol.DefaultPool), fl.Name)
		if err != nil {
			return nil
		}
		_, tree, err := store.Change(ctx, sessionDesk{id: session}.lane(), "")
		if err != nil {
			return nil
		}
		return func(name string) ([]byte, bool) {
			node := tree[underWorkspace+path.Clean(name)]
			if node.Type != sandbox.TypeFile {
				return nil, false
			}
			content, err := snapshot.LoadBytes(ctx, store, node.Parts, maxShownFile)
			return content, err == nil && !bytes.ContainsRune(content, 0)
		}
	}
}

// maxShownFile bounds the files of which a difference is shown, in bytes.
const maxShownFile = 512 << 10

// alike returns what an answer for the whole session is about: commands are allowed as they are
// written, other tools whatever they are called with.
func alike(request loop.ApprovalRequest) (kind, says string) {
	var args struct {
		Command, Code *string
	}
	if json.Unmarshal([]byte(request.Arguments), &args) == nil && (args.Command != nil || args.Code != nil) {
		return request.Tool + "\x00" + request.Arguments, "this very command"
	}
	return request.Tool, "every call of " + request.Tool
}

// answerOf reads an answer; always says that it is for the session.
func answerOf(line string) (answer loop.Approval, always bool) {
	text := strings.TrimSpace(line)
	word, note, _ := strings.Cut(text, ":")
	answer = loop.Approval{By: userName(), Note: strings.TrimSpace(note)}
	switch strings.ToLower(strings.TrimSpace(word)) {
	case "a", "always":
		answer.Granted, always = true, true
	case "y", "yes":
		answer.Granted = true
	case "", "n", "no":
	default:
		answer.Note = text
	}
	return answer, always
}

// userName is who answers, for the audit log.
func userName() string {
	if current, err := user.Current(); err == nil {
		return current.Username
	}
	return ""
}
