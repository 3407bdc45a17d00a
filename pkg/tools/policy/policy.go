// Package policy decides which tool calls of a session may be made.
//
//	tools:    {allow: [read, write, edit, "json_*", bash], deny: [json_write]}
//	commands: {allow: [git status, git diff, go test, ls, cat], deny: ["git push"]}
//	paths:    {write: [src, docs], except: [bash]}
//	max_calls: 200
//	max_calls_of: {bash: 20}
//	min_level: full
//	approval: {tools: [write], commands: [git commit], timeout: 5m}
//	at_most_once: {commands: [git push, kubectl]}
//
// A [Policy] is the rules as an operator writes them, YAML or JSON; [New] checks them
// and makes a [Judge], which is pure: the same call at the same place gets the same
// [Verdict]. So a resumed session decides as it did. What was asked of a person is not
// pure, and is journaled by package loop.
//
// Rules of different sorts all have to agree. Where something cannot be known, such as a program
// named by a variable, a rule that depends on it denies the call. docs/policy.md says what each
// rule means, and what it cannot see.
package policy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system/yamlfile"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Policy is rules for the tool calls of a session. The zero value allows everything.
type Policy struct {
	// Tools are the names, or classes (such as @execute), that may and may not be called;
	// '*' stands for any letters. With an empty Allow everything may that Deny does not name.
	Tools Names `json:"tools,omitzero" yaml:"tools"`
	// Commands are the programs that shell commands may and may not start.
	Commands Names `json:"commands,omitzero" yaml:"commands"`
	// Paths are where in the workspace calls may read and write.
	Paths Paths `json:"paths,omitzero" yaml:"paths"`
	// MaxCalls bounds the calls of the session; 0 is no bound. A call that was refused
	// does not count.
	MaxCalls int `json:"max_calls,omitempty" yaml:"max_calls"`
	// MaxCallsOf bounds the calls of tools, by name.
	MaxCallsOf map[string]int `json:"max_calls_of,omitempty" yaml:"max_calls_of"`
	// MinLevel is the least sandbox level of a worker that may run a call: none, paths, full or
	// kernel.
	MinLevel string `json:"min_level,omitempty" yaml:"min_level"`
	// Approval says which calls a person is asked about.
	Approval Approval `json:"approval,omitzero" yaml:"approval"`
	// AtMostOnce are the calls that never start a second time, whatever their tool says.
	AtMostOnce AtMostOnce `json:"at_most_once,omitzero" yaml:"at_most_once"`

	file  string // where it was read, or what gave it; "" if that is not known
	lines lines
}

// From returns the policy with the name of what gave it, such as that of a flag, as the
// [Verdict].Source of its rules.
func (p Policy) From(source string) Policy {
	p.file, p.lines = source, nil
	return p
}

// lines are where the rules of a file are: of a field, and of a field with one of its patterns.
type lines map[string]int

// linesOf finds the rules in the content of a file; none in a file of one line.
func linesOf(content []byte) lines {
	var document yaml.Node
	if bytes.Count(content, []byte("\n")) < 2 || yaml.Unmarshal(content, &document) != nil || len(document.Content) == 0 {
		return nil
	}
	found := lines{}
	for field, value := range yamlfile.Pairs(document.Content[0]) {
		found[field.Value] = field.Line
		for inner, patterns := range yamlfile.Pairs(value) {
			name := field.Value + "." + inner.Value
			found[name] = inner.Line
			for _, pattern := range patterns.Content {
				found[name+" "+pattern.Value] = pattern.Line
			}
		}
	}
	return found
}

// of is where a rule is written; "" if that is not known.
func (l lines) of(file, rule, pattern string) string {
	line := cmp.Or(l[rule+" "+pattern], l[rule])
	if file == "" || line == 0 {
		return file
	}
	return file + ":" + strconv.Itoa(line)
}

// AtMostOnce are calls whose effects reach outside of the workspace, where nothing can take them
// back: when their worker is lost, their outcome is unknown, and they do not run again.
type AtMostOnce struct {
	Tools []string `json:"tools,omitempty" yaml:"tools"`
	// Commands are programs with first words of theirs. A command that may be one of them is one.
	Commands []string `json:"commands,omitempty" yaml:"commands"`
}

// Names are patterns of what is allowed and denied. Deny wins.
type Names struct {
	Allow []string `json:"allow,omitempty" yaml:"allow"`
	Deny  []string `json:"deny,omitempty" yaml:"deny"`
}

