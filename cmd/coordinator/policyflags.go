package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// policyFlags say which tool calls may be made.
type policyFlags struct {
	Policy    string   `placeholder:"FILE" narrows:"" brief:"Policy file, see docs/policy.md." help:"Policy for tool calls, YAML or JSON, see docs/policy.md. The flags below apply in addition."`
	AllowTool []string `placeholder:"TOOL" narrows:"" brief:"Allow only these tools, or @read, @write, @execute." help:"Allow only these tools. * matches any text; @execute, @write and @read match all tools of that class. May be given several times."`
	DenyTool  []string `placeholder:"TOOL" narrows:"" brief:"Forbid these tools." help:"Forbid these tools; @execute matches every tool that runs programs. May be given several times."`
	AskFor    []string `placeholder:"TOOL" narrows:"" brief:"Ask a person before calls of these tools." help:"Tools whose calls a person must approve, or @execute, @write, @read. May be given several times."`
	MaxCalls  int      `default:"0" help:"Maximum number of tool calls of the session, without refused ones; 0 means unlimited."`
	MinLevel  string   `placeholder:"LEVEL" narrows:"" help:"Minimum sandbox level for calls: none, paths, full or kernel. Default: with --nats paths for commands and files, so workers without isolation run them only with none; without --nats the level of --sandbox."`
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
		return nil, cli.Usagef("%s", flagNames(err.Error()))
	}
	if !p.Zero() {
		all = append(all, p)
	}
	return all, nil
}

// flagNames turns names of a policy's rules into those of their flags.
func flagNames(faults string) string {
	return strings.NewReplacer("min_level ", "--min-level ", "max_calls ", "--max-calls ",
		"tools.allow", "--allow-tool", "tools.deny", "--deny-tool", "approval.tools", "--ask-for", "\n", "; ").Replace(faults)
}

// leastElsewhere is the least level of sandboxes in a fleet, where no rule names one: its workers
// are not known. The one inside a process was chosen with it.
const leastElsewhere = "paths"

// least is the least level of a session's sandbox where no rule names one.
func (f *fleetFlags) least() string {
	if f.Nats == "" {
		return ""
	}
	return leastElsewhere
}

// level is the least level of the sandbox of a session in a fleet elsewhere.
func (f *policyFlags) level() (string, error) {
	all, err := f.policies()
	level := ""
	for _, p := range all {
		level = tools.HigherLevel(level, p.MinLevel)
	}
	return cmp.Or(level, leastElsewhere), err
}

// judge makes the judge of a session; nil when everything is allowed.
func (f *policyFlags) judge() (loop.Policy, error) {
	all, err := f.policies()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return policy.New(all...)
}

// warnUnmatched warns about each tool named by a flag that matches no tool of the session: a
// misspelled name would forbid nothing. Names of tools of MCP servers are not known yet, so with
// servers it checks nothing.
func (f *policyFlags) warnUnmatched(box toolbox, warn func(string)) {
	if len(box.servers) > 0 {
		return
	}
	names := box.table.Names()
	check := func(flag string, patterns []string) {
		for _, pattern := range policy.Unmatched(patterns, names) {
			warn(fmt.Sprintf("%s %q matches no tool of this session: its tools are %s", flag, pattern, strings.Join(names, ", ")))
		}
	}
	check("--allow-tool", f.AllowTool)
	check("--deny-tool", f.DenyTool)
	check("--ask-for", f.AskFor)
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
