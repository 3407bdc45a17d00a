package loop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// defaultMaxSteps is how often a model is asked in a turn unless [Options] say otherwise.
const defaultMaxSteps = 64

// Options tune a [Runner]. Nil and zero mean the documented default.
type Options struct {
	// System is the system prompt; "" means that of the session's turn before, else
	// a default. Project is what the workspace says to agents, and follows it; nil means as
	// in the turn before, empty none. Both are journaled with the turn that changes them, and a
	// turn keeps those that it was begun with.
	System  string
	Project []protocol.InstructionFile
	// ModelName is what the model is called in session_started and in traces.
	ModelName string
	// Workspace is what the workspace is called in session_started.
	Workspace string
	// Sandbox is the id of the sandbox in which tools run; "" means one per
	// session, named after it.
	Sandbox string

	// Author is who commits in commands of the session; the zero one is who their workers say.
	Author protocol.Author

	// Additions bring what a person says while a turn runs; nil is nothing. Sub-agents get none.
	Additions *Additions

	// Guard is the check before a tool changes a file; "" allows changes of files that the session
	// never read.
	Guard protocol.Guard

	// MaxSteps is how often the model is asked in a turn; 0 means 64.
	MaxSteps int
	// MaxTokens bounds the input and output tokens of a turn. The model is not
	// asked again once they are used up; 0 is no bound.
	MaxTokens int64
	// Budget bounds what the session uses over all of its turns; nil means that of the session's
	// turn before, the zero value none. The model gets one note when 80% are used, and is asked for
	// an answer without tools when all is; the turn then ends as limit_reached. It is looked at
	// before the model is asked, so a reply and its calls may exceed it.
	Budget *protocol.Spending
	// Price is what the model's replies cost; nil is unknown, which a budget in dollars refuses. It
	// refuses a fallback, a writer of summaries and sub-agents of unknown price, too.
	Price *Price
	// Compaction says when a conversation is compacted; nil is only by [Runner.Compact].
	Compaction *Compaction
	// Timeout bounds the time that one Run spends on a turn, and is the deadline of
	// its calls; 0 is no bound.
	Timeout time.Duration

	// Settings tune the model's replies.
	Settings Settings

	// Replay has the results of tool calls, which are then not made; nil makes all calls.
	Replay *Recording

	// Agents are the kinds of sub-agents that the tool agent can start by name.
	Agents []Agent

	// PromoteAfter is how long a step waits for its calls. Calls that have not ended then become
	// jobs. 0 waits until they end.
	PromoteAfter time.Duration

	// Policy decides which tool calls may be made; nil allows all. The rules of a [policy.Judge]
	// bind the turns that begin under it until their ends; see [Terms].
	Policy Policy
	// MinLevel is the least sandbox level of a worker that runs calls in a sandbox for which
	// neither their tool nor the policy names one: none, paths, full or kernel; "" is any.
	MinLevel string
	// Approve asks a person about a call for which the policy demands it, until ctx ends;
	// with nil such calls are refused, as they are after an error; see [ErrAskAgain]. Of a turn and
	// its sub-agents one call is asked about at a time.
	Approve func(ctx context.Context, request ApprovalRequest) (protocol.Approval, error)
	// GiverValid reports whether the token of a client that has given an approval for the session
	// is still valid. It is called whenever the approval would let a call run. If it returns false,
	// or is nil, a person is asked again.
	GiverValid func(ctx context.Context, giver protocol.Giver) bool

	// Hooks see, change and refuse tool calls, their results, requests to the model, replies,
	// prompts and ends of turns, in their order.
	Hooks []Hook

	// Observe gets every event of a run: the events of the journal once they are in
	// it, and the live ones. Calls never overlap, and the session waits for them. It
	// must not call the Runner.
	Observe func(Event)
	// Tracer makes the spans; nil makes none.
	Tracer trace.Tracer
	// Logger gets one debug record per tool call; nil discards them.
	Logger *slog.Logger
}

