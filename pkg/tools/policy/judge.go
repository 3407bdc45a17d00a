package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Decision is what a verdict comes to.
type Decision string

// The decisions.
const (
	Allowed Decision = "allowed"
	Denied  Decision = "denied"
	Ask     Decision = "ask" // a person
)

// Verdict is what a policy says to a tool call. The zero value allows it.
type Verdict struct {
	// Decision is what it comes to; "" is Allowed.
	Decision Decision
	// Rule names what decided, as in "commands.allow"; "" when nothing did.
	Rule string
	// Reason is for the model when the call is denied, and for the person who is asked.
	Reason string
	// Source is where the rule is written, as in "policy.yaml:7"; "" if that is not known.
	Source string
	// MinLevel is the least sandbox level that the policy demands; "" for any.
	MinLevel string
	// Timeout is how long a person is waited for; 0 means 5 minutes.
	Timeout time.Duration
	// Roots are for the call's Roots: the worker applies the rules about paths to the targets of
	// links, which are not known here.
	Roots []protocol.Roots
	// AtMostOnce says that the call must not start a second time.
	AtMostOnce bool
}

// Call is a tool call that waits for a verdict.
type Call struct {
	Tool string
	Plan tools.Plan
	// Used counts the session's calls before this one that were not refused, by tool.
	Used map[string]int
}

// Judge decides by the rules of some policies, all of which have to agree. The zero
// value allows everything. It is pure and safe for concurrent use.
type Judge struct{ policies []compiled }

// New checks policies and makes a judge of them. The error names every error.
func New(policies ...Policy) (*Judge, error) {
	j := &Judge{}
	for _, p := range policies {
		if err := p.validate(); err != nil {
			return nil, err
		}
		c, err := compile(p)
		if err != nil {
			return nil, err
		}
		j.policies = append(j.policies, c)
	}
	return j, nil
}

// Policies returns the policies that have to agree.
func (j *Judge) Policies() []Policy {
	policies := make([]Policy, len(j.policies))
	for i := range j.policies {
		policies[i] = j.policies[i].Policy
	}
	return policies
}

// Judge decides. The first policy that denies does so for all.
func (j *Judge) Judge(call Call) Verdict {
	final := Verdict{Decision: Allowed}
	for i := range j.policies {
		final = final.And(j.policies[i].judge(call))
	}
	return final
}

// Server decides whether an MCP server may be started, the names of whose tools begin with a
// prefix; tools are those names, nil if they are unknown. It is denied if the names alone deny
// every call of its tools, and binds the start to the minimum level of the calls. The operator
// chose the program that starts, so rules about commands are not about it.
func (j *Judge) Server(prefix string, tools []string) Verdict {
	final := Verdict{Decision: Allowed}
	for i := range j.policies {
		c := &j.policies[i]
		v := Verdict{Decision: Allowed, MinLevel: c.MinLevel}
		denied := slices.ContainsFunc(c.Tools.Deny, func(pattern string) bool { return matchesAll(pattern, prefix) })
		allowed := len(c.Tools.Allow) == 0 || slices.ContainsFunc(c.Tools.Allow, func(pattern string) bool { return mayBegin(pattern, prefix) })
		if tools != nil {
			denied = !slices.ContainsFunc(tools, func(name string) bool { return c.tools(Call{Tool: name}) == nil })
		}
		if denied || !allowed {
			v = *deny("tools", "No tool of the MCP server %s is allowed in this session, so it is not started.", strings.TrimSuffix(prefix, "__"))
		}
		final = final.And(v)
	}
	return final
}

// And is the verdict when both have to agree: the first that denies, else the one that asks, and
// for a shorter time. What either of them demands of the call holds whatever the decision: a call
// that was sent before a rule denied it stays as bound as it was.
func (v Verdict) And(other Verdict) Verdict {
	final := v
	switch {
	case v.Decision == Denied:
	case other.Decision == Denied, other.Decision == Ask && (v.Decision != Ask || other.Timeout < v.Timeout):
		final = other
	}
	final.MinLevel, final.Roots = wire.HigherLevel(v.MinLevel, other.MinLevel), slices.Concat(v.Roots, other.Roots)
	final.AtMostOnce = v.AtMostOnce || other.AtMostOnce
	return final
}

// compiled is a policy ready for use.
type compiled struct {
	Policy

	paths pathRule
}

func compile(p Policy) (compiled, error) {
	paths, err := compilePaths(p.Paths)
	return compiled{Policy: p, paths: paths}, err
}