// Paths are directories and files of the workspace, each with everything below it; "."
// is the workspace. They bind every call that uses the sandbox, by the resources that it
// declares, so a shell command, which may touch everything, is denied unless all may be written.
type Paths struct {
	// Read is what may be read; empty is everything.
	Read []string `json:"read,omitempty" yaml:"read"`
	// Write is what may be changed (and read); empty is the same as Read.
	Write []string `json:"write,omitempty" yaml:"write"`
	// Except names tools that the rule does not bind.
	Except []string `json:"except,omitempty" yaml:"except"`
}

// Approval says which calls a person is asked about.
type Approval struct {
	Tools    []string `json:"tools,omitempty" yaml:"tools"`
	Commands []string `json:"commands,omitempty" yaml:"commands"`
	// Timeout is how long an answer is waited for before it is no; 0 means 5 minutes.
	Timeout Duration `json:"timeout,omitempty" yaml:"timeout"`
}

// defaultTimeout is how long a person has to answer.
const defaultTimeout = 5 * time.Minute

// Duration is a time that is written as in "5m" or "90s".
type Duration time.Duration

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || parsed <= 0 {
		return fmt.Errorf("%q: must be a time such as 90s or 5m", text)
	}
	*d = Duration(parsed)
	return nil
}

// Zero reports whether the policy allows everything.
func (p Policy) Zero() bool {
	return len(p.Tools.Allow)+len(p.Tools.Deny)+len(p.Commands.Allow)+len(p.Commands.Deny)+
		len(p.Paths.Read)+len(p.Paths.Write)+len(p.MaxCallsOf)+len(p.Approval.Tools)+len(p.Approval.Commands)+
		len(p.AtMostOnce.Tools)+len(p.AtMostOnce.Commands) == 0 &&
		p.MaxCalls == 0 && p.MinLevel == ""
}

// validate reports every error.
func (p Policy) validate() error {
	var errs []error
	names := func(field string, patterns []string) {
		for i, pattern := range patterns {
			if strings.TrimSpace(pattern) == "" {
				errs = append(errs, fmt.Errorf("%s[%d]: is empty", field, i))
			}
		}
	}
	for _, rule := range p.ofTools() {
		names(rule.field, rule.patterns)
		for _, pattern := range rule.patterns {
			if rule.field != "max_calls_of" {
				errs = append(errs, checkClass(rule.field, pattern)) // nil is left out
			}
		}
	}
	names("commands.allow", p.Commands.Allow)
	names("commands.deny", p.Commands.Deny)
	names("approval.commands", p.Approval.Commands)
	names("at_most_once.commands", p.AtMostOnce.Commands)
	if p.MaxCalls < 0 {
		errs = append(errs, fmt.Errorf("max_calls %d: must not be negative", p.MaxCalls))
	}
	for name, most := range p.MaxCallsOf {
		if most < 0 {
			errs = append(errs, fmt.Errorf("max_calls_of.%s %d: must not be negative", name, most))
		}
		if strings.HasPrefix(name, "@") {
			errs = append(errs, fmt.Errorf("max_calls_of.%s: must be names of tools, not a class", name))
		}
	}
	if p.MinLevel != "" && !slices.Contains(wire.Levels(), p.MinLevel) {
		errs = append(errs, fmt.Errorf("min_level %q: must be one of %s", p.MinLevel, strings.Join(wire.Levels(), ", ")))
	}
	if p.Approval.Timeout < 0 {
		errs = append(errs, fmt.Errorf("approval.timeout %s: must not be negative", time.Duration(p.Approval.Timeout)))
	}
	return errors.Join(errs...)
}

// matches reports whether a text matches a pattern, in which '*' stands for any text.
func matches(pattern, text string) bool {
	head, rest, starred := strings.Cut(pattern, "*")
	if !starred {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, head)
	if !ok {
		return false
	}
	for {
		next, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(text, rest)
		}
		at := strings.Index(text, next)
		if at < 0 {
			return false
		}
		text, rest = text[at+len(next):], after
	}
}

// matchesAll reports whether a pattern matches every text that begins with a prefix.
func matchesAll(pattern, prefix string) bool {
	return strings.HasSuffix(pattern, "*") && matches(pattern, prefix)
}

// mayBegin reports whether a pattern matches some text that begins with a prefix.
func mayBegin(pattern, prefix string) bool {
	head, _, starred := strings.Cut(pattern, "*")
	return strings.HasPrefix(head, prefix) || starred && strings.HasPrefix(prefix, head)
}

