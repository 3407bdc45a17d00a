package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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
	// turn before, the zero value none. The model is told once that 80% are used, and asked for an
	// answer without tools when all is; the turn then ends as limit_reached. It is looked at before
	// the model is asked, so a reply and its calls may exceed it.
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

	// PromoteAfter is how long a step waits for its calls: those that have not ended become jobs.
	// 0 waits until they end.
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

	// Observe is told every event of a run: those of the journal once they are in
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
	if o.MaxSteps < 0 {
		errs = append(errs, fmt.Errorf("max steps %d: must not be negative", o.MaxSteps))
	}
	if o.MaxTokens < 0 {
		errs = append(errs, fmt.Errorf("max tokens %d: must not be negative", o.MaxTokens))
	}
	if o.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout %s: must not be negative", o.Timeout))
	}
	if o.PromoteAfter < 0 {
		errs = append(errs, fmt.Errorf("promote after %s: must not be negative", o.PromoteAfter))
	}
	if o.MinLevel != "" && !slices.Contains(wire.Levels(), o.MinLevel) {
		errs = append(errs, fmt.Errorf("min level %q: must be one of %s", o.MinLevel, strings.Join(wire.Levels(), ", ")))
	}
	if c := o.Compaction; c != nil && c.At < 0 {
		errs = append(errs, fmt.Errorf("compaction: at %d: must not be negative", c.At))
	}
	errs = append(errs, validateAgents(o.Agents), validateBudget(o.Budget), o.Settings.Validate(), wire.ValidateAuthor(o.Author))
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
