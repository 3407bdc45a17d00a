package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// policyFlags say which tool calls may be made.
type policyFlags struct {
	Policy    string   `placeholder:"FILE" help:"Policy for tool calls, YAML or JSON, see docs/policy.md; the flags below bind beside it."`
	AllowTool []string `placeholder:"TOOL" help:"Tools that may be called, no others; * stands for any letters. May be given several times."`
	DenyTool  []string `placeholder:"TOOL" help:"Tools that may not be called. May be given several times."`
	AskFor    []string `placeholder:"TOOL" help:"Tools whose calls a person is asked about. May be given several times."`
	MaxCalls  int      `default:"0" help:"Tool calls of the session at most, refused ones not counted; 0 is no bound."`
	MinLevel  string   `placeholder:"LEVEL" help:"Least sandbox level of a worker that may run a call: none, paths, full or kernel."`
}

// policies returns what the flags say, without policies that allow everything.
func (f *policyFlags) policies() ([]policy.Policy, error) {
	var all []policy.Policy
	if f.Policy != "" {
		p, err := policy.Load(f.Policy)
		if err != nil {
			return nil, cli.Usagef("--policy: %v", err)
		}
		all = append(all, p)
	}
	p := policy.Policy{
		Tools: policy.Names{Allow: f.AllowTool, Deny: f.DenyTool}, Approval: policy.Approval{Tools: f.AskFor},
		MaxCalls: f.MaxCalls, MinLevel: f.MinLevel,
	}
	if _, err := policy.New(p); err != nil {
		return nil, cli.Usagef("policy flags: %v", err)
	}
	if !p.Zero() {
		all = append(all, p)
	}
	return all, nil
}

// judge makes the judge of a session; nil when everything is allowed.
func (f *policyFlags) judge() (loop.Policy, error) {
	all, err := f.policies()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return policy.New(all...)
}

// encoded returns the policies as they travel.
func (f *policyFlags) encoded() ([]json.RawMessage, error) {
	all, err := f.policies()
	if err != nil {
		return nil, err
	}
	out := make([]json.RawMessage, len(all))
	for i, p := range all {
		if out[i], err = json.Marshal(p); err != nil {
			return nil, fmt.Errorf("encode policy: %w", err)
		}
	}
	return out, nil
}

// prompt asks on a terminal. Its questions must not overlap.
type prompt struct {
	say   func(string)
	lines chan string // what is typed; closed at the end of the input
}

// newPrompt returns nil when standard input is no terminal.
func newPrompt(p program, say func(string)) *prompt {
	file, isFile := p.Stdin.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return promptOn(file, say)
}

// promptOn reads lines until the process ends: nothing can interrupt a read of a terminal.
func promptOn(input io.Reader, say func(string)) *prompt {
	q := &prompt{say: say, lines: make(chan string)}
	go func() {
		defer close(q.lines)
		for scanner := bufio.NewScanner(input); scanner.Scan(); {
			q.lines <- scanner.Text()
		}
	}()
	return q
}

var errNoInput = errors.New("the standard input has ended")

// approve asks until there is an answer. Anything but yes is no, and is told to the
// model when it is more than that. What was typed before the question does not count.
func (q *prompt) approve(ctx context.Context, request loop.ApprovalRequest) (loop.Approval, error) {
	for stale := true; stale; {
		select {
		case _, stale = <-q.lines:
		default:
			stale = false
		}
	}
	q.say(fmt.Sprintf("%s: %s %s", request.Reason, request.Tool, shortened(request.Arguments)))
	q.say("Allow it? y for yes; anything else is no, and is told to the model:")
	select {
	case line, open := <-q.lines:
		if !open {
			return loop.Approval{}, errNoInput
		}
		switch answer := strings.TrimSpace(line); strings.ToLower(answer) {
		case "y", "yes":
			return loop.Approval{Granted: true, By: userName()}, nil
		case "", "n", "no":
			return loop.Approval{By: userName()}, nil
		default:
			return loop.Approval{By: userName(), Note: answer}, nil
		}
	case <-ctx.Done():
		q.say("No answer is needed any more.")
		return loop.Approval{}, context.Cause(ctx)
	}
}

// shortened is a text that fits a few lines of a terminal.
func shortened(text string) string {
	const most = 1000
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + fmt.Sprintf(" [... and %d more characters]", len(runes)-most)
	}
	return text
}

// userName is who answers, for the audit log.
func userName() string {
	if current, err := user.Current(); err == nil {
		return current.Username
	}
	return ""
}
