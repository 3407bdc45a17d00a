// Package hooks runs programs as the hooks of sessions ([loop.Hook]). A file names them in the form
// of Claude Code's settings; each reads one JSON object on stdin, and may print one.
package hooks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// Bounds of the file and of what a program prints, in bytes.
const (
	maxFile   = 1 << 20
	maxOutput = 1 << 20
)

// exitDeny is the exit code of a program that denies; its stderr is the reason.
const exitDeny = 2

type file struct {
	Hooks map[loop.HookEvent][]struct {
		Matcher string `json:"matcher"`
		Hooks   []struct {
			Type    string  `json:"type"`
			Command string  `json:"command"`
			Timeout float64 `json:"timeout"` // seconds
		} `json:"hooks"`
	} `json:"hooks"`
}

// Load reads a file of hooks. workspace is the directory in which the session works; it may be "".
// The programs run in the directory of the file, as the user of this process.
func Load(path, workspace string) ([]loop.Hook, error) {
	content, err := regular.Read(path, maxFile)
	if err != nil {
		return nil, cmp.Or(errors.Unwrap(err), err)
	}
	var f file
	if err := cmp.Or(json.Unmarshal(content, &f), unambiguous(content)); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var hooks []loop.Hook
	for _, event := range loop.HookEvents() {
		for i, group := range f.Hooks[event] {
			at := fmt.Sprintf("hooks.%s[%d]", event, i)
			matches, err := matcher(group.Matcher)
			if err != nil {
				return nil, fmt.Errorf("%s.matcher %q: %w", at, group.Matcher, err)
			}
			for j, h := range group.Hooks {
				at := fmt.Sprintf("%s.hooks[%d]", at, j)
				timeout := time.Duration(h.Timeout * float64(time.Second))
				switch {
				case h.Type != "command":
					return nil, fmt.Errorf(`%s.type %q: must be "command"`, at, h.Type)
				case strings.TrimSpace(h.Command) == "":
					return nil, fmt.Errorf("%s.command: is missing", at)
				case h.Timeout < 0 || h.Timeout > 600:
					return nil, fmt.Errorf("%s.timeout %v: must be 0 to 600 seconds", at, h.Timeout)
				}
				hooks = append(hooks, loop.Hook{Event: event, Matches: matches, Timeout: timeout, Run: command{h.Command, dir, workspace}.run})
			}
		}
		delete(f.Hooks, event)
	}
	for event := range f.Hooks { // a hook that never runs would refuse nothing
		return nil, fmt.Errorf("hooks.%s: there is no such event; there are %v", event, loop.HookEvents())
	}
	if len(hooks) == 0 {
		return nil, errors.New(`it names no hook; there has to be an object "hooks"`)
	}
	return hooks, nil
}

// unambiguous returns an error for JSON that names something twice. Only the last one would count:
// a list of hooks that never runs refuses nothing, and a program that puts the text of a model into
// what it prints could be made to take back what it has decided.
func unambiguous(text []byte) error {
	_, err := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowInvalidUTF8(true)).ReadValue()
	return err
}

// matcher compiles the matcher of a group: a regular expression for the whole name of a tool.
func matcher(text string) (func(string) bool, error) {
	if text == "" || text == "*" {
		return nil, nil //nolint:nilnil // every tool
	}
	pattern, err := regexp.Compile("^(?:" + text + ")$")
	if err != nil {
		return nil, err
	}
	return pattern.MatchString, nil
}

// command is a program of a hook.
type command struct{ line, dir, workspace string }

// output is what a program prints, with the names of Claude Code.
//
//nolint:tagliatelle // they are not ours
type output struct {
	Continue   *bool  `json:"continue"`
	StopReason string `json:"stopReason"`
	Decision   string `json:"decision"` // block, or that of specific
	Reason     string `json:"reason"`
	Specific   struct {
		Decision string          `json:"permissionDecision"`
		Reason   string          `json:"permissionDecisionReason"`
		Input    json.RawMessage `json:"updatedInput"`
		Output   *string         `json:"updatedToolOutput"`
		Context  string          `json:"additionalContext"`
	} `json:"hookSpecificOutput"`
}