func (c *compiled) judge(call Call) Verdict {
	verdict := Verdict{Decision: Allowed}
	for _, rule := range []func(Call) *Verdict{c.tools, c.commands, c.where, c.count, c.approval} {
		if v := rule(call); v != nil {
			verdict = *v
			verdict.Source = cmp.Or(v.Source, c.lines.of(c.file, v.Rule, ""))
			break
		}
	}
	verdict.MinLevel, verdict.AtMostOnce = c.MinLevel, c.once(call)
	if c.bindsPaths(call) {
		verdict.Roots = []protocol.Roots{{Read: c.paths.read, Write: c.paths.write}}
	}
	return verdict
}

func deny(rule, format string, args ...any) *Verdict {
	return &Verdict{Decision: Denied, Rule: rule, Reason: fmt.Sprintf(format, args...)}
}

func (c *compiled) tools(call Call) *Verdict {
	if _, denied := anyIsOf(c.Tools.Deny, call); denied {
		return deny("tools.deny", "The tool %s is not allowed in this session.", call.Tool)
	}
	if _, allowed := anyIsOf(c.Tools.Allow, call); len(c.Tools.Allow) > 0 && !allowed {
		return deny("tools.allow", "The tool %s is not allowed in this session; allowed are: %s.", call.Tool, strings.Join(c.Tools.Allow, ", "))
	}
	return nil
}

func (c *compiled) commands(call Call) *Verdict {
	if len(c.Commands.Allow)+len(c.Commands.Deny) == 0 {
		return nil
	}
	script, judged, err := scriptOf(call.Plan.Payload)
	switch {
	case err != nil:
		return deny("commands", "The command is not allowed, because %v. Write it more simply.", err)
	case !judged && len(c.Commands.Allow) > 0 && runsCode(call.Plan.Payload):
		return deny("commands.allow", "Programs may run only the commands that are allowed in this session, and what this one runs cannot be known. Use bash with: %s.",
			strings.Join(c.Commands.Allow, ", "))
	case !judged:
		return nil
	}
	if _, typed := call.Plan.Payload.(wire.ProcessSend); typed { // the program was allowed, and so what it does
		return c.judgeScript(script, nil)
	}
	return c.judgeScript(script, c.Commands.Allow)
}

func (c *compiled) count(call Call) *Verdict {
	total := 0
	for _, used := range call.Used {
		total += used
	}
	if c.MaxCalls > 0 && total >= c.MaxCalls {
		return deny("max_calls", "The session has used up its %d tool calls. Answer with what you have.", c.MaxCalls)
	}
	for _, pattern := range slices.Sorted(maps.Keys(c.MaxCallsOf)) { // so that the same one is named each time
		most := c.MaxCallsOf[pattern]
		if !matches(pattern, call.Tool) {
			continue
		}
		used := 0
		for name, n := range call.Used {
			if matches(pattern, name) {
				used += n
			}
		}
		if used >= most {
			return deny("max_calls_of", "The session has used up its %d calls of %s. Go on without it.", most, pattern)
		}
	}
	return nil
}

func (c *compiled) approval(call Call) *Verdict {
	ask := func(rule, pattern, reason string) *Verdict {
		timeout := cmp.Or(time.Duration(c.Approval.Timeout), defaultTimeout)
		return &Verdict{Decision: Ask, Rule: rule, Source: c.lines.of(c.file, rule, pattern), Reason: reason, Timeout: timeout}
	}
	if pattern, is := anyIsOf(c.Approval.Tools, call); is {
		return ask("approval.tools", pattern, fmt.Sprintf("calls of %s need approval", pattern))
	}
	if pattern, command, may := mayRun(c.Approval.Commands, call.Plan.Payload); may && command == "" {
		return ask("approval.commands", "", "what it runs cannot be known")
	} else if may {
		return ask("approval.commands", pattern, fmt.Sprintf("%q needs approval (%s)", command, pattern))
	}
	return nil
}

// once reports whether a call must not start a second time.
func (c *compiled) once(call Call) bool {
	_, is := anyIsOf(c.AtMostOnce.Tools, call)
	_, _, may := mayRun(c.AtMostOnce.Commands, call.Plan.Payload)
	return is || may
}

// bindsPaths reports whether the rule about paths is for a call.
func (c *compiled) bindsPaths(call Call) bool {
	_, excepted := anyIsOf(c.Paths.Except, call)
	return c.paths.binds && !excepted
}

// where judges by the resources of the call in its sandbox.
func (c *compiled) where(call Call) *Verdict {
	if !c.bindsPaths(call) || call.Plan.Payload == nil {
		return nil
	}
	if call.Plan.Resources == nil {
		return c.paths.judge(call.Tool, "", protocol.Exclusive)
	}
	for _, use := range call.Plan.Resources {
		if path, inside := pathOf(use.Key); inside {
			if v := c.paths.judge(call.Tool, path, use.Access); v != nil {
				return v
			}
		}
	}
	return nil
}
