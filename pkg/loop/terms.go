package loop

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// Terms are what a turn was begun with and keeps: the process that ends it can only add to
// them. What is not in them (the model, its [Settings], the timeout, a [Policy] that is no
// [policy.Judge]) is that of the process that resumes it.
type Terms struct {
	// Tools are the names of the tools that the model had; others are not there.
	Tools []string `json:"tools"`
	// Policies are the rules of [Options].Policy. All of them bind, in addition to those of the
	// process that resumes the turn.
	Policies []json.RawMessage `json:"policies,omitempty"`
	// Guard is [Options].Guard; the stricter one holds.
	Guard protocol.Guard `json:"guard,omitempty"`
	// MinLevel is [Options].MinLevel; the higher one holds.
	MinLevel string `json:"min_level,omitempty"`
	// MaxSteps and MaxTokens are those of [Options]; the lesser ones hold.
	MaxSteps  int   `json:"max_steps,omitempty"`
	MaxTokens int64 `json:"max_tokens,omitempty"`
	// Budget is [Options].Budget, in the turn that changes it.
	Budget *protocol.Spending `json:"budget,omitempty"`
	// System and Project are those of [Options], in the turn that changes them.
	System  string                     `json:"system,omitempty"`
	Project []protocol.InstructionFile `json:"project,omitzero"`
}

// terms are those of a turn of a session that the runner begins.
func (r *Runner) terms(s *session) *Terms {
	terms := &Terms{
		Tools: r.table.Names(), Policies: rulesOf(r.opts.Policy), Guard: r.opts.Guard, MinLevel: r.opts.MinLevel,
		MaxSteps: r.opts.MaxSteps, MaxTokens: r.opts.MaxTokens,
	}
	if system := prose.Valid(r.opts.System); system != s.system {
		terms.System = system
	}
	if project := validFiles(r.opts.Project); project != nil && !slices.Equal(project, s.project) {
		terms.Project = project
	}
	if budget := r.opts.Budget; budget != nil && *budget != s.budget {
		terms.Budget = budget
	}
	return terms
}

// rulesOf encodes the rules of a policy, none of one that has no such rules.
func rulesOf(p Policy) []json.RawMessage {
	judge, is := p.(*policy.Judge)
	if !is || judge == nil {
		return nil
	}
	var rules []json.RawMessage
	for _, rule := range judge.Policies() {
		encoded, err := json.Marshal(rule)
		if err != nil {
			panic(fmt.Sprintf("encode policy: %v", err)) // strings and numbers always encode
		}
		rules = append(rules, encoded)
	}
	return rules
}

// under returns the runner as the terms of a turn bind it. The error wraps [ErrJournalInvalid].
func (r *Runner) under(terms *Terms) (*Runner, error) {
	if terms == nil { // the turn says nothing
		return r, nil
	}
	bound := *r
	bound.table = r.table.Only(terms.Tools)
	bound.opts.MaxSteps = least(r.opts.MaxSteps, terms.MaxSteps)
	bound.opts.MaxTokens = least(r.opts.MaxTokens, terms.MaxTokens)
	bound.opts.MinLevel = wire.HigherLevel(r.opts.MinLevel, terms.MinLevel)
	if bound.opts.Guard != protocol.GuardRead && terms.Guard != "" {
		bound.opts.Guard = terms.Guard
	}
	var added []policy.Policy
	own := rulesOf(r.opts.Policy)
	for i, encoded := range terms.Policies {
		if slices.ContainsFunc(own, func(rule json.RawMessage) bool { return bytes.Equal(rule, encoded) }) {
			continue
		}
		rule, err := policy.Parse(fmt.Sprintf("terms.policies[%d]", i), encoded)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrJournalInvalid, err)
		}
		added = append(added, rule)
	}
	if len(added) == 0 {
		return &bound, nil
	}
	judge, err := policy.New(added...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrJournalInvalid, err)
	}
	bound.opts.Policy = both{r.opts.Policy, judge}
	return &bound, nil
}

// least is the smaller of two bounds, of which 0 is none.
func least[T int | int64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// both is policies that have to agree; the first may be nil.
type both [2]Policy

// Judge implements [Policy].
func (b both) Judge(call policy.Call) policy.Verdict {
	if b[0] == nil {
		return judgedBy(b[1], call)
	}
	first := judgedBy(b[0], call)
	if first.Decision == policy.Denied {
		return first
	}
	return first.And(judgedBy(b[1], call))
}

// defaultSystem is the system prompt of a [Runner] that is given none.
const defaultSystem = `You are an agent that gets things done with tools.

Your tools run in a workspace: a directory tree of its own, the same for every call of this conversation. Paths are relative to it.

- Find out before you act: read and search what is there instead of guessing.
- Tool calls in one reply run side by side where they touch different things, and in their order where they touch the same. Ask for independent calls together.
- A tool that fails tells you why. Read it, change something, and try again; do not repeat a call that failed the same way.
- A result of "outcome_unknown" may or may not have had effects: look before you run it again.
- Check your work with the means that the workspace offers, such as its tests.

When you are done, answer without a tool call: briefly, what you did and what came of it.`

// projectHead stands before what the workspace says.
const projectHead = `Instructions of the project, from files of the workspace. Follow them where the user does not say otherwise.`

// system is the system prompt with what the tools and the project have to say.
func (c *conversation) system() string {
	parts := []string{cmp.Or(c.session.system, c.opts.System, defaultSystem)}
	if hints := c.table.Hints(c.provider()); hints != "" {
		parts = append(parts, hints)
	}
	if hint := c.agentsHint(); hint != "" {
		parts = append(parts, hint)
	}
	if len(c.session.project) > 0 {
		parts = append(parts, projectHead)
	}
	for _, file := range c.session.project {
		parts = append(parts, "# "+file.Name+"\n\n"+file.Text)
	}
	return strings.Join(parts, "\n\n")
}

// namesOf are the names of files, in their order.
func namesOf(files []protocol.InstructionFile) []string {
	var names []string
	for _, file := range files {
		names = append(names, prose.Valid(file.Name))
	}
	return names
}

// validFiles are files as they are journaled; nil stays nil.
func validFiles(files []protocol.InstructionFile) []protocol.InstructionFile {
	if files == nil {
		return nil
	}
	valid := make([]protocol.InstructionFile, len(files))
	for i, file := range files {
		valid[i] = protocol.InstructionFile{Name: prose.Valid(file.Name), Text: prose.Valid(file.Text)}
	}
	return valid
}