func anyMatches(patterns []string, text string) (string, bool) {
	for _, pattern := range patterns {
		if matches(pattern, text) {
			return pattern, true
		}
	}
	return "", false
}

// Parse reads the content of a policy file, YAML or JSON, and checks it. The error names the file
// and, where it can, the line of every error.
func Parse(file string, content []byte) (Policy, error) {
	var document any
	if len(yamlfile.Decode(content, &document)) == 0 && document == nil { // half a write, or comments alone: it would bind nothing
		return Policy{}, fmt.Errorf("%s: is empty; the fields of a policy are %s", file, strings.Join(yamlfile.Fields(reflect.TypeFor[Policy]()), ", "))
	}
	var p Policy
	var errs []error
	for _, failure := range yamlfile.Decode(content, &p) {
		errs = append(errs, fmt.Errorf("%s:%d: %s", file, failure.Line, failure.Message))
	}
	if len(errs) == 0 {
		if _, err := New(p); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
	}
	p.file, p.lines = file, linesOf(content)
	return p, errors.Join(errs...)
}

// A class stands, in a rule, for all tools whose calls do the same: a rule about it holds for tools
// of every toolset. Calls of the user's own tools, of handlers and of MCP servers have none.
const (
	classMessage = "@message"                      // messages sent to other sessions
	classTrigger = "@trigger"                      // triggers set and removed, which begin turns later
	classExecute = "@" + string(wire.ClassExecute) // programs of the model's: run, typed at, ended
	classWrite   = "@" + string(wire.ClassWrite)   // files changed by the tool itself
	classRead    = "@" + string(wire.ClassRead)    // files, processes and results looked at
)

// classes returns every class.
func classes() []string {
	return []string{classExecute, classWrite, classRead, classMessage, classTrigger}
}

// classOf returns the class of a plan; "" when it has none.
func classOf(plan *tools.Plan) string {
	switch request := plan.Session.(type) {
	case wire.SendRequest:
		return classMessage
	case wire.TriggerRequest:
		return classTrigger
	case wire.TriggersRequest:
		if request.Remove != "" {
			return classTrigger
		}
	}
	if plan.Payload == nil || wire.ClassOf(wire.KindOf(plan.Payload)) == wire.ClassNone {
		return ""
	}
	return "@" + string(wire.ClassOf(wire.KindOf(plan.Payload)))
}

// anyIsOf reports whether a pattern names the tool of a call, or its class.
func anyIsOf(patterns []string, call Call) (string, bool) {
	class := classOf(&call.Plan)
	if class != "" && slices.Contains(patterns, class) {
		return class, true
	}
	return anyMatches(patterns, call.Tool)
}

// UnknownTools reports each name or pattern of a tool that is no class and matches none of the
// names that there are, with the nearest one: a misspelled rule would bind nothing.
func (p Policy) UnknownTools(names []string) error {
	var errs []error
	for _, rule := range p.ofTools() {
		for _, pattern := range rule.patterns {
			if slices.Contains(classes(), pattern) || slices.ContainsFunc(names, func(name string) bool { return matches(pattern, name) }) {
				continue
			}
			if near, ok := prose.Nearest(strings.ReplaceAll(pattern, "*", ""), names); ok {
				errs = append(errs, fmt.Errorf("%s %q: there is no such tool; did you mean %q?", rule.field, pattern, near))
			} else {
				errs = append(errs, fmt.Errorf("%s %q: there is no such tool", rule.field, pattern))
			}
		}
	}
	return errors.Join(errs...)
}

// toolRule is a field whose values are names of tools, or patterns.
type toolRule struct {
	field    string
	patterns []string
}

// ofTools returns all such fields.
func (p Policy) ofTools() []toolRule {
	return []toolRule{
		{"tools.allow", p.Tools.Allow},
		{"tools.deny", p.Tools.Deny},
		{"paths.except", p.Paths.Except},
		{"max_calls_of", slices.Sorted(maps.Keys(p.MaxCallsOf))},
		{"approval.tools", p.Approval.Tools},
		{"at_most_once.tools", p.AtMostOnce.Tools},
	}
}

// checkClass is about a pattern that begins as a class does, and is none.
func checkClass(field, pattern string) error {
	if !strings.HasPrefix(pattern, "@") || slices.Contains(classes(), pattern) {
		return nil
	}
	return fmt.Errorf("%s %q: classes of tools are %s", field, pattern, strings.Join(classes(), ", "))
}
