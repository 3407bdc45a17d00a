package evaluation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/serve"
	"github.com/toolfleet/toolfleet/internal/transfer"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Options say where cases run. All fields are required.
type Options struct {
	Fleet *fleet.Fleet
	Pool  protocol.Pool // whose workers run the commands
	// Parallel is how many cases run at once.
	Parallel int
	// Project returns what a workspace says to agents.
	Project func(dir string) ([]protocol.InstructionFile, error)
	// Ended is called with each result, one at a time.
	Ended func(Result)
	// Warn reports what a person has to know; it is safe for concurrent use.
	Warn func(string)
}

// State is what came of a case.
type State string

// The states.
const (
	Passed State = "passed"
	Failed State = "failed"
	Error  State = "error"
)

// Result is what came of a case.
type Result struct {
	Name      string             `json:"name"`
	State     State              `json:"state"`
	Why       string             `json:"why,omitempty"` // of a case that has not passed
	SessionID protocol.SessionID `json:"session_id"`
	Outcome   loop.Outcome       `json:"outcome,omitempty"` // of the turn
	Text      string             `json:"text,omitempty"`    // of the answer
	Steps     int                `json:"steps"`
	Usage     protocol.Usage     `json:"usage"`
	CostUSD   *float64           `json:"cost_usd,omitempty"`
	Seconds   float64            `json:"seconds"`
}

// Run runs cases, and returns their results in the order of the cases. After the end of ctx the
// cases that have not ended have errors.
func Run(ctx context.Context, o Options, cases []Case) []Result {
	results, ended := make([]Result, len(cases)), make(chan int)
	var group errgroup.Group
	group.SetLimit(o.Parallel)
	go func() {
		for i := range cases {
			group.Go(func() error {
				results[i] = o.run(ctx, &cases[i])
				ended <- i
				return nil
			})
		}
		_ = group.Wait() // no case returns an error
		close(ended)
	}()
	for i := range ended {
		o.Ended(results[i])
	}
	return results
}

func (o *Options) run(ctx context.Context, c *Case) Result {
	begun := time.Now()
	r := Result{Name: c.Name, SessionID: protocol.NewSessionID()}
	why, err := o.try(ctx, c, &r)
	switch {
	case err != nil:
		r.State, r.Why = Error, err.Error()
	case why != "":
		r.State, r.Why = Failed, why
	default:
		r.State = Passed
	}
	r.Seconds = time.Since(begun).Seconds()
	return r
}

// try runs a case. It returns why the case fails, "" when it passes.
func (o *Options) try(ctx context.Context, c *Case, r *Result) (why string, err error) {
	turn := wire.TurnRun{Prompt: c.Prompt, Model: c.Model, Toolsets: c.Toolsets, System: c.System, TurnBounds: wire.TurnBounds{Budget: c.Budget}}
	if c.Workspace != "" {
		if turn.Project, err = o.Project(c.Workspace); err != nil {
			return "", err
		}
		if _, err := transfer.Send(ctx, transfer.Options{
			Fleet: o.Fleet, Session: r.SessionID, Pool: o.Pool, Dir: c.Workspace, Warn: o.Warn, Busy: func(string) {},
		}); err != nil {
			return "", err
		}
	}
	call := serve.NewCall(r.SessionID, turn, c.Timeout)
	result, err := o.Fleet.Dispatcher.One(ctx, &call)
	if err != nil {
		return "", err
	}
	value, _ := result.Value.(wire.TurnRunResult)
	r.Outcome, r.Text, r.Steps, r.Usage = loop.Outcome(value.Outcome), value.Text, value.Steps, value.Usage
	r.CostUSD = o.cost(ctx, r.SessionID)
	if r.Outcome == "" && result.Error != nil { // it never began
		return "", result.Error
	}
	if r.Outcome != loop.OutcomeAnswered {
		why = fmt.Sprintf("the turn ended as %s", r.Outcome)
		if failure := result.Error; failure != nil {
			why += ": " + failure.Message
		}
		return why, nil
	}
	var reasons []string
	for i := range c.Checks {
		reason, err := o.check(ctx, c, r, &c.Checks[i])
		if err != nil {
			return "", fmt.Errorf("check %d: %w", i+1, err)
		}
		if reason != "" {
			reasons = append(reasons, fmt.Sprintf("check %d: %s", i+1, reason))
		}
	}
	return strings.Join(reasons, "\n"), nil
}

// cost is what a session cost; nil is unknown.
func (o *Options) cost(ctx context.Context, id protocol.SessionID) *float64 {
	history, err := o.Fleet.Journal.Load(ctx, id)
	if err != nil {
		return nil
	}
	for i := range history.Events {
		if e := &history.Events[i]; e.Type == loop.EventTurnEnded {
			return e.CostUSD
		}
	}
	return nil
}

// maxOutput bounds what is repeated of the output of a check, in characters, from its end.
const maxOutput = 2000

// check returns why a check fails, "" when it passes.
func (o *Options) check(ctx context.Context, c *Case, r *Result, check *Check) (string, error) {
	if check.Text != "" {
		if strings.Contains(r.Text, check.Text) {
			return "", nil
		}
		return fmt.Sprintf("the answer does not contain %q", check.Text), nil
	}
	call := protocol.Call{
		ID: wire.RandomCallID(), SessionID: r.SessionID, Tool: "check", Pool: o.Pool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(r.SessionID)), Access: protocol.Exclusive}},
		Delivery:  protocol.Rollback, IssuedAt: time.Now().UTC(), RunTimeout: protocol.MillisOf(c.Timeout),
		Payload: protocol.CommandRun{Command: check.Command},
	}
	result, err := o.Fleet.Dispatcher.One(ctx, &call)
	if err != nil {
		return "", err
	}
	ran, is := result.Value.(protocol.CommandRunResult)
	switch {
	case !is && result.Error != nil:
		return "", result.Error
	case !is:
		return "", errors.New("the command has no result")
	case ran.Reason != "exited":
		return fmt.Sprintf("%s: ended by %s", check.Command, ran.Reason), nil
	case ran.ExitCode == 0:
		return "", nil
	}
	output := ran.Combined
	if len(output) == 0 {
		output = slices.Concat(ran.Stdout, ran.Stderr)
	}
	text := []rune(strings.TrimSpace(strings.ToValidUTF8(string(output), "\uFFFD")))
	return fmt.Sprintf("%s: exit code %d\n%s", check.Command, ran.ExitCode, string(text[max(0, len(text)-maxOutput):])), nil
}
