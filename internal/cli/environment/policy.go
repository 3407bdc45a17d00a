package environment

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// PolicyFlags say which tool calls may be made.
type PolicyFlags struct {
	Policy    string   `placeholder:"FILE" narrows:"" brief:"Policy file, see docs/policy.md." help:"Policy for tool calls, YAML or JSON, see docs/policy.md. The flags below apply in addition."`
	AllowTool []string `placeholder:"TOOL" narrows:"" brief:"Allow only these tools, or @read, @write, @execute." help:"Allow only these tools. * matches any text; @execute, @write, @read, @message and @trigger match all tools of that class. May be given several times."`
	DenyTool  []string `placeholder:"TOOL" narrows:"" brief:"Forbid these tools." help:"Forbid these tools; @execute matches every tool that runs programs. May be given several times."`
	AskFor    []string `placeholder:"TOOL" narrows:"" brief:"Ask a person before calls of these tools." help:"Tools whose calls a person must approve, or @execute, @write, @read. May be given several times."`
	MaxCalls  int      `hidden:"" default:"0" help:"Maximum number of tool calls of the session, without refused ones; 0 means unlimited. Use max_calls of --policy, or --budget calls=N."`
	MinLevel  string   `placeholder:"LEVEL" narrows:"" help:"Minimum sandbox level for calls: none, paths, full or kernel. Default: with --nats, paths for commands and files (give none to let workers without isolation run them); without --nats, the level of --sandbox."`
}

// Policies returns what the flags say, without policies that allow everything.
func (f *PolicyFlags) Policies() ([]policy.Policy, error) {
	var all []policy.Policy
	if f.Policy != "" {
		content, err := regular.Read(f.Policy, maxPolicy)
		if err != nil {
			return nil, cli.Usagef("--policy: %s: %v", f.Policy, errors.Unwrap(err))
		}
		p, err := policy.Parse(f.Policy, content)
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
		all = append(all, p.From("the flags of the command"))
	}
	return all, nil
}

// maxPolicy bounds a policy file.
const maxPolicy = 1 << 20

// flagNames replaces the names of a policy's rules by those of their flags.
func flagNames(text string) string {
	return strings.NewReplacer("min_level ", "--min-level ", "max_calls ", "--max-calls ",
		"tools.allow", "--allow-tool", "tools.deny", "--deny-tool", "approval.tools", "--ask-for", "\n", "; ").Replace(text)
}

// MinLevelElsewhere is the minimum level of sandboxes with --nats if no rule names one, because the
// workers are unknown. Without --nats it is the level of --sandbox.
const MinLevelElsewhere = "paths"

// DefaultMinLevel is the minimum level of a session's sandbox if no rule names one.
func (f *FleetFlags) DefaultMinLevel() string {
	if f.Nats == "" {
		return ""
	}
	return MinLevelElsewhere
}

// minLevel is the minimum level of a session's sandbox; "" if no rule names one.
func (f *PolicyFlags) minLevel() (level string, err error) {
	all, err := f.Policies()
	for _, p := range all {
		level = wire.HigherLevel(level, p.MinLevel)
	}
	return level, err
}

// Judge returns the policy of a session; nil allows everything.
func (f *PolicyFlags) Judge() (loop.Policy, error) {
	all, err := f.Policies()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return policy.New(all...)
}

// OpenTools opens the tools of the session id, and the policy of its calls; nil allows everything.
// It checks what of the host the session may use.
func OpenTools(f *Flags, s *SessionFlags, id protocol.SessionID, toolsets []string, warn func(string)) (*Toolbox, loop.Policy, error) {
	if err := f.checkHost(f.Nats != ""); err != nil {
		return nil, nil, err
	}
	box, err := f.OpenToolbox(toolsets, warn)
	if err != nil {
		return nil, nil, err
	}
	if err := box.CheckPolicies(&s.PolicyFlags, warn); err != nil {
		return nil, nil, err
	}
	judge, err := s.Judge()
	box.pool = f.pool(id)
	box.Table = box.Table.InPool(box.pool)
	box.Rules = mcptools.Rules{Policy: judge, MinLevel: f.DefaultMinLevel(), Pool: box.pool}
	return box, judge, err
}

// CheckPolicies returns an error about each tool in rules that does not exist: a misspelled name
// would forbid nothing. With a folder of tools or MCP servers there may be others later, so it
// warns.
func (b *Toolbox) CheckPolicies(f *PolicyFlags, warn func(string)) error {
	all, err := f.Policies()
	if err != nil {
		return err
	}
	names := append(toolset.AllTools(), b.Table.Names()...)
	for i, p := range all {
		err := p.UnknownTools(names)
		if err == nil {
			continue
		}
		text := flagNames(err.Error())
		if i == 0 && f.Policy != "" { // of the file, whose rules are no flags
			text = "--policy: " + f.Policy + ": " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		if b.Folder == nil && len(b.Servers) == 0 {
			return cli.Usagef("%s", text)
		}
		warn(text)
	}
	return nil
}

// CheckAgents warns about each tool in the files of agents that does not exist.
func (b *Toolbox) CheckAgents(agents []loop.Agent, warn func(string)) {
	names := append(toolset.AllTools(), b.Table.Names()...)
	for _, agent := range agents {
		p := policy.Policy{Tools: policy.Names{Allow: agent.Tools, Deny: agent.Without}}
		if err := p.UnknownTools(names); err != nil && len(b.Servers) == 0 {
			warn(fmt.Sprintf("agent %s: %s", agent.Name, strings.NewReplacer("tools.allow", "tools", "tools.deny", "disallowedTools", "\n", "; ").Replace(err.Error())))
		}
	}
}

// Encoded returns the policies as they are sent.
func (f *PolicyFlags) Encoded() ([]json.RawMessage, error) {
	all, err := f.Policies()
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

// GuardFlag says which checks are made before a file is changed.
type GuardFlag struct {
	Guard string `default:"none" enum:"none,changed,read" help:"Check before a file is changed: changed refuses if the file changed since the session last read or wrote it; read refuses also if the session never read it."`
}

// FileGuard is the value of the flag.
func (f *GuardFlag) FileGuard() protocol.Guard {
	guard, _ := wire.ParseGuard(f.Guard) // kong allows no others
	return guard
}