func (o *Options) withDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.MaxSteps == 0 {
		opts.MaxSteps = defaultMaxSteps
	}
	if opts.Observe == nil {
		opts.Observe = func(Event) {}
	}
	if opts.Tracer == nil {
		opts.Tracer = noop.NewTracerProvider().Tracer("")
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return opts
}

func (o *Options) validate() error {
	var errs []error
	for _, bound := range []struct {
		name     string
		value    any
		negative bool
	}{
		{"max steps", o.MaxSteps, o.MaxSteps < 0},
		{"max tokens", o.MaxTokens, o.MaxTokens < 0},
		{"timeout", o.Timeout, o.Timeout < 0},
		{"promote after", o.PromoteAfter, o.PromoteAfter < 0},
	} {
		if bound.negative {
			errs = append(errs, fmt.Errorf("%s %v: must not be negative", bound.name, bound.value))
		}
	}
	if o.MinLevel != "" && !slices.Contains(wire.Levels(), o.MinLevel) {
		errs = append(errs, fmt.Errorf("min level %q: must be one of %s", o.MinLevel, strings.Join(wire.Levels(), ", ")))
	}
	if c := o.Compaction; c != nil && c.At < 0 {
		errs = append(errs, fmt.Errorf("compaction: at %d: must not be negative", c.At))
	}
	errs = append(errs, validateAgents(o.Agents), validateHooks(o.Hooks), validateBudget(o.Budget), o.Settings.Validate(), wire.ValidateAuthor(o.Author))
	if o.Sandbox == "." || o.Sandbox == ".." || strings.ContainsAny(o.Sandbox, "/\x00") {
		errs = append(errs, fmt.Errorf("sandbox %q: must be one segment of a path", o.Sandbox))
	}
	return errors.Join(errs...)
}

// Settings tune a model's replies. A zero field leaves it to the provider.
type Settings struct {
	// Temperature is how freely the model chooses its words, 0 to 2.
	Temperature *float64
	// Effort is how much the model thinks before it replies: none, minimal, low, medium, high,
	// xhigh or max.
	Effort string
	// MaxOutput bounds the output tokens of a reply, those of its reasoning included.
	MaxOutput int64
}

// efforts are the efforts that providers know; each of them knows some.
func efforts() []string { return []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"} }

// maxTemperature is the highest temperature.
const maxTemperature = 2

// Validate reports every setting out of its bounds.
func (s Settings) Validate() error {
	var errs []error
	if t := s.Temperature; t != nil && !(*t >= 0 && *t <= maxTemperature) { // which NaN is not, either
		errs = append(errs, fmt.Errorf("temperature %v: must be 0 to %d", *t, maxTemperature))
	}
	if s.Effort != "" && !slices.Contains(efforts(), s.Effort) {
		errs = append(errs, fmt.Errorf("reasoning %q: must be %s", s.Effort, strings.Join(efforts(), ", ")))
	}
	if s.MaxOutput < 0 {
		errs = append(errs, fmt.Errorf("max output %d: must not be negative", s.MaxOutput))
	}
	return errors.Join(errs...)
}

// Or is s with what it leaves open taken from others; the lesser MaxOutput holds.
func (s Settings) Or(others Settings) Settings {
	if s.Temperature == nil {
		s.Temperature = others.Temperature
	}
	if s.Effort == "" {
		s.Effort = others.Effort
	}
	s.MaxOutput = least(s.MaxOutput, others.MaxOutput)
	return s
}

// Terms are what a turn was begun with and keeps: the process that ends it can only add to
// them. What is not in them (the model, its [Settings], the timeout, a [Policy] that is no
// [policy.Judge]) is that of the process that resumes it.
type Terms struct {
	// Tools are the names of the tools that the model had; others are not there.
	Tools []string `json:"tools" nullable:"true"`
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

// terms returns the terms of a turn that the runner begins.
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

// rulesOf encodes the rules of a policy; nil if the policy has no rules.
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

// least returns the smaller of two bounds; 0 is no bound.
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