func (c command) run(ctx context.Context, request loop.HookRequest) (answer loop.HookAnswer, err error) {
	input, err := json.Marshal(struct {
		loop.HookRequest

		Dir string `json:"cwd"`
	}{request, c.workspace})
	if err != nil {
		return answer, err
	}
	program := shell(ctx, c.line)
	program.Dir, program.Stdin, program.WaitDelay = c.dir, bytes.NewReader(append(input, '\n')), time.Second
	program.Env = append(os.Environ(), "TOOLFLEET_PROJECT_DIR="+c.workspace, "CLAUDE_PROJECT_DIR="+c.workspace)
	var stdout, stderr bounded
	program.Stdout, program.Stderr = &stdout, &stderr
	err = program.Run()
	said := strings.TrimSpace(prose.Short(prose.Valid(stderr.String()), 500))
	failed, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return answer, fmt.Errorf("%s: %w", prose.Short(c.line, 100), context.Cause(ctx))
	case exited && failed.ExitCode() == exitDeny:
		return loop.HookAnswer{Decision: policy.Denied, Reason: said}, nil
	case err != nil:
		return answer, fmt.Errorf("%s: %w: %s", prose.Short(c.line, 100), err, said)
	case stdout.lost || stderr.lost:
		return answer, fmt.Errorf("%s: it printed more than %d bytes", prose.Short(c.line, 100), maxOutput)
	}
	answer, err = read(request.Event, stdout.String())
	if err != nil {
		err = fmt.Errorf("%s: %w", prose.Short(c.line, 100), err)
	}
	return answer, err
}

// read reads what a program printed. Text that is no object is context where there is a prompt.
func read(event loop.HookEvent, text string) (answer loop.HookAnswer, err error) {
	text = strings.TrimSpace(text)
	if !strings.HasPrefix(text, "{") {
		if event == loop.HookPrompt || event == loop.HookSessionStart {
			answer.Context = text
		}
		return answer, nil
	}
	var out output
	decoder := json.NewDecoder(strings.NewReader(text))
	if err := decoder.Decode(&out); err != nil {
		return answer, fmt.Errorf("what it printed is no JSON: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return answer, errors.New("what it printed is more than one JSON object")
	}
	if err := unambiguous([]byte(text)); err != nil {
		return answer, fmt.Errorf("what it printed is no JSON: %w", err)
	}
	answer = loop.HookAnswer{Input: out.Specific.Input, Output: out.Specific.Output, Context: out.Specific.Context, Reason: cmp.Or(out.Specific.Reason, out.Reason)}
	if bytes.Equal(answer.Input, []byte("null")) {
		answer.Input = nil
	}
	for _, word := range []string{out.Decision, out.Specific.Decision} {
		decision, known := map[string]policy.Decision{
			"": "", "approve": "", "allow": "", "deny": policy.Denied, "block": policy.Denied, "ask": policy.Ask,
		}[word]
		if !known {
			return answer, fmt.Errorf("decision %q: must be allow, deny, ask or block", word)
		}
		answer.Decision = policy.Verdict{Decision: answer.Decision}.And(policy.Verdict{Decision: decision}).Decision
	}
	if out.Continue != nil && !*out.Continue {
		answer.Decision, answer.Reason = policy.Denied, cmp.Or(out.StopReason, answer.Reason)
	}
	return answer, nil
}

// bounded is a buffer that loses what is beyond its bound.
type bounded struct {
	text []byte
	lost bool
}

func (b *bounded) String() string { return string(b.text) }

// Write implements [io.Writer].
func (b *bounded) Write(p []byte) (int, error) {
	room := maxOutput - len(b.text)
	b.lost = b.lost || len(p) > room
	b.text = append(b.text, p[:min(room, len(p))]...)
	return len(p), nil
}
